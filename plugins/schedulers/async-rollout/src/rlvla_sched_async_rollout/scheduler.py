"""Who waits for whom: a slot for its own chunk and its own step, the trainer for all slots, the next rollout for it."""

from __future__ import annotations

from asyncio import TaskGroup

from rlvla.graph import Graph
from rlvla.rollout import Slot
from rlvla.scheduler import Scheduler
from rlvla_sched_async_rollout import AsyncRolloutConfig, describe


class AsyncRolloutScheduler(Scheduler):
    """New weights before each rollout, slots that do not wait for each other, training after the last unit."""

    def __init__(self, config: AsyncRolloutConfig) -> None:
        self.spec = describe(config)

    async def run(self, graph: Graph, until: int) -> None:
        while graph.steps_done < until and not graph.stopping:
            await graph.publish()
            async with TaskGroup() as slots:
                for slot in graph.slots:
                    slots.create_task(self._play(graph, slot), name=f"slot-{slot.number}")
            await graph.train()

    async def _play(self, graph: Graph, slot: Slot) -> None:
        while await graph.find_work([slot]):  # until all units of the training step are finished
            await graph.generate([slot])
            await graph.step(slot)
