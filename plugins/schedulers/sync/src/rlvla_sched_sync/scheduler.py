"""Who waits for whom: everybody for everybody."""

from __future__ import annotations

from asyncio import gather

from rlvla.graph import Graph
from rlvla.scheduler import Scheduler
from rlvla_sched_sync import SyncConfig, describe


class SyncScheduler(Scheduler):
    """New weights before each rollout, one batch of all slots a chunk, training after the last unit."""

    def __init__(self, config: SyncConfig) -> None:
        self.spec = describe(config)

    async def run(self, graph: Graph, until: int) -> None:
        while graph.steps_done < until and not graph.stopping:
            await graph.publish()
            while graph.admit():  # tickets of one training step, and again for units that were filtered
                while working := await graph.begin(graph.slots):
                    await graph.generate(working)
                    await gather(*(graph.step(slot) for slot in working))
            await graph.train()
