"""Measures the parts of a run on this machine, each while nothing else runs; changes neither weights nor live episodes."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from rlvla import devices
from rlvla.profile import Profile, core_share
from rlvla.seeds import derive
from rlvla.specs import Start

if TYPE_CHECKING:
    from rlvla.engine import Engine
    from rlvla.rollout import Slot


async def measure(engine: Engine, repeats: int = 3) -> Profile | None:
    """Return a profile of a run whose simulators stand; None where live episodes must not be touched.

    Args:
        engine: of the run.
        repeats: chunk steps, and batches, of each size; one more comes before, since the first of anything is slow.
    """
    slots = engine.graph.slots
    if not slots or any(row.live for slot in slots for row in slot.rows):
        return None
    first = _First(engine, slots[0])
    rows = len(slots[0].rows)
    await first.reset(list(range(rows)))
    for size in sorted({1, -(-rows // 2), rows}):
        for _ in range(repeats + 1):
            await first.chunk(list(range(size)))
    for size in _batches(rows, engine.specs.num_envs):
        for _ in range(repeats + 1):
            await first.act([place % rows for place in range(size)])
    (train_sample,) = await engine.trainer.call("trial", slots[0].observation, first.action)
    snapshot, offer = await _publication(engine)
    return Profile(
        machine=devices.machine(),
        cores=devices.usable_cores(),
        sim=engine.config.sim.name,
        model=engine.config.model.name,
        horizon=engine.specs.model.horizon,
        device=engine.device,
        simulate={size: tuple(some[1:]) for size, some in first.stepped.items()},
        generate={size: median(some[1:]) for size, some in first.acted.items()},
        reset=median(first.resets),
        train_sample=train_sample,
        snapshot=snapshot,
        offer=offer,
        parameters=engine.parameters,
        trainable=engine.trainable,
        core_share=core_share(first.simulated),
    )


class _First:
    """The first slot, played alone."""

    def __init__(self, engine: Engine, slot: Slot) -> None:
        self._engine = engine
        self._slot = slot
        self._played = 0
        self.action: Any = None
        self.stepped: defaultdict[int, list[float]] = defaultdict(list)
        self.acted: defaultdict[int, list[float]] = defaultdict(list)
        self.resets: list[float] = []
        self.simulated: list[tuple[float, float]] = []
        """Seconds and processor seconds of each chunk step, as its actor measured them."""

    async def reset(self, rows: list[int]) -> None:
        states = self._engine.specs.sim.tasks[0].initial_states
        seeds = [derive(0, "trial", self._played, row) for row in rows]
        starts = [Start(0, 0 if states else None)] * len(rows)
        began = time.perf_counter()
        _, self._slot.observation = await self._slot.actor.call("reset", rows, seeds, starts, {}, returns=1)
        self.resets.append((time.perf_counter() - began) / len(rows))

    async def act(self, rows: list[int]) -> Any:
        """Choose chunks for rows, which may repeat."""
        places = list(range(len(rows)))
        generator, seen = self._engine.generators[0], [self._slot.observation]
        began = time.perf_counter()
        _, action = await generator.call("act", seen, [rows], [places], [places], returns=1)
        self.acted[len(rows)].append(time.perf_counter() - began)
        return action

    async def chunk(self, rows: list[int]) -> None:
        """Play a chunk in rows, and start those again whose episode ended."""
        self._played += 1
        self.action = await self.act(rows)
        began = time.perf_counter()
        receipt, self._slot.observation, _ = await self._slot.actor.call("step", self.action, rows, returns=2)
        self.stepped[len(rows)].append(time.perf_counter() - began)
        self.simulated.append((receipt.seconds, receipt.cpu_seconds))
        if ended := [one.row for one in receipt.ended]:
            await self.reset(ended)


def _batches(rows: int, num_envs: int) -> list[int]:
    """Return further sizes of a batch, doubling up to all environments."""
    sizes = []
    while rows < num_envs:
        rows = min(2 * rows, num_envs)
        sizes.append(rows)
    return sizes


async def _publication(engine: Engine) -> tuple[float, float]:
    """Return seconds of the trainer's and of the generator's part of a publication, the second time."""
    for _ in range(2):
        began = time.perf_counter()
        version, weights = await engine.trainer.call("publish", "latest", returns=1)
        copied = time.perf_counter()
        await engine.generators[0].call("offer", weights, version)
        ended = time.perf_counter()
    return copied - began, ended - copied
