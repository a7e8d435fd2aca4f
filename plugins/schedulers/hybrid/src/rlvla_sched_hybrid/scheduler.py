"""Who waits for whom: a stage of slots for a generator and for its slowest slot; training for all; a rollout for it."""

from __future__ import annotations

from asyncio import Lock, TaskGroup, gather
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, nullcontext

from rlvla.graph import Graph
from rlvla.rollout import Slot
from rlvla.scheduler import Scheduler
from rlvla_sched_hybrid import HybridConfig, describe


class HybridScheduler(Scheduler):
    """New weights before each rollout, stages that take turns at the generators, training after the last unit."""

    def __init__(self, config: HybridConfig) -> None:
        self.spec = describe(config)
        self._stages = config.stages

    async def run(self, graph: Graph, until: int) -> None:
        while graph.steps_done < until and not graph.stopping:
            await graph.publish()
            turns: defaultdict[int, Lock] = defaultdict(Lock)
            async with TaskGroup() as stages:
                for number, stage in enumerate(self._split(graph)):
                    turn = turns[stage[0].device] if graph.shared_devices else nullcontext()
                    stages.create_task(self._play(graph, stage, turn), name=f"stage-{number}")
            await graph.train()

    async def _play(self, graph: Graph, stage: list[Slot], turn: AbstractAsyncContextManager[None]) -> None:
        while working := await graph.find_work(stage):
            await graph.generate(working, alone=True)
            async with turn:  # at once on one device, two stages would stay in phase for ever
                await gather(*(graph.step(slot) for slot in working))

    def _split(self, graph: Graph) -> list[list[Slot]]:
        """Return the stages of every device, the first ones first."""
        devices = sorted({slot.device for slot in graph.slots})
        on = [[slot for slot in graph.slots if slot.device == device] for device in devices]
        count = self._stages or self._derived(graph, min(map(len, on), default=0))
        return [slots[number::count] for number in range(count) for slots in on if number < len(slots)]

    def _derived(self, graph: Graph, most: int) -> int:
        """Return the number of stages with the shortest round; two until something was measured."""
        choices = [count for count in (1, 2, 4) if count <= most]
        seconds = {count: graph.round_seconds(count) for count in choices}
        known = {count: one for count, one in seconds.items() if one is not None}
        return min(known, key=lambda count: (known[count], count)) if known else min(2, most)
