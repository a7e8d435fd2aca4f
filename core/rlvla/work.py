"""What rows are to do next: windows and groups for training, a fixed list of episodes for evaluation.

A feed hands out :class:`Work`. Seeds, starts and noise keys are functions of what the work *is* (ticket, member, chunk,
episode number of a row) and never of who does it when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlvla.sampler import Odds, Sampler
from rlvla.seeds import derive, derived, stem
from rlvla.specs import AlgorithmSpec, SimulatorSpec, Start

if TYPE_CHECKING:
    from rlvla.configs import RunOptions


@dataclass
class Work:
    """One trajectory that a row plays."""

    ticket: int
    member: int
    length: int | None
    """Chunks; None: until the episode ends."""
    episode: tuple[int, Start] | None
    """Seed and start of the one episode that it is, with whose end it ends; None: it continues whatever runs in its row."""
    noise: int
    """Stem of the noise keys of its chunks."""
    chunk: int = 0
    """Chunks played."""

    def ends(self, episode_ended: bool) -> bool:
        """Say whether the chunk that was just played (and is not counted in ``chunk`` yet) is its last."""
        return self.chunk + 1 == self.length or (episode_ended and self.episode is not None)

    @property
    def gives_up(self) -> bool:
        """Its next chunk is the last that it may play, and its episode goes no further, whether it has ended or not."""
        return self.episode is not None and self.chunk + 1 == self.length


class Feed(Protocol):
    """Where rows get their work."""

    def take(self, row: int) -> Work | None:
        """Return the next work for a row, if there is any now."""

    def next_episode(self, row: int) -> tuple[int, Start]:
        """Return seed and start of the episode that a row starts inside its window."""

    def next_task(self, row: int) -> int | None:
        """Return the task that a row changes to with its next episode, where that is known and worth to be prepared."""

    def key(self, work: Work) -> int:
        """Return the noise key of the work's next chunk."""

    def place(self, work: Work) -> int:
        """Return where the work lies in batches of fixed shape, modulo their rows; its place may change its last bits."""


class WindowFeed:
    """Windows of T chunks; ticket t belongs to row t mod rows, and a row's episodes go on across its windows."""

    def __init__(
        self,
        algorithm: AlgorithmSpec,
        rows: int,
        seed: int,
        sampler: Sampler,
        task_episodes: int = 1,
        builds_tasks: bool = False,
    ) -> None:
        self.next_ticket = 0
        self.episodes = [0] * rows
        """Episodes that each row has started."""
        self._length = algorithm.window
        self._seed = seed
        self._sampler = sampler
        self._task_episodes = task_episodes
        self._builds_tasks = builds_tasks
        self._tasks = [0] * rows
        """Task of each row's present episode."""
        self._queues: list[deque[int]] = [deque() for _ in range(rows)]
        self._playing = [0] * rows
        """Ticket of each row's present window."""
        self._odds: dict[int, Odds] = {}
        """What tasks are drawn by in windows that are not trained yet: what was so when they were opened."""

    def open(self, units: int) -> list[int]:
        """Open the next tickets."""
        tickets = list(range(self.next_ticket, self.next_ticket + units))
        self.next_ticket += units
        self.open_again(tickets)
        return tickets

    def open_again(self, tickets: Sequence[int]) -> None:
        """Open tickets that were open in a run that ended; their units start from the beginning."""
        odds = self._sampler.odds
        for ticket in tickets:
            self._queues[ticket % len(self._queues)].append(ticket)
            self._odds.setdefault(ticket, odds)
            self._sampler.forget(ticket)

    def take(self, row: int) -> Work | None:
        queue = self._queues[row]
        if not queue:
            return None
        ticket = self._playing[row] = queue.popleft()
        return Work(ticket, 0, self._length, None, stem(self._seed, "noise", ticket, 0))

    def next_episode(self, row: int) -> tuple[int, Start]:
        number, rows = self.episodes[row], len(self._queues)
        self.episodes[row] += 1
        turn, repeated = divmod(number, self._task_episodes)
        if not repeated:
            self._tasks[row] = self._sampler.task(turn * rows + row, self._odds[self._playing[row]])
        return derive(self._seed, "episode", row, number), self._sampler.start_of(self._tasks[row], number * rows + row)

    def next_task(self, row: int) -> int | None:
        turn, repeated = divmod(self.episodes[row], self._task_episodes)
        if repeated or self._sampler.adaptive or not self._builds_tasks:
            return None  # adaptive: depends on what succeeds until then
        task = self._sampler.task(turn * len(self._queues) + row, self._sampler.odds)
        return task if task != self._tasks[row] else None

    def key(self, work: Work) -> int:
        return derived(work.noise, work.chunk)

    def place(self, work: Work) -> int:
        return work.ticket

    def ended(self, ticket: int, row: int, success: bool) -> None:
        """Hear of an episode that ended in a row."""
        self._sampler.note(ticket, self._tasks[row], success)

    def lost(self, ticket: int) -> None:
        """Hear that a row plays its window from the start."""
        self._sampler.forget(ticket)

    def trained(self, tickets: Sequence[int]) -> None:
        """Hear which units a training step took."""
        self._sampler.trained(tickets)
        self._odds = {ticket: odds for ticket, odds in self._odds.items() if ticket > max(tickets)}

    def state(self) -> dict[str, Any]:
        """Return the cursors, for an exact resume."""
        found = {"next_ticket": self.next_ticket, "episodes": self.episodes, "tasks": self._tasks}
        if not self._sampler.adaptive:
            return found
        together: dict[Odds, list[int]] = {}
        for ticket, odds in self._odds.items():
            together.setdefault(odds, []).append(ticket)
        return {**found, "sampler": self._sampler.state(), "odds": [[some, odds] for odds, some in together.items()]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.next_ticket = state["next_ticket"]
        before = list(state.get("episodes", ()))  # none: until now the windows were without partial reset
        if len(before) == len(self.episodes):
            self._tasks = list(state.get("tasks", self._tasks))
        else:  # other environments: none repeats an episode that was played, and each chooses a task anew
            most = max(before, default=0)
            before = [most + -most % self._task_episodes] * len(self.episodes)
        self.episodes = before
        self._sampler.load_state(state.get("sampler", {}))
        self._odds = {ticket: tuple(odds) for some, odds in state.get("odds", ()) for ticket in some}


class GroupFeed:
    """Groups of G rollouts of one task from one initial state; any row plays any member.

    A window without partial reset is a group of one, which ends with its episode or after T chunks.

    Args:
        algorithm: what a unit is.
        slots: rows of each slot.
        seed: of episodes and noise.
        sampler: of starts.
        lookahead: rows are given a member of a task that their slot runs already, if the next so many groups have one: a
            simulator that has to build a task then builds less. What is played does not depend on it.
    """

    def __init__(
        self, algorithm: AlgorithmSpec, slots: Sequence[int], seed: int, sampler: Sampler, lookahead: int = 0
    ) -> None:
        self.next_ticket = 0
        self._size = algorithm.group_size
        self._length = algorithm.window if algorithm.unit == "window" else None
        self._seed = seed
        self._sampler = sampler
        self._lookahead = lookahead
        self._beside: list[range] = []
        """Rows of each row's slot."""
        for rows in slots:
            first = len(self._beside)
            self._beside += [range(first, first + rows)] * rows
        self._tasks: list[int | None] = [None] * len(self._beside)
        """Task of each row's last episode."""
        self._queue: deque[tuple[int, int]] = deque()
        self._starts: dict[int, Start] = {}
        """Of units that are not trained yet."""

    def open(self, units: int) -> list[int]:
        """Open the next tickets."""
        tickets = list(range(self.next_ticket, self.next_ticket + units))
        self.next_ticket += units
        self.open_again(tickets)
        return tickets

    def open_again(self, tickets: Sequence[int]) -> None:
        """Open tickets that were open in a run that ended; their units start from the beginning."""
        self._queue.extend((ticket, member) for ticket in tickets for member in range(self._size))
        for ticket in tickets:
            if ticket not in self._starts:
                self._starts[ticket] = self._sampler.start(ticket)
            self._sampler.forget(ticket)

    def take(self, row: int) -> Work | None:
        if not self._queue:
            return None
        place = self._place_for(row)
        ticket, member = self._queue[place]
        del self._queue[place]
        start = self._starts[ticket]
        self._tasks[row] = start.task
        episode = derive(self._seed, "group", ticket), start
        return Work(ticket, member, self._length, episode, stem(self._seed, "noise", ticket, member))

    def _place_for(self, row: int) -> int:
        """Return where in the queue the row's next work stands."""
        if not self._lookahead:
            return 0
        running = {self._tasks[other] for other in self._beside[row]}
        for place, (ticket, _) in enumerate(self._queue):
            if ticket >= self._queue[0][0] + self._lookahead:
                break
            if self._starts[ticket].task in running:
                return place
        return 0

    def next_episode(self, row: int) -> tuple[int, Start]:
        raise AssertionError("a group's rollout is one episode, and so is a window without partial reset")

    def next_task(self, row: int) -> int | None:
        """None: who plays which group is decided when a row is free."""
        return None

    def key(self, work: Work) -> int:
        return derived(work.noise, work.chunk)

    def place(self, work: Work) -> int:
        return work.ticket * self._size + work.member

    def ended(self, ticket: int, row: int, success: bool) -> None:
        """Hear of an episode that ended in a row."""
        self._sampler.note(ticket, self._starts[ticket].task, success)

    def lost(self, ticket: int) -> None:
        """Hear that a member is played again: it had not ended, so nothing of it was counted."""

    def trained(self, tickets: Sequence[int]) -> None:
        """Hear which units a training step took."""
        self._sampler.trained(tickets)
        self._starts = {ticket: start for ticket, start in self._starts.items() if ticket > max(tickets)}

    def state(self) -> dict[str, Any]:
        """Return the cursors, for an exact resume."""
        found: dict[str, Any] = {"next_ticket": self.next_ticket}
        if not self._sampler.adaptive:
            return found
        starts = [[ticket, start.task, start.state] for ticket, start in self._starts.items()]
        return {**found, "sampler": self._sampler.state(), "starts": starts}

    def load_state(self, state: dict[str, Any]) -> None:
        self.next_ticket = state["next_ticket"]
        self._sampler.load_state(state.get("sampler", {}))
        self._starts = {ticket: Start(task, one) for ticket, task, one in state.get("starts", ())}


def training_feed(
    algorithm: AlgorithmSpec,
    simulator: SimulatorSpec,
    slots: Sequence[int],
    seed: int,
    options: RunOptions,
    units_per_step: int,
) -> WindowFeed | GroupFeed:
    """Return the feed of an algorithm's units, for rows in slots of these sizes."""
    sampler = Sampler(
        simulator, derive(seed, "sampler"), options.task_weights, adaptive=options.task_sampling == "adaptive"
    )
    if algorithm.unit == "group" or (algorithm.unit == "window" and not algorithm.partial_reset):
        return GroupFeed(algorithm, slots, seed, sampler, units_per_step if simulator.builds_tasks else 0)
    return WindowFeed(algorithm, sum(slots), seed, sampler, options.task_episodes, simulator.builds_tasks)


class EpisodeFeed:
    """A fixed list of episodes; ticket n is the n-th of them.

    Args:
        episodes: seed and start of each.
        seed: of noise.
        slots: rows of each slot, where a simulator builds its tasks: a row is then given an episode of a task that its slot
            runs, else of one that few slots run. Empty: in the order of the list. What is played does not depend on it.
        only: tickets to play; None: all.
    """

    def __init__(
        self,
        episodes: Sequence[tuple[int, Start]],
        seed: int,
        slots: Sequence[int] = (),
        only: Sequence[int] | None = None,
    ) -> None:
        self._episodes = episodes
        self._seed = seed
        self._slot_of = [slot for slot, rows in enumerate(slots) for _ in range(rows)]
        self._tasks: list[int | None] = [None] * len(slots)
        """Task that each slot was given last."""
        self._left: dict[int, deque[int]] = {}
        for ticket in range(len(episodes)) if only is None else only:
            task = episodes[ticket][1].task if slots else 0
            self._left.setdefault(task, deque()).append(ticket)

    def take(self, row: int) -> Work | None:
        if not self._left:
            return None
        task = self._task_for(self._slot_of[row]) if self._slot_of else 0
        ticket = self._left[task].popleft()
        if not self._left[task]:
            del self._left[task]
        return Work(ticket, 0, None, self._episodes[ticket], stem(self._seed, "noise", ticket))

    def _task_for(self, slot: int) -> int:
        task = self._tasks[slot]
        if task is None or task not in self._left:
            task = min(self._left, key=self._tasks.count)
            self._tasks[slot] = task
        return task

    def next_episode(self, row: int) -> tuple[int, Start]:
        raise AssertionError("an evaluation's work is one episode")

    def next_task(self, row: int) -> int | None:
        """None: an evaluation deals tasks out to slots, which keep them."""
        return None

    def key(self, work: Work) -> int:
        return derived(work.noise, work.chunk)

    def place(self, work: Work) -> int:
        return work.ticket
