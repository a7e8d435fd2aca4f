"""Tickets: which unit belongs to which training step, and which may start now. Admission, so that nothing is wasted.

Units carry tickets in order. Training step s (from 0, it turns version s into version s + 1) takes the next
``units_per_step`` tickets that survive, in ticket order, whoever finished first. A ticket's *place* counts the survivors
and the open tickets before it, from the next step to be trained (while a step trains, from the one after it). A unit may
start while its place belongs to a step <= acting version + ``max_staleness``. A dropped unit gives up its place and all
later ones move forward, so that

* what a step trains on does not depend on who was fast,
* no chunk of it is older than ``max_staleness`` versions: places only move forward, acting versions only go up,
* nothing that is finished and kept is ever thrown away, and
* there are never more than ``(max_staleness + 1) * units_per_step`` units beside those in training: memory is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from rlvla.receipts import UnitReport


class Tickets:
    """The order of a run's units; tickets are opened in rising order. Plain bookkeeping: it waits for nothing.

    Example:
        >>> tickets = Tickets(units_per_step=2, max_staleness=0, keep=lambda report: True)
        >>> tickets.version = 0
        >>> tickets.admissible(until=10)
        2

    Args:
        units_per_step: units that a training step takes.
        max_staleness: versions that the weights of a unit's oldest chunk may lie behind those that it trains.
        keep: says whether a finished unit is trained on.
        budget: units that ``keep`` may judge in a training step; those beyond are kept. None: no bound.
    """

    def __init__(
        self,
        units_per_step: int,
        max_staleness: int,
        keep: Callable[[UnitReport], bool],
        budget: float | None = None,
    ) -> None:
        self.units_per_step = units_per_step
        self.max_staleness = max_staleness
        self.step = 0
        """Number of the next step to be trained: steps before it have taken their tickets."""
        self.version = -1
        """Of the weights that the next batch of every generator will use; -1: none were published."""
        self._keep = keep
        self._budget = budget
        self._places: list[int] = []
        """Tickets that are open or kept, and not taken, in order."""
        self._kept: set[int] = set()
        self._unpassed: deque[int] = deque()
        """Opened tickets from the first that is not finished on: what the budget counts, in ticket order."""
        self._fates: dict[int, UnitReport | bool] = {}
        """Unpassed tickets that are finished: kept, dropped, or a report that waits for its turn under the budget."""
        self._numbers: dict[int, int] = {}
        """Unpassed tickets, counted as they were opened."""
        self._opened = 0
        self._judged = 0
        """Units passed for the step that the first unpassed ticket belongs to."""
        self._survived = 0
        """Units kept for that step."""

    # ---- admission ----------------------------------------------------------------------------------------------

    def admissible(self, until: int) -> int:
        """Return how many tickets may be opened now, for steps below ``until``.

        Raises:
            ValueError: nobody published any weights.
        """
        if self.version < 0:
            raise ValueError("no weights to act with: call graph.publish() before graph.admit()")
        last = min(self.version + self.max_staleness, until - 1)
        return max(0, (last + 1 - self.step) * self.units_per_step - len(self._places))

    def open(self, tickets: Iterable[int]) -> None:
        """Note tickets that were opened, in order."""
        for ticket in tickets:
            self._places.append(ticket)
            self._unpassed.append(ticket)
            self._numbers[ticket] = self._opened
            self._opened += 1

    @property
    def playing(self) -> bool:
        """A ticket is open: its unit is not finished, or waits for an earlier one to be judged."""
        return len(self._kept) < len(self._places)

    # ---- judgement ----------------------------------------------------------------------------------------------

    def finish(self, report: UnitReport) -> list[int]:
        """Judge a finished unit; returns tickets that are dropped.

        The budget counts in ticket order. A unit that is surely within it, or kept anyway, is judged at once; any other
        waits for the earlier ones, so that its fate does not depend on who finished first.
        """
        ticket = report.ticket
        dropped = []
        if self._keep(report):
            self._fates[ticket] = True
            self._kept.add(ticket)
        elif self._within_budget(self._judged + self._numbers[ticket] - self._numbers[self._unpassed[0]]):
            self._fates[ticket] = False
            dropped.append(ticket)
        else:
            self._fates[ticket] = report
        while self._unpassed and self._unpassed[0] in self._fates:
            first = self._unpassed.popleft()
            del self._numbers[first]
            fate = self._fates.pop(first)
            if isinstance(fate, UnitReport):
                fate = not self._within_budget(self._judged)
                if fate:
                    self._kept.add(first)
                else:
                    dropped.append(first)
            self._judged += 1
            self._survived += fate
            if self._survived == self.units_per_step:
                self._judged = self._survived = 0
        for one in dropped:
            self._places.remove(one)
        return dropped

    def _within_budget(self, judged_before: int) -> bool:
        return self._budget is None or judged_before < self._budget * self.units_per_step

    # ---- training -----------------------------------------------------------------------------------------------

    @property
    def survivors(self) -> int:
        """Units of the next step that are finished and kept."""
        return sum(ticket in self._kept for ticket in self._places[: self.units_per_step])

    @property
    def complete(self) -> bool:
        """All units of the next step are finished and kept."""
        if len(self._places) < self.units_per_step:
            return False
        return not self._unpassed or self._places[self.units_per_step - 1] < self._unpassed[0]

    def take(self) -> list[int]:
        """Return the tickets of the next step, in order; places count from the step after it from now on.

        Raises:
            ValueError: some are missing.
        """
        if not self.complete:
            raise ValueError(
                f"step {self.step} has {self.survivors} of {self.units_per_step} units: wait for graph.complete(), or "
                "play until graph.admit() opens no more, before graph.train()"
            )
        taken, self._places = self._places[: self.units_per_step], self._places[self.units_per_step :]
        self._kept.difference_update(taken)
        self.step += 1
        return taken

    def outstanding(self) -> list[int]:
        """Return the tickets that were opened, not dropped and not taken."""
        return list(self._places)
