"""The scheduler contract: who waits for whom. It sees slots and receipts: no tensors, no batching, no versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvla.graph import Graph
    from rlvla.specs import SchedulerSpec


class Scheduler(ABC):
    """An async function over the graph. The smallest one that learns, all slots in phase::

        async def run(self, graph, until):
            while graph.steps_done < until:
                await graph.publish()                               # the newest weights to all generators
                graph.admit()                                       # tickets for one training step
                while working := await graph.begin(graph.slots):    # slots that have an episode to continue
                    await graph.generate(working)                   # one chunk for each of their rows
                    await gather(*(graph.step(slot) for slot in working))
                await graph.train()

    Take time only from the running event loop; start tasks only in a ``TaskGroup`` or with ``gather``.
    """

    spec: SchedulerSpec

    @abstractmethod
    def __init__(self, config: Any) -> None: ...

    @abstractmethod
    async def run(self, graph: Graph, until: int) -> None:
        """Drive the graph until ``until`` training steps are done, or ``graph.stopping``."""
