"""Which task and stored initial state an episode (or a group) starts from.

Three ways: every task once in a shuffled round; drawn by fixed weights; drawn by weights that follow success. The last
leans on tasks that the policy solves sometimes: where all or none of the episodes succeed there is nothing to learn from
(a group's advantages are zero), so the odds of a task are its weight times ``4 p (1 - p)``, but a tenth of it at least, with p
its success rate. What is random is a function of (seed, number); p counts units in ticket order, whoever finished first:
those up to the last one that the finished training steps took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlvla.seeds import derive
from rlvla.specs import SimulatorSpec, Start

Odds = tuple[float, ...] | None
"""A number a task, not normalised; None: each task once a round."""
_LEAST = 0.1  # of a task that always or never succeeds: it may change, and nobody would know
_DECAY = 0.9  # a training step: the policy of ten steps ago says little about the present one


class Sampler:
    """See the module.

    Args:
        spec: whose tasks.
        seed: of all draws.
        weights: how often each task is played relative to the others; None: equally often.
        adaptive: follow success.
    """

    def __init__(
        self, spec: SimulatorSpec, seed: int, weights: Sequence[float] | None = None, adaptive: bool = False
    ) -> None:
        self.adaptive = adaptive
        self._tasks = spec.tasks
        self._seed = seed
        self._weights = tuple(weights) if weights is not None else None
        self._episodes = [0.0] * len(spec.tasks)
        self._solved = [0.0] * len(spec.tasks)
        self._noted: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
        """Ticket to (task, success) of the episodes that ended in its unit; units of steps that are not trained yet."""
        self._last = -1
        """Ticket up to which units are counted."""

    # ---- choosing -----------------------------------------------------------------------------------------------

    @property
    def odds(self) -> Odds:
        """What tasks are drawn by now."""
        if not self.adaptive:
            return self._weights
        rates = [(solved + 1) / (count + 2) for solved, count in zip(self._solved, self._episodes, strict=True)]
        weights = self._weights or (1.0,) * len(rates)
        return tuple(weight * max(_LEAST, 4 * p * (1 - p)) for weight, p in zip(weights, rates, strict=True))

    def start(self, number: int) -> Start:
        """Return the start of episode (or group) ``number``, by the present odds."""
        return self.start_of(self.task(number, self.odds), number)

    def task(self, number: int, odds: Odds) -> int:
        """Return the task of the ``number``-th choice."""
        if odds is not None:
            return _drawn(odds, derive(self._seed, "task", number) / 2**63)
        tasks = len(self._tasks)
        round_, place = divmod(number, tasks)
        order = sorted(range(tasks), key=lambda task: derive(self._seed, "order", round_, task))
        return order[place]

    def start_of(self, task: int, number: int) -> Start:
        """Return a start of a task, for episode (or group) ``number``."""
        states = self._tasks[task].initial_states
        return Start(task, derive(self._seed, "state", number) % states if states else None)

    # ---- hearing ------------------------------------------------------------------------------------------------

    def note(self, ticket: int, task: int, success: bool) -> None:
        """Hear of an episode that ended in a unit."""
        if self.adaptive:
            self._noted[ticket].append((task, success))

    def forget(self, ticket: int) -> None:
        """A unit is played again from its start."""
        self._noted.pop(ticket, None)

    def trained(self, tickets: Collection[int]) -> None:
        """Count the units up to the last of a training step's, also those that were not kept for it. Once: a second call
        with the same tickets does nothing."""
        if not self.adaptive or max(tickets) <= self._last:
            return
        self._last = max(tickets)
        self._episodes = [count * _DECAY for count in self._episodes]
        self._solved = [count * _DECAY for count in self._solved]
        for ticket in [one for one in self._noted if one <= self._last]:
            for task, success in self._noted.pop(ticket):
                self._episodes[task] += 1
                self._solved[task] += success

    def state(self) -> dict[str, Any]:
        """Return what choices depend on, for an exact resume."""
        if not self.adaptive:
            return {}
        noted = [[ticket, *one] for ticket, some in sorted(self._noted.items()) for one in some]
        return {"episodes": self._episodes, "solved": self._solved, "noted": noted}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned; other tasks start from nothing."""
        if not self.adaptive or len(state.get("episodes", ())) != len(self._tasks):
            return
        self._episodes, self._solved = list(state["episodes"]), list(state["solved"])
        self._noted.clear()
        for ticket, task, success in state["noted"]:
            self.note(ticket, task, success)


def _drawn(odds: Sequence[float], part: float) -> int:
    """Return the place at which the running sum of ``odds`` passes ``part`` (in [0, 1)) of their total."""
    left = part * sum(odds)
    for place, one in enumerate(odds):
        left -= one
        if left < 0:
            return place
    return max(place for place, one in enumerate(odds) if one > 0)  # rounding
