"""What rows are to do next: windows and groups for training, a fixed list of episodes for evaluation.

A feed hands out :class:`Work`. Seeds, starts and noise keys are functions of what the work *is* (ticket, member, chunk,
episode number of a row) and never of who does it when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlvla.seeds import derive, derived, stem
from rlvla.specs import AlgorithmSpec, SimulatorSpec, Start


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

    def key(self, work: Work) -> int:
        """Return the noise key of the work's next chunk."""

    def place(self, work: Work) -> int:
        """Return where the work lies in batches of fixed shape, modulo their rows; its place may change its last bits."""


class Sampler:
    """Which task and stored initial state the n-th start has: each task once in a shuffled round, states at random."""

    def __init__(self, spec: SimulatorSpec, seed: int) -> None:
        self._tasks = spec.tasks
        self._seed = seed

    def start(self, number: int) -> Start:
        """Return the start of episode (or group) ``number``."""
        tasks = len(self._tasks)
        round_, place = divmod(number, tasks)
        order = sorted(range(tasks), key=lambda task: derive(self._seed, "order", round_, task))
        task = order[place]
        states = self._tasks[task].initial_states
        return Start(task, derive(self._seed, "state", number) % states if states else None)


class WindowFeed:
    """Windows of T chunks; ticket t belongs to row t mod rows, and a row's episodes go on across its windows."""

    def __init__(self, algorithm: AlgorithmSpec, simulator: SimulatorSpec, rows: int, seed: int) -> None:
        self.next_ticket = 0
        self.episodes = [0] * rows
        """Episodes that each row has started."""
        self._length = algorithm.window
        self._seed = seed
        self._sampler = Sampler(simulator, derive(seed, "sampler"))
        self._queues: list[deque[int]] = [deque() for _ in range(rows)]

    def open(self, units: int) -> list[int]:
        """Open the next tickets."""
        tickets = list(range(self.next_ticket, self.next_ticket + units))
        self.next_ticket += units
        self.open_again(tickets)
        return tickets

    def open_again(self, tickets: Sequence[int]) -> None:
        """Open tickets that were open in a run that ended; their units start from the beginning."""
        for ticket in tickets:
            self._queues[ticket % len(self._queues)].append(ticket)

    def take(self, row: int) -> Work | None:
        queue = self._queues[row]
        if not queue:
            return None
        ticket = queue.popleft()
        return Work(ticket, 0, self._length, None, stem(self._seed, "noise", ticket, 0))

    def next_episode(self, row: int) -> tuple[int, Start]:
        number = self.episodes[row]
        self.episodes[row] += 1
        start = self._sampler.start(number * len(self._queues) + row)
        return derive(self._seed, "episode", row, number), start

    def key(self, work: Work) -> int:
        return derived(work.noise, work.chunk)

    def place(self, work: Work) -> int:
        return work.ticket

    def state(self) -> dict[str, Any]:
        """Return the cursors, for an exact resume."""
        return {"next_ticket": self.next_ticket, "episodes": self.episodes}

    def load_state(self, state: dict[str, Any]) -> None:
        self.next_ticket = state["next_ticket"]
        before = list(state.get("episodes", ()))  # none: until now the windows were without partial reset
        if len(before) != len(self.episodes):  # other environments: none repeats an episode that was played
            before = [max(before, default=0)] * len(self.episodes)
        self.episodes = before


class GroupFeed:
    """Groups of G rollouts of one task from one initial state; any row plays any member.

    A window without partial reset is a group of one, which ends with its episode or after T chunks.
    """

    def __init__(self, algorithm: AlgorithmSpec, simulator: SimulatorSpec, rows: int, seed: int) -> None:
        self.next_ticket = 0
        self._size = algorithm.group_size
        self._length = algorithm.window if algorithm.unit == "window" else None
        self._seed = seed
        self._sampler = Sampler(simulator, derive(seed, "sampler"))
        self._queue: deque[tuple[int, int]] = deque()

    def open(self, units: int) -> list[int]:
        """Open the next tickets."""
        tickets = list(range(self.next_ticket, self.next_ticket + units))
        self.next_ticket += units
        self.open_again(tickets)
        return tickets

    def open_again(self, tickets: Sequence[int]) -> None:
        """Open tickets that were open in a run that ended; their units start from the beginning."""
        self._queue.extend((ticket, member) for ticket in tickets for member in range(self._size))

    def take(self, row: int) -> Work | None:
        if not self._queue:
            return None
        ticket, member = self._queue.popleft()
        episode = derive(self._seed, "group", ticket), self._sampler.start(ticket)
        return Work(ticket, member, self._length, episode, stem(self._seed, "noise", ticket, member))

    def next_episode(self, row: int) -> tuple[int, Start]:
        raise AssertionError("a group's rollout is one episode, and so is a window without partial reset")

    def key(self, work: Work) -> int:
        return derived(work.noise, work.chunk)

    def place(self, work: Work) -> int:
        return work.ticket * self._size + work.member

    def state(self) -> dict[str, Any]:
        """Return the cursors, for an exact resume."""
        return {"next_ticket": self.next_ticket}

    def load_state(self, state: dict[str, Any]) -> None:
        self.next_ticket = state["next_ticket"]


def training_feed(algorithm: AlgorithmSpec, simulator: SimulatorSpec, rows: int, seed: int) -> WindowFeed | GroupFeed:
    """Return the feed of an algorithm's units."""
    whole_episodes = algorithm.unit == "group" or (algorithm.unit == "window" and not algorithm.partial_reset)
    return (GroupFeed if whole_episodes else WindowFeed)(algorithm, simulator, rows, seed)


@dataclass
class EpisodeFeed:
    """A fixed list of episodes; ticket n is the n-th of them."""

    episodes: Sequence[tuple[int, Start]]
    seed: int
    taken: int = field(default=0)

    def take(self, row: int) -> Work | None:
        if self.taken == len(self.episodes):
            return None
        ticket, self.taken = self.taken, self.taken + 1
        return Work(ticket, 0, None, self.episodes[ticket], stem(self.seed, "noise", ticket))

    def next_episode(self, row: int) -> tuple[int, Start]:
        raise AssertionError("an evaluation's work is one episode")

    def key(self, work: Work) -> int:
        return derived(work.noise, work.chunk)

    def place(self, work: Work) -> int:
        return work.ticket
