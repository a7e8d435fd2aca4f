"""A point on a line and a mark to reach: the smallest simulator that a policy can learn from pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

import rlvla
from rlvla.specs import ActionPart, Camera, SimulatorSpec, StatePart, TaskSpec

if TYPE_CHECKING:
    from line_world.simulator import LineWorld

__version__ = "1.0.0"

TASKS = ("reach the mark", "reach the other end")


@rlvla.config
class LineWorldConfig:
    """A point on a line."""

    num_envs: Annotated[int, Ge(1)] = 16
    """Environments in all workers together."""
    max_episode_steps: Annotated[int, Ge(1)] = 24
    """Env steps after which an episode is truncated."""
    pixels: Annotated[int, Ge(16)] = 32
    """Height and width of the picture."""


def describe(config: LineWorldConfig) -> SimulatorSpec:
    """Return what the line offers."""
    return SimulatorSpec(
        cameras=(Camera("front", config.pixels, config.pixels),),
        state=(StatePart("position", 1, "normalised"),),
        action=(ActionPart("move", 1),),
        control_hz=10.0,
        max_episode_steps=config.max_episode_steps,
        tasks=tuple(TaskSpec(text.replace(" ", "_"), text) for text in TASKS),
        max_instruction_bytes=32,
    )


plugin: rlvla.Plugin[LineWorldConfig, LineWorld] = rlvla.Plugin(
    config=LineWorldConfig, target="line_world.simulator:LineWorld", describe=describe
)
