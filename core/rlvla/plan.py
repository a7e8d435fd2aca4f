"""What a run will cost, from a short trial of its own parts: seconds a step, hours to the end, memory."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING

from rlvla.seeds import derive
from rlvla.specs import Start

if TYPE_CHECKING:
    from rlvla.engine import Engine

_GIB = 2.0**30


def cost_line(engine: Engine) -> str:
    """Return one paragraph. Runs a chunk in every environment and a gradient on it; changes neither weights nor episodes."""
    specs, run = engine.specs, engine.config.run
    if specs.algo.unit == "demonstration":
        remaining, size = run.steps - engine.graph.steps_done, specs.algo.minibatch_size or specs.units_per_step
        of = f"{specs.units_per_step} demonstrated chunks, {-(-specs.units_per_step // size)} optimizer steps each"
        return f"{remaining} steps of {of}; nothing is rolled out\n{_memory(engine)}"
    rollout_s, train_s = engine.wait(_trial(engine))
    remaining = run.steps - engine.graph.steps_done
    trajectories = specs.units_per_step * specs.algo.group_size
    rounds = -(-trajectories // specs.num_envs) * specs.trajectory_chunks
    optimizer_steps = specs.algo.passes * -(
        -specs.samples_per_step // (specs.algo.minibatch_size or specs.samples_per_step)
    )
    lines = [
        f"{remaining} steps of {specs.units_per_step} {specs.algo.unit}s: up to {specs.samples_per_step} chunks, "
        f"{specs.samples_per_step * specs.model.horizon} env steps and {optimizer_steps} optimizer steps each; "
        f"{specs.num_envs} environments in {len(specs.slots)} slots of {min(specs.slots)} to {max(specs.slots)}",
    ]
    if rollout_s is None:
        lines.append("time: see the steps before the resume")
    else:
        rollout, train = rounds * rollout_s, specs.algo.passes * specs.samples_per_step * train_s
        lines.append(
            f"at most about {rollout + train:.2g} s a step (rollout {rollout:.2g}, training {train:.2g}), "
            f"{_duration(remaining * (rollout + train))} to the end, evaluation apart"
        )
    lines.append(_memory(engine))
    return "\n".join(lines)


async def _trial(engine: Engine) -> tuple[float | None, float]:
    """Return seconds of a chunk in all environments (None where live episodes must not be touched), and of training a
    sample."""
    slots = engine.graph.slots
    if any(row.live for slot in slots for row in slot.rows):
        return None, 0.0
    seconds = []
    for _ in range(2):  # the first call of anything is slow
        for slot in slots:
            rows = list(range(len(slot.rows)))
            seeds = [derive(0, "trial", row.number) for row in slot.rows]
            states = engine.specs.sim.tasks[0].initial_states
            starts = [Start(0, 0 if states else None)] * len(rows)
            _, slot.observation = await slot.actor.call("reset", rows, seeds, starts, {}, returns=1)
        began = time.perf_counter()
        _, *actions = await engine.generator.call(
            "act",
            [slot.observation for slot in slots],
            [list(range(len(slot.rows))) for slot in slots],
            [[row.number for row in slot.rows] for slot in slots],
            [[row.number for row in slot.rows] for slot in slots],
            returns=len(slots),
        )
        stepping = [
            slot.actor.call("step", action, list(range(len(slot.rows))), returns=2)
            for slot, action in zip(slots, actions, strict=True)
        ]
        await asyncio.gather(*stepping)
        seconds.append(time.perf_counter() - began)
    (of_sample,) = await engine.trainer.call("trial", slots[0].observation, actions[0])
    return seconds[-1], of_sample


def _memory(engine: Engine) -> str:
    specs = engine.specs
    pictures = sum(camera.height * camera.width * 3 for camera in specs.sim.cameras)
    collected = specs.samples_per_step * pictures
    weights = engine.parameters * 4 + engine.trainable * 4 * 4  # acting copy, gradient and Adam's two moments
    free = shutil.disk_usage(engine.directory).free
    return (
        f"memory: {weights / _GIB:.2g} GiB for weights, gradients and optimizer, up to {2 * collected / _GIB:.2g} GiB for "
        f"the pictures of a training step; disk: {engine.trainable * 12 / _GIB:.2g} GiB a checkpoint "
        f"({free / _GIB:.0f} GiB free)"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
