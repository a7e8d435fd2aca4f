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
            while graph.steps_done < until and not graph.stopping:
                await graph.publish()                               # the newest weights to all generators
                while graph.admit():                                # tickets of a training step, until enough survive
                    while working := await graph.begin(graph.slots):    # slots that have a chunk to play
                        await graph.generate(working)               # one chunk for each of their rows
                        await gather(*(graph.step(slot) for slot in working))
                await graph.train()

    One that overlaps runs such a loop for each slot, beside one that trains::

        async def play(self, graph, slot):
            while await graph.find_work([slot]):                    # waits for a ticket; opens what may start
                await graph.generate([slot])                        # in one batch with others that wait
                await graph.step(slot)

    and has further ``graph.complete()`` (all units of the next training step are there), ``graph.new_weights()`` and
    ``graph.finish()``. How old a unit may get is bounded by ``spec.max_staleness``, by the graph. ``spec.phases`` says which
    activities overlap; a run's schedule bound and overlap efficiency follow from it.

    Take time only from the running event loop; start tasks only in a ``TaskGroup`` or with ``gather``: the graph then runs
    as well in virtual time (:mod:`rlvla.testing.virtual`).
    """

    spec: SchedulerSpec

    @abstractmethod
    def __init__(self, config: Any) -> None: ...

    @abstractmethod
    async def run(self, graph: Graph, until: int) -> None:
        """Drive the graph until ``until`` training steps are done, or ``graph.stopping``."""
