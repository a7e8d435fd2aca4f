"""A small MuJoCo table: push the block that the instruction names.

Installs in seconds, renders in 0.1 ms on a CPU, and is learnt from pictures in a minute: what a newcomer, the tutorial
and the tests run first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.environments import Environment
from rlvla.errors import ConfigError
from rlvla.specs import ActionPart, Camera, SimulatorCost, SimulatorSpec, StatePart, TaskSpec
from rlvla_sim_tabletop import backends

if TYPE_CHECKING:
    from rlvla.simulator import Simulator

__version__ = "0.1.0"

COLOURS = ("red", "green", "blue")
TEMPLATES = ("push the {} block", "move the {} cube", "shove the {} one", "please nudge the {} block")


@rlvla.config
class TabletopConfig:
    """Push the block that the instruction names, on a small MuJoCo table."""

    num_envs: Annotated[int, Ge(1), Le(4096)] = 64
    """Environments in all workers together."""
    image_size: Annotated[int, Ge(16), Le(512)] = 64
    """Height and width of the picture, in pixels."""
    max_episode_steps: Annotated[int, Ge(1)] = 40
    """Env steps after which an episode is truncated."""
    shaped_reward: bool = True
    """Reward progress (4 x change of potential) and punish the wrong block; off: 1 at success, nothing else."""
    spacing: Annotated[float, Gt(0), Le(0.18)] = 0.16
    """Smallest distance between blocks and hand at the start, in metres; closer ones get knocked on the way."""
    backend: Literal["cpu", "gpu"] = "cpu"
    """``cpu`` steps tables one by one in worker processes; ``gpu`` all of a slot at once by MuJoCo Warp, in the process of the
    model, where pictures stay on the GPU."""
    device: str = "cuda"
    """With ``gpu``: ``cuda``, ``cuda:N``, or ``cpu`` to try the batched physics where there is no GPU (slow)."""
    deterministic: bool = False
    """With ``gpu``: equal bits from equal starts and actions on one machine, whoever else is stepped and however many tables a slot
    has. Needs mujoco-warp 4.0.0, and costs time on a GPU. Without it the last digits depend on the number of tables, and on a GPU on
    chance."""


def describe(config: TabletopConfig) -> SimulatorSpec:
    """Return what the table offers: one oblique camera, the hand's position, and a 3-D hand displacement.

    Raises:
        ConfigError: options that do not go together.
    """
    if problems := backends.problems(config):
        raise ConfigError(problems)
    batched = config.backend == "gpu"
    return SimulatorSpec(
        cameras=(Camera("front", config.image_size, config.image_size),),
        state=(StatePart("hand_position", 3, "normalised"),),
        action=(ActionPart("hand_delta", 3, scale=0.05),),
        control_hz=20.0,
        max_episode_steps=config.max_episode_steps,
        tasks=tuple(_task(colour) for colour in COLOURS),
        device="gpu" if batched and config.device != "cpu" else "cpu",
        in_process=batched and not backends.runs_apart(config),
        restorable=True,
        expert=True,
        cost=None if batched else SimulatorCost("2 CPU cores", step=0.00018, reset=0.0017, memory_gib=0.02),
        max_instruction_bytes=max(len(text.format(colour)) for text in TEMPLATES for colour in COLOURS),
        notes=_notes(config) if batched else (),
    )


def _notes(config: TabletopConfig) -> tuple[str, ...]:
    notes = ["MuJoCo Warp: float32 physics and ray-traced pictures, close to those of the CPU backend but not equal"]
    if config.device != "cpu" and not config.deterministic:
        notes.append("deterministic is off: equal starts and actions part in the last digits once blocks are touched")
    return tuple(notes)


def _task(colour: str) -> TaskSpec:
    wordings = tuple(template.format(colour) for template in TEMPLATES)
    return TaskSpec(f"push_{colour}", wordings[0], wordings=wordings)


ENVIRONMENT = Environment(
    python=">=3.11",
    packages={"cpu": backends.REQUIREMENTS, "gpu": backends.REQUIREMENTS},
    over=True,
)
"""For the GPU backend where other simulators hold MuJoCo back: newer versions over the packages of this interpreter."""

plugin: rlvla.Plugin[TabletopConfig, Simulator] = rlvla.Plugin(
    config=TabletopConfig,
    target="rlvla_sim_tabletop.backends:simulator",
    describe=describe,
    environment=ENVIRONMENT,
    apart=backends.runs_apart,
    drawing=(
        "with backend cpu choose another renderer: MUJOCO_GL=osmesa draws on the CPU, MUJOCO_EGL_DEVICE_ID names another GPU; backend "
        "gpu draws by CUDA: look at the device and its driver"
    ),
)
