"""ManiSkill 3 as an rlvla simulator: what it offers, known without importing ManiSkill, SAPIEN or torch."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.errors import ConfigError
from rlvla.specs import Camera, Role, SimulatorSpec, TaskSpec
from rlvla_sim_maniskill import backends, header, instructions, plate25
from rlvla_sim_maniskill.header import CameraHeader, TaskHeader

if TYPE_CHECKING:
    from rlvla_sim_maniskill.simulator import ManiSkillSimulator

__version__ = "0.1.0"
__all__ = ["ManiSkillConfig", "describe", "plugin"]

Reward = Literal["normalized_dense", "dense", "grasp_and_place", "sparse", "none"]
REWARDS: tuple[Reward, ...] = ("normalized_dense", "dense", "grasp_and_place", "sparse", "none")


@rlvla.config
class ManiSkillConfig:
    """ManiSkill 3: manipulation and control tasks, on CPU cores or batched on a GPU."""

    task: str = "PushCube-v1"
    """Registered task, for instance ``PickCube-v1`` or ``StackCube-v1``."""
    task_file: str | None = None
    """File that ``python -m rlvla_sim_maniskill TASK --output FILE`` wrote, for tasks that the package's own table does not
    have: yours, and those whose assets have to be downloaded; None: the table."""
    num_envs: Annotated[int, Ge(1)] = 8
    """Environments in all workers together."""
    backend: Literal["auto", "gpu", "cpu"] = "auto"
    """Where physics runs: ``cpu`` steps environments one by one in worker processes, ``gpu`` all of a slot at once, in the
    process of the model; ``auto`` takes the GPU where there is one and PhysX's GPU library is there."""
    renderer: Literal["auto", "gpu", "cpu", "none"] = "auto"
    """What draws; ``auto``: the GPU where there is one. ``none`` (neither pictures nor videos) saves a little."""
    observation: Literal["rgb", "state", "rgb+state"] = "rgb"
    """``rgb``: pictures and what the robot feels. ``state``: no pictures, but where objects and goals are."""
    cameras: tuple[str, ...] | None = None
    """Names of the task's cameras, in order; None: all of them."""
    image_size: Annotated[int, Ge(16), Le(2048)] | None = None
    """Height and width of pictures in pixels; None: as the task has them (mostly 128)."""
    control_mode: str | None = None
    """How actions move the robot, by ManiSkill's name; None: ``pd_ee_delta_pose`` where the robot has it, else its default."""
    reward: Literal["normalized_dense", "dense", "grasp_and_place", "sparse", "none"] | None = None
    """ManiSkill's reward, or (in tasks that tell of it) steps forward in grasping and placing: 0.1 for holding the object,
    0.1 for holding it five steps, 1 for having placed it; None: the first of these that the task has."""
    wording: Literal["own", "seen", "unseen"] = "own"
    """Instructions: one fixed sentence (the task's own where it has one), or drawn by the seed from wordings for training
    (``seen``) or from held-out ones (``unseen``)."""
    max_episode_steps: Annotated[int, Ge(1)] | None = None
    """Env steps before an episode is truncated; None: the task's own limit."""
    objects: Literal["train", "test", "all"] = "train"
    """What episodes of ``PutOnPlateInScene25...`` are drawn from: for training, held out, or both."""
    assets: str | None = None
    """Folder with the data set of those tasks; None: beside what ManiSkill downloads."""
    fresh_scenes: bool = True
    """Build the scene anew for each episode (40 ms): without, contacts of the episode before are felt in the next, so that
    equal seeds and actions give equal bits only until something touches, and live episodes cannot be restored. A batch on a
    GPU is never built anew."""
    ignore_terminations: bool = False
    """Episodes go on after success or failure until the step limit: success at the end then says whether it lasted."""
    call_timeout_s: Annotated[float, Gt(0)] = 300.0
    """Seconds after which a worker that does not answer is ended, and another takes its place. CPU physics only, as the next."""
    first_call_timeout_s: Annotated[float, Gt(0)] = 300.0
    """The same for start and first call of a worker (7 to 40 s on a busy CPU), for Vulkan drivers that hang."""


def header_of(config: ManiSkillConfig) -> TaskHeader:
    """Return what is known of the task.

    Raises:
        ConfigError: an unknown task, or one whose assets nobody has looked at yet.
    """
    there = {**header.tasks(None), **plate25.headers()} if config.task_file is None else header.tasks(config.task_file)
    if config.task not in there:
        raise ConfigError(header.unknown(config.task, list(there), config.task_file))
    return there[config.task]


def control_mode_of(config: ManiSkillConfig, task: TaskHeader) -> str:
    """Return the control mode that is configured, or the default."""
    default = "pd_ee_delta_pose" if "pd_ee_delta_pose" in task.control_modes else next(iter(task.control_modes))
    return default if config.control_mode is None else config.control_mode


def reward_of(config: ManiSkillConfig, task: TaskHeader) -> Reward:
    """Return the reward that is configured, or the default."""
    return config.reward or next(one for one in REWARDS if one in task.rewards)


def cameras_of(config: ManiSkillConfig, task: TaskHeader) -> tuple[CameraHeader, ...]:
    """Return the cameras that draw."""
    if config.observation == "state":
        return ()
    if config.cameras is None:
        return task.cameras
    by_name = {camera.name: camera for camera in task.cameras}
    return tuple(by_name[name] for name in config.cameras)


def _roles(cameras: tuple[CameraHeader, ...]) -> list[Role]:
    """Return a role for each: those that stand are primary and secondary, those on the robot its wrists (or head)."""
    standing = sum(not camera.mounted for camera in cameras)
    roles: list[Role] = []
    for camera in cameras:
        before = sum(other.mounted == camera.mounted for other in cameras[: len(roles)])
        if not camera.mounted or not standing:
            roles.append("primary" if before == 0 else "secondary")
        elif len(cameras) - standing == 1:
            roles.append("wrist")
        else:
            roles.append("wrist_left" if before == 0 else "wrist_right")
    return roles


_DRAWN = ("PushT-v1",)
"""Tasks that ManiSkill cannot make where nothing draws, whatever is observed."""


def _problems(config: ManiSkillConfig, task: TaskHeader) -> list[str]:
    problems = []
    mode = control_mode_of(config, task)
    if mode not in task.control_modes:
        close = difflib.get_close_matches(mode, list(task.control_modes), n=1)
        hint = f"Did you mean {close[0]!r}?" if close else ""
        problems.append(f"control_mode: got {mode!r}, {task.name} has {', '.join(task.control_modes)}. {hint}".rstrip())
    elif not task.control_modes[mode].parts:
        problems.append(f"control_mode: {mode} of {task.name} has no bounds, which policies need: take another one")
    if config.reward is not None and config.reward not in task.rewards:
        problems.append(f"reward: got {config.reward!r}, {task.name} has {', '.join(task.rewards)}")
    problems += _camera_problems(config, task)
    problems += _plate25_problems(config)
    if config.renderer == "none" and config.task in _DRAWN:
        problems.append(f"renderer: got 'none', but {task.name} cannot be made where nothing draws: take another one")
    if config.max_episode_steps is None and task.max_episode_steps > 10_000:
        problems.append(f"max_episode_steps: {task.name} has no limit of its own: give one")
    return problems


def _plate25_problems(config: ManiSkillConfig) -> list[str]:
    if config.task in plate25.VARIANTS:
        fixed = "image_size: pictures of this task are 640x480, and the camera sees another part with other sizes"
        return [fixed] if config.image_size is not None else []
    return [
        f"{option}: {config.task} has no use for it; it belongs to PutOnPlateInScene25..."
        for option, default in (("objects", "train"), ("assets", None))
        if getattr(config, option) != default
    ]


def _camera_problems(config: ManiSkillConfig, task: TaskHeader) -> list[str]:
    names = [camera.name for camera in task.cameras]
    if config.observation == "state":
        return [
            f"{option}: the observation 'state' has no pictures; leave it out, or take 'rgb+state'"
            for option in ("cameras", "image_size")
            if getattr(config, option) is not None
        ]
    problems = []
    if not names:
        problems.append(f"observation: got {config.observation!r}, but {task.name} has no cameras: take 'state'")
    elif config.cameras is not None:
        wrong = [name for name in config.cameras if name not in names]
        if wrong or not config.cameras or len(set(config.cameras)) < len(config.cameras):
            problems.append(f"cameras: got {config.cameras}, wanted one or more of {tuple(names)}, each once")
    if config.renderer == "none":
        problems.append(f"renderer: got 'none', but the observation {config.observation!r} has pictures")
    return problems


def describe(config: ManiSkillConfig) -> SimulatorSpec:
    """Return what ManiSkill offers with these settings.

    Raises:
        ConfigError: an unknown task, control mode, reward or camera, or a backend that is not there.
    """
    task = header_of(config)
    problems = _problems(config, task)
    gpu = False
    try:
        gpu = backends.chosen(config.backend) == "gpu"
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    cameras = cameras_of(config, task)
    wordings = instructions.wordings(task, config.wording)
    mode = task.control_modes[control_mode_of(config, task)]
    return SimulatorSpec(
        cameras=tuple(
            Camera(one.name, config.image_size or one.height, config.image_size or one.width, role)
            for one, role in zip(cameras, _roles(cameras), strict=True)
        ),
        state=(task.proprioception if config.observation == "rgb" else task.state) + mode.state,
        action=mode.parts,
        control_hz=task.control_hz,
        max_episode_steps=config.max_episode_steps or task.max_episode_steps,
        tasks=(
            TaskSpec(
                task.name,
                wordings[0],
                suite=plate25.SUITE if config.task in plate25.VARIANTS else "",
                wordings=() if task.instruction else wordings,  # a task that speaks for itself may have more to say
            ),
        ),
        device="gpu" if gpu else "cpu",
        in_process=gpu,
        films=config.renderer != "none",
        restorable=not gpu and config.fresh_scenes,
        call_timeout_s=config.call_timeout_s,
        first_call_timeout_s=config.first_call_timeout_s,
        max_instruction_bytes=max(256, *(len(text.encode()) for text in wordings)),
        notes=_notes(gpu, config.fresh_scenes),
    )


def _notes(gpu: bool, fresh: bool) -> tuple[str, ...]:
    notes = ["ManiSkill 3.0.1, SAPIEN 3.0.3", "ManiSkill's assets are CC BY-NC 4.0: not for commercial use"]
    if gpu:
        notes.append(
            "physics on the GPU steps all rows of a slot: rows that wait are put back to where they were, which another "
            "step feels in the last digits; results are not those of the CPU"
        )
    if gpu or not fresh:
        notes.append("scenes are kept from episode to episode: equal seeds and actions part where things touch")
    else:
        notes.append("a live episode is restored by playing its actions again from its seed")
    return tuple(notes)


plugin: rlvla.Plugin[ManiSkillConfig, ManiSkillSimulator] = rlvla.Plugin(
    config=ManiSkillConfig,
    target="rlvla_sim_maniskill.simulator:ManiSkillSimulator",
    describe=describe,
    doctor="rlvla_sim_maniskill.doctor:checks",
    preflight="rlvla_sim_maniskill.startup:missing",
    drawing="name another Vulkan driver's manifest in VK_ICD_FILENAMES, or draw on the CPU: --sim.renderer cpu",
)
