"""Who waits for whom: a slot for a ticket, its chunk and its step; the trainer for the units of its step; nobody else."""

from __future__ import annotations

from asyncio import TaskGroup

from rlvla.graph import Graph
from rlvla.rollout import Slot
from rlvla.scheduler import Scheduler
from rlvla_sched_full_async import FullAsyncConfig, describe


class FullAsyncScheduler(Scheduler):
    """Slots play whatever may start by the bound on staleness, beside training and beside publication."""

    def __init__(self, config: FullAsyncConfig) -> None:
        self.spec = describe(config)

    async def run(self, graph: Graph, until: int) -> None:
        async with TaskGroup() as tasks:
            for slot in graph.slots:
                tasks.create_task(self._play(graph, slot), name=f"slot-{slot.number}")
            while graph.steps_done < until and not graph.stopping:
                tasks.create_task(graph.publish(), name="publish")  # beside rollouts and the training step
                await graph.complete()
                await graph.train()
            graph.finish()

    async def _play(self, graph: Graph, slot: Slot) -> None:
        while not graph.over:
            while await graph.find_work([slot]):
                await graph.generate([slot])
                await graph.step(slot)
            await graph.new_weights()  # they admit the units of a further step
