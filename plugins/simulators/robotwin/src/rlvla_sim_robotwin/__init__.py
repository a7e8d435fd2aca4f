"""RoboTwin 2.0 as an rlvla simulator: what it offers, known without importing its runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.environments import Environment
from rlvla.errors import ConfigError
from rlvla.specs import ActionPart, Camera, Role, SimulatorSpec, StatePart, TaskSpec
from rlvla_sim_robotwin import seeds, tasks

if TYPE_CHECKING:
    from rlvla_sim_robotwin.simulator import RoboTwinSimulator

__version__ = "0.1.0"
__all__ = ["RoboTwinConfig", "describe", "plugin"]

CameraName = Literal["head", "left_wrist", "right_wrist"]
CameraType = Literal["D435", "Large_D435", "L515", "Large_L515"]
Embodiment = Literal["aloha-agilex", "piper", "ARX-X5", "ur5-wsg", "y1"]
SIZES: dict[str, tuple[int, int]] = {
    "D435": (240, 320),
    "Large_D435": (480, 640),
    "L515": (180, 320),
    "Large_L515": (360, 640),
}
"""Height and width of a camera's pictures (``robotwin/configs/task/_camera_config.yml``)."""
ROLES: dict[str, Role] = {"head": "primary", "left_wrist": "wrist_left", "right_wrist": "wrist_right"}
CONTROL_HZ = 250 / 15
"""RoboTwin's expert data holds a waypoint for every 15 of 250 physics steps a second."""
JOINT_LIMIT, UR5_LIMIT = 3.7, 6.3
"""Radians beyond which no arm joint of the published embodiments goes (ARX5's second one: 3.65), and none of UR5's."""


@rlvla.config
class RoboTwinConfig:
    """RoboTwin 2.0: two-arm manipulation, in a process and an environment of its own."""

    task: str = "place_empty_cup"
    """One of the fifty tasks, by name."""
    num_envs: Annotated[int, Ge(1)] = 4
    """Environments in all workers together; each is a process of its own."""
    assets: str | None = None
    """Folder that contains ``assets/``; None: what ``ROBOTWIN_ASSETS_ROOT`` names."""
    embodiment: tuple[Embodiment, ...] = ("aloha-agilex",)
    """A two-armed robot, or the robots of the left and the right arm."""
    embodiment_distance: Annotated[float, Gt(0)] = 0.6
    """Metres between the robots, where they are two."""
    planner: Literal["mplib", "curobo"] = "mplib"
    """Who turns waypoints into motion; ``curobo`` has to be built from its repository."""
    shader: Literal["ray-tracing", "default"] = "ray-tracing"
    """RoboTwin's own look, or the rasteriser, whose pictures are not those of the benchmark (for tests and for machines
    without ray tracing). Recorded with results."""
    cameras: tuple[CameraName, ...] = ("head", "left_wrist", "right_wrist")
    """Pictures of an observation, in order."""
    head_camera: CameraType = "D435"
    """Kind of the head's camera: D435 320x240, L515 320x180, Large_... twice that."""
    wrist_cameras: CameraType = "D435"
    """Kind of the wrists' cameras."""
    instructions: Literal["seen", "unseen"] = "seen"
    """Wordings for training, or held-out ones; rendered for each episode's objects and arm."""
    seeds_path: str | None = None
    """JSON file of solvable seeds as RoboTwin's recipes publish it: they become the task's initial states, in order. None:
    any seed, solvable or not."""
    seed_attempts: Annotated[int, Ge(1)] = 10
    """Seeds tried for an episode, counting up from its own, while objects do not come to rest."""
    max_episode_steps: Annotated[int, Ge(1)] | None = None
    """Env steps before an episode is truncated; None: the task's own limit (400 to 1700)."""
    reward_coefficient: Annotated[float, Gt(0)] = 1.0
    """Reward of success."""
    relative_reward: bool = False
    """Reward is what the coefficient times success has grown by since the last chunk: paid once where episodes go on."""
    ignore_terminations: bool = False
    """Episodes go on after success, standing still, until the step limit; every chunk then pays."""
    random_background: bool = False
    """Table and wall wear a texture of ``textures``."""
    textures: Literal["seen", "unseen"] = "unseen"
    """Which textures; the published runtime always takes ``unseen``."""
    cluttered_table: bool = False
    """Ten objects that the task does not need lie on the table."""
    clean_background_rate: Annotated[float, Ge(0), Le(1)] = 1.0
    """Part of the episodes without texture or clutter though they are on; RoboTwin's randomised setting has 0.02."""
    random_head_camera_dis: Annotated[float, Ge(0)] = 0.0
    """Metres that the head's camera moves at most."""
    random_table_height: Annotated[float, Ge(0)] = 0.0
    """Metres that the table is lower at most; 0.03 in RoboTwin's randomised setting."""
    random_light: bool = False
    """Lights have random colours."""
    crazy_random_light_rate: Annotated[float, Ge(0), Le(1)] = 0.0
    """Part of the episodes whose lights flicker."""
    call_timeout_s: Annotated[float, Gt(0)] = 50.0
    """Seconds after which a worker that does not answer is ended and started again."""
    first_call_timeout_s: Annotated[float, Gt(0)] = 540.0
    """The same for a worker's first call, which compiles shaders (a minute and more on a slow software driver)."""


ENVIRONMENT = Environment(
    python=">=3.10,<3.12",
    packages={
        variant: (
            f"sapien=={sapien}",
            "numpy==1.26.4",
            "scipy==1.10.1",
            "mplib==0.2.1",
            "gymnasium==0.29.1",
            "toppra==0.6.10",
            "opencv-python==4.9.0.80",
            "trimesh==4.4.3",
            "transforms3d==0.4.2",
            "imageio[pyav]>=2.38,<3",
            "pillow>=10",
            "huggingface-hub>=0.27.1",
            "setuptools>=69.5.1,<75.9",
        )
        for variant, sapien in (("cpu", "3.0.3"), ("gpu", "3.0.0b1"))
    },
    bare=("rlinf-robotwin-runtime==0.1.3",),
)
"""The runtime's own pins, without torch, open3d, warp and yourdfpy, which no episode uses, and with the first toppra that needs no
compiler (chunks are equal bit for bit with 0.6.3). SAPIEN's release 3.0.0b1, which
the runtime pins, finds no current software driver, so machines without a GPU get 3.0.3."""


def _problems(config: RoboTwinConfig) -> list[str]:
    found = []
    if not config.cameras or len(set(config.cameras)) < len(config.cameras):
        found.append(f"cameras: got {config.cameras}, wanted one or more of {tuple(ROLES)}, each once")
    if len(config.embodiment) not in (1, 2):
        found.append(f"embodiment: got {len(config.embodiment)} names, wanted one two-armed robot, or two robots")
    elif len(set(config.embodiment)) == 2 and config.planner != "curobo":
        found.append(f"embodiment: two different robots ({', '.join(config.embodiment)}) need planner: curobo")
    if config.crazy_random_light_rate and not config.random_light:
        found.append("crazy_random_light_rate: changes nothing without random_light: true")
    if config.clean_background_rate != 1.0 and not (config.random_background or config.cluttered_table):
        found.append("clean_background_rate: changes nothing without random_background or cluttered_table")
    if config.relative_reward and not config.ignore_terminations:
        found.append("relative_reward: changes nothing where success ends the episode: set ignore_terminations: true")
    return found + _idle(config)


def _idle(config: RoboTwinConfig) -> list[str]:
    """Name options that are set and change nothing beside the others."""
    head, wrists = "head" in config.cameras, any(name != "head" for name in config.cameras)
    used = {
        "embodiment_distance": (len(config.embodiment) == 2, "with one two-armed robot"),
        "head_camera": (head, "without the camera 'head'"),
        "random_head_camera_dis": (head, "without the camera 'head'"),
        "wrist_cameras": (wrists, "without a wrist's camera"),
        "textures": (config.random_background, "without random_background: true"),
    }
    default = RoboTwinConfig()
    return [
        f"{name}: changes nothing {why}"
        for name, (changes, why) in used.items()
        if not changes and getattr(config, name) != getattr(default, name)
    ]


def _size(config: RoboTwinConfig, camera: str) -> tuple[int, int]:
    return SIZES[config.head_camera if camera == "head" else config.wrist_cameras]


def _state() -> tuple[StatePart, ...]:
    return tuple(
        part
        for side in ("left", "right")
        for part in (StatePart(f"{side}_arm", 6, "rad", frame="joint"), StatePart(f"{side}_gripper", 1))
    )


def _action(config: RoboTwinConfig) -> tuple[ActionPart, ...]:
    limit = UR5_LIMIT if "ur5-wsg" in config.embodiment else JOINT_LIMIT
    return tuple(
        part
        for side in ("left", "right")
        for part in (
            ActionPart(f"{side}_arm", 6, "absolute", -limit, limit, unit="rad", frame="joint"),
            ActionPart(f"{side}_gripper", 1, "gripper", 0.0, 1.0, frame="joint", closes_at="low"),
        )
    )


def _notes(config: RoboTwinConfig) -> tuple[str, ...]:
    notes = ["rlinf-robotwin-runtime 0.1.3; the state is what the joints are driven to, not where they are"]
    if config.shader == "default":
        notes.append("shader 'default': pictures are not those of the benchmark, report no success from them")
    if config.seeds_path is None:
        notes.append("no seeds file: seeds may be unsolvable; pass seeds_path")
    return tuple(notes)


def describe(config: RoboTwinConfig) -> SimulatorSpec:
    """Return what RoboTwin offers with these settings.

    Raises:
        ConfigError: an unknown task, a seeds file that cannot be used, or settings that do not go together.
    """
    problems = _problems(config)
    states = 0
    if config.task not in tasks.STEP_LIMITS:
        problems.append(tasks.unknown(config.task))
    elif config.seeds_path is not None:
        try:
            states = len(seeds.read(config.seeds_path, config.task))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return SimulatorSpec(
        cameras=tuple(Camera(name, *_size(config, name), ROLES[name]) for name in config.cameras),
        state=_state(),
        action=_action(config),
        control_hz=CONTROL_HZ,
        max_episode_steps=config.max_episode_steps or tasks.STEP_LIMITS[config.task],
        tasks=(TaskSpec(config.task, initial_states=states),),
        rows_per_worker=1,
        call_timeout_s=config.call_timeout_s,
        first_call_timeout_s=config.first_call_timeout_s,
        restorable=True,
        seeded_starts=config.seeds_path is None,
        max_instruction_bytes=512,
        notes=_notes(config),
    )


plugin: rlvla.Plugin[RoboTwinConfig, RoboTwinSimulator] = rlvla.Plugin(
    config=RoboTwinConfig,
    target="rlvla_sim_robotwin.simulator:RoboTwinSimulator",
    describe=describe,
    doctor="rlvla_sim_robotwin.doctor:checks",
    preflight="rlvla_sim_robotwin.startup:problems",
    drawing="name a Vulkan driver's manifest that SAPIEN draws with in VK_ICD_FILENAMES; where none can trace rays: --sim.shader default",
    environment=ENVIRONMENT,
)
