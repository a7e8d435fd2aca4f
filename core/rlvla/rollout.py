"""Slots and rows: who plays what, and what became of it. The same code plays training units and evaluation episodes.

A slot is a few environments stepped together by one simulator actor. Its rows take work from a feed, are reset where the
work needs a new episode, and report each played chunk and each end to a sink.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlvla.assembly import Entry
from rlvla.errors import PayloadLost, WorkerDied
from rlvla.receipts import Ended, GenerateReceipt, SlotReceipt, StepReceipt
from rlvla.runtimes import Handle
from rlvla.specs import Start
from rlvla.work import Feed, Work

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
R = TypeVar("R")
"""A slot whose worker dies this often without a single chunk step in between ends the run."""


@dataclass
class Row:
    """One environment."""

    number: int
    """Counted over all slots."""
    live: bool = False
    """An episode is running."""
    work: Work | None = None


@dataclass
class Slot:
    """A few environments stepped together. Schedulers pass it around; ``number`` and ``rows`` may be read."""

    number: int
    actor: Handle
    rows: list[Row]
    device: int = 0
    """Which of the simulators' devices it shares with others (the cores of a machine are one)."""
    station: int = 0
    """The generators that serve it (:class:`rlvla.placement.Routes`)."""
    observation: Any = None
    """Reference to the present observation of all rows."""
    action: Any = None
    """Reference to the chunk chosen for the active rows, between ``generate`` and ``step``."""
    version: int = -1
    active: list[int] = field(default_factory=list)
    """Rows that the chunk is for."""
    restarts: int = 0

    def working(self) -> list[int]:
        """Return the rows that have work."""
        return [place for place, row in enumerate(self.rows) if row.work is not None]


class Sink(Protocol):
    """Who wants to know what was played."""

    def played(self, slot: Slot, before: Any, outcome: Any, after: Any, entries: Sequence[Entry]) -> None:
        """Take references to a chunk step."""

    def stepped(self, receipt: StepReceipt, entries: Sequence[Entry]) -> None:
        """Take the receipt of a chunk step, and what its rows were playing."""

    def finished(self, work: Work, ended: Ended | None) -> None:
        """A trajectory is complete; ``ended`` if an episode ended with its last chunk."""

    def lost(self, work: Work) -> None:
        """A worker died; the trajectory will be played again from its start."""

    def worked(self, actor: str, phase: str, receipt: SlotReceipt, slots: Sequence[Slot], rows: int) -> None:
        """An actor has worked on a call for some slots, of which ``rows`` rows took part."""

    def replaced(self, slot: Slot) -> None:
        """A slot's dead worker was started again."""


async def surviving(
    generator: Handle,
    calling: Callable[[], Awaitable[R]],
    restarted: Callable[[], None],
    anew: Callable[[], Awaitable[object]] | None = None,
) -> R:
    """Call a generator, and the one that its runtime makes in its place where it dies.

    Args:
        generator: who is called.
        calling: does it.
        restarted: told of a death.
        anew: brings weights to the one in its place.
    """
    for left in reversed(range(MAX_RESTARTS + 1)):
        try:
            return await calling()
        except WorkerDied as error:
            if error.worker != generator.name or not left:
                raise
            log.warning("%s; another one takes its place and does its work again", error)
            if not error.heard:
                restarted()
            if anew is not None:
                await anew()
    raise AssertionError("the last try raises or returns")


class Rollout:
    """Rows at work.

    Args:
        slots: with their actors.
        feed: where rows get work.
        sink: who is told.
        greedy: likeliest chunks instead of samples.
        video: path for an episode's video, or None; called with the work at each reset.
    """

    def __init__(
        self,
        slots: list[Slot],
        feed: Feed,
        sink: Sink,
        *,
        greedy: bool = False,
        video: Callable[[Work], Path | None] = lambda work: None,
    ) -> None:
        self.slots = slots
        self._feed = feed
        self._sink = sink
        self._greedy = greedy
        self._video = video

    async def begin(self, slots: Sequence[Slot]) -> list[Slot]:
        """Give work to rows without, start the episodes that are needed; returns the slots that have work."""
        if len(slots) == 1:
            await self._begin(slots[0])
        else:
            await asyncio.gather(*(self._begin(slot) for slot in slots))
        return [slot for slot in slots if slot.working()]

    async def _begin(self, slot: Slot) -> None:
        rows: list[int] = []
        episodes: list[tuple[int, Start]] = []
        videos: dict[int, str] = {}
        for place, row in enumerate(slot.rows):
            if row.work is None:
                row.work = self._feed.take(row.number)
            work = row.work
            if work is None or (row.live and (work.episode is None or work.chunk > 0)):
                continue
            rows.append(place)
            episodes.append(work.episode or self._feed.next_episode(row.number))
            if path := self._video(work):
                videos[place] = str(path)
        if not rows:
            return
        seeds, starts = [seed for seed, _ in episodes], [start for _, start in episodes]
        while True:
            try:
                receipt, slot.observation = await slot.actor.call("reset", rows, seeds, starts, videos, returns=1)
                break
            except WorkerDied as error:
                await self.replace(slot, error)
                return await self._begin(slot)
        self._sink.worked(slot.actor.name, "reset", receipt, [slot], len(rows))
        for place in rows:
            slot.rows[place].live = True
        changes = (self._feed.next_task(slot.rows[place].number) for place in rows)
        if tasks := list(dict.fromkeys(task for task in changes if task is not None)):
            slot.actor.send("prepare", tasks, at_once=True)

    async def generate(self, slots: Sequence[Slot], generator: Handle) -> GenerateReceipt:
        """Choose a chunk for the working rows of these slots, in one batch of a generator."""
        for left in reversed(range(MAX_RESTARTS + 1)):
            try:
                return await self._generate(slots, generator)
            except PayloadLost as error:
                if not left:
                    raise
                log.warning("%s; its slots are looked at once more", error)
                await asyncio.gather(*map(self._observe, slots))
        raise AssertionError("the last try raises or returns")

    async def _observe(self, slot: Slot) -> None:
        """Get a slot's observation again, or new ones where its machine is gone."""
        try:
            _, slot.observation = await slot.actor.call("observe", returns=1)
        except WorkerDied as error:
            await self.replace(slot, error)
            await self._begin(slot)

    async def _generate(self, slots: Sequence[Slot], generator: Handle) -> GenerateReceipt:
        for slot in slots:
            slot.active = slot.working()
        work = [[one for place in slot.active if (one := slot.rows[place].work) is not None] for slot in slots]
        receipt, *actions = await generator.call(
            "act",
            [slot.observation for slot in slots],
            [slot.active for slot in slots],
            [[self._feed.place(one) for one in some] for some in work],
            [[self._feed.key(one) for one in some] for some in work],
            self._greedy,
            returns=len(slots),
        )
        for slot, action in zip(slots, actions, strict=True):
            slot.action, slot.version = action, receipt.version
        result: GenerateReceipt = receipt
        self._sink.worked(generator.name, "generate", result, slots, result.rows)
        return result

    async def step(self, slot: Slot) -> None:
        """Execute the slot's chunk, and report what was played and what ended."""
        before = slot.observation
        given_up = [place for place in slot.active if (one := slot.rows[place].work) is not None and one.gives_up]
        try:
            receipt, after, outcome = await slot.actor.call("step", slot.action, slot.active, given_up, returns=2)
        except (WorkerDied, PayloadLost) as error:  # lost: what a generator chose, on a machine that is gone
            return await self.replace(slot, error)
        slot.observation, slot.restarts = after, 0
        self._sink.worked(slot.actor.name, "simulate", receipt, [slot], len(slot.active))
        ended = {one.row: one for one in receipt.ended}
        entries, done = [], []
        for place in slot.active:
            row = slot.rows[place]
            work = row.work
            assert work is not None, "an active row without work"
            row.live = place not in ended
            last = work.ends(place in ended)
            entries.append(Entry(work.ticket, work.member, work.chunk, place, last))
            work.chunk += 1
            if last:
                row.work = None
                done.append((work, ended.get(place)))
        self._sink.played(slot, before, outcome, after, entries)
        self._sink.stepped(receipt, entries)
        for work, end in done:
            self._sink.finished(work, end)

    async def replace(self, slot: Slot, error: WorkerDied | PayloadLost) -> None:
        """Start a dead worker again; its rows play their work from the start."""
        slot.restarts += 1
        log.warning("%s; it is started again, and its rows play their work from the start", error)
        if slot.restarts > MAX_RESTARTS:
            error.add_note(f"it died {slot.restarts} times in a row; given up")
            raise error
        await slot.actor.call("replace", returns=0)
        self._sink.replaced(slot)
        for row in slot.rows:
            row.live = False
            if row.work is not None:
                self._sink.lost(row.work)
                row.work.chunk = 0
