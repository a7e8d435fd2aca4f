"""Stand-ins with known answers: an algorithm or scheduler author needs neither GPU nor simulator.

Registered as ``fake`` like any plugin, so ``rlvla train --sim fake --model fake ...`` works from the plain install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt

import rlvla
from rlvla.specs import ActionPart, Camera, ModelSpec, SimulatorSpec, StatePart, TaskSpec

if TYPE_CHECKING:
    from rlvla.testing.fakes.model import FakeModel
    from rlvla.testing.fakes.simulator import FakeSimulator

STEP = 0.25
"""Farthest move of one action in the fake world."""
TOLERANCE = 0.05
SIZE = 8
"""Height and width of the fake picture."""


@rlvla.config
class FakeSimConfig:
    """A fake: reach a goal on a line in steps of at most 0.25; the fewest steps are known."""

    num_envs: Annotated[int, Ge(1)] = 8
    """Environments in all workers together."""
    max_episode_steps: Annotated[int, Ge(1)] = 12
    """Env steps after which an episode is truncated."""
    initial_states: Annotated[int, Ge(0)] = 0
    """Stored initial states of each of the two tasks (reach left, reach right); 0: drawn from the seed."""
    batched: bool = False
    """Stands for a batched simulator on a GPU: all rows in torch tensors, inside the process of the model."""
    step_seconds: Annotated[float, Ge(0)] = 0.0
    """Sleep in each chunk step, in seconds."""
    fault: Literal["none", "start", "die", "hang", "raise", "nan", "slow", "hang_start"] = "none"
    """What goes wrong: at the start (``hang_start`` never ends it), or once in the ``fault_step``-th chunk step of the first worker that gets there
    (the process dies, the call hangs, raises, or gives a reward that is not a number; ``slow``: from then on each takes
    ten times ``step_seconds``)."""
    fault_step: Annotated[int, Ge(1)] = 3
    """Chunk step of a worker at which the fault happens."""
    fault_file: str = ""
    """Made when the fault happens; while it exists, nothing goes wrong. Empty: the fault happens every time."""


def describe_simulator(config: FakeSimConfig) -> SimulatorSpec:
    """Return what the line offers."""
    return SimulatorSpec(
        cameras=(Camera("front", SIZE, SIZE), Camera("wrist", SIZE, SIZE, role="wrist")),
        state=(StatePart("place", 1), StatePart("goal", 1)),
        action=(ActionPart("move", 1), ActionPart("idle", 1)),
        control_hz=10.0,
        max_episode_steps=config.max_episode_steps,
        tasks=tuple(
            TaskSpec(f"reach_{side}", f"reach the {side}", config.initial_states) for side in ("left", "right")
        ),
        device="gpu" if config.batched else "cpu",
        in_process=config.batched,
        restorable=True,
        expert=True,
        max_instruction_bytes=16,
    )


simulator_plugin: rlvla.Plugin[FakeSimConfig, FakeSimulator] = rlvla.Plugin(
    config=FakeSimConfig, target="rlvla.testing.fakes.simulator:FakeSimulator", describe=describe_simulator
)


@rlvla.config
class FakeModelConfig:
    """A fake: a linear policy on the state, with action tokens and real log-probs at every level."""

    horizon: Annotated[int, Ge(1)] = 3
    """Actions in a chunk."""
    bins: Annotated[int, Ge(2)] = 5
    """Tokens of an action dimension."""
    scale: Annotated[float, Gt(0)] = 1.0
    """Of the fresh weights."""


def describe_model(config: FakeModelConfig) -> ModelSpec:
    """Return what the policy needs and gives."""
    return ModelSpec(horizon=config.horizon, tokens_per_action=None, cameras=(), state=False, imitation=True)


model_plugin: rlvla.Plugin[FakeModelConfig, FakeModel] = rlvla.Plugin(
    config=FakeModelConfig, target="rlvla.testing.fakes.model:FakeModel", describe=describe_model
)
