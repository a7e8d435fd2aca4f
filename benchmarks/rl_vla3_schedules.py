"""RL-VLA3's schedules as schedulers on our graph, from what their code does, and full-async without what they lack.

Used by ``virtual_rl_vla3.py``.
"""

from __future__ import annotations

import asyncio
from asyncio import TaskGroup
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rlvla.graph import Graph
from rlvla.rollout import Slot
from rlvla.scheduler import Scheduler
from rlvla.specs import SchedulerSpec
from rlvla_sched_full_async.scheduler import FullAsyncScheduler

GPUS, WAVES = 8, 4
"""Of the paper's machine, and of windows for each new version of the weights."""


class Turns:
    """Strict order: each of a fixed round has its turn, whoever is ready."""

    def __init__(self) -> None:
        self._round: list[int] = []
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def join(self, number: int) -> None:
        """Enter the round, at its end."""
        if number not in self._round:
            self._round.append(number)
            self._wake()

    def leave(self, number: int) -> None:
        """Leave the round: without work until further notice."""
        if number in self._round:
            self._round.remove(number)
            self._wake()

    @contextmanager
    def _passing_on(self, number: int) -> Iterator[None]:
        try:
            yield
        finally:
            self._round.remove(number)
            self._round.append(number)
            self._wake()

    async def have(self, number: int, doing: Callable[[], Any]) -> None:
        """Wait for one's turn, and pass it on when the work is done."""
        if self._round[0] != number:
            self._waiting[number] = asyncio.get_running_loop().create_future()
            await self._waiting[number]
        with self._passing_on(number):
            await doing()

    def _wake(self) -> None:
        if self._round and (one := self._waiting.pop(self._round[0], None)) is not None:
            one.set_result(None)


@dataclass
class RlVla3(Scheduler):
    """All waves of a version are rolled out by its weights.

    ``ss``: a GPU's stages take turns at its generator and again at its one environment loop. ``as``: stages are threads, the
    generator serves them in strict rounds, one at a time. ``aa``: and a wave is trained on while the next is played; weights
    are pushed when all is done.
    """

    mode: Literal["ss", "as", "aa"]
    ordered: bool = True
    """Strict rounds; else first come, first served, in batches."""

    def __post_init__(self) -> None:
        self.spec = SchedulerSpec(on_policy=False, max_staleness=WAVES - 1)

    async def run(self, graph: Graph, until: int) -> None:
        while graph.steps_done < until:
            await graph.publish()
            graph.admit()
            generators, loops = [Turns() for _ in range(GPUS)], [Turns() for _ in range(GPUS)]
            async with TaskGroup() as tasks:
                for slot in graph.slots:
                    gpu = slot.number * GPUS // len(graph.slots)
                    tasks.create_task(self._play(graph, slot, generators[gpu], loops[gpu]), name=f"slot-{slot.number}")
                if self.mode == "aa":
                    await self._train(graph)
            if self.mode != "aa":
                await self._train(graph)

    async def _train(self, graph: Graph) -> None:
        for _ in range(WAVES):
            await graph.complete()
            await graph.train()

    async def _play(self, graph: Graph, slot: Slot, generator: Turns, loop: Turns) -> None:
        generator.join(slot.number)
        loop.join(slot.number)
        while await graph.begin([slot]):
            if self.ordered:
                await generator.have(slot.number, lambda: graph.generate([slot], alone=True))
            else:
                await graph.generate([slot])
            if self.mode == "ss":
                await loop.have(slot.number, lambda: graph.step(slot))
            else:
                await graph.step(slot)


class StopsToPublish(FullAsyncScheduler):
    """Nobody plays while weights travel."""

    async def run(self, graph: Graph, until: int) -> None:
        async with TaskGroup() as tasks:
            for slot in graph.slots:
                tasks.create_task(self._play(graph, slot), name=f"slot-{slot.number}")
            while graph.steps_done < until:
                async with graph.paused():
                    await graph.publish()
                await graph.complete()
                await graph.train()
            graph.finish()


class InOrder(FullAsyncScheduler):
    """A GPU's generator serves the slots that have work in strict rounds, one at a time."""

    async def run(self, graph: Graph, until: int) -> None:
        self._turns = [Turns() for _ in range(GPUS)]
        await super().run(graph, until)

    async def _play(self, graph: Graph, slot: Slot) -> None:
        turns = self._turns[slot.number * GPUS // len(graph.slots)]
        while not graph.over:
            while await graph.find_work([slot]):
                turns.join(slot.number)
                await turns.have(slot.number, lambda: graph.generate([slot], alone=True))
                await graph.step(slot)
                if not slot.working():
                    turns.leave(slot.number)
            turns.leave(slot.number)
            await graph.new_weights()
