"""Several trainer ranks, used like one trainer: the controller sends each its own units, and hears one receipt.

A unit's rank follows from its ticket alone, so that what was played goes straight to the rank that trains on it, as references.
Ranks wait for each other in collectives: one that dies, fails or no longer answers would keep the others there for ever. So
whoever waits here looks after all of them, and ends the wait in the name of the one that is to blame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlvla.assembly import Entry
from rlvla.errors import RlvlaError, WorkerDied
from rlvla.placement import rank_of
from rlvla.receipts import TrainReceipt
from rlvla.runtimes import Call, Handle

BEAT_S = 5.0
"""Seconds between two looks at ranks that others wait for."""
SILENT_S = 30.0
"""Seconds that a rank's process has to answer one."""
GRACE_S = 5.0
"""Seconds after one rank has failed in which the others may fail too, or end: those still waiting never will."""
_EVERYONE = ("train", "load", "settled", "describe")


class TrainerGroup:
    """A handle of all ranks.

    Args:
        ranks: their handles, in order.
        cut: parameters are cut among ranks, so that all take part in whatever looks at them.
        cycle: units after which ranks repeat; each has a run of neighbours among them. Less than ranks: as many, so that
            every unit is another rank's than the one before.
    """

    name = "trainer"

    def __init__(self, ranks: Sequence[Handle], cut: bool, cycle: int = 0) -> None:
        self.ranks = list(ranks)
        self._cycle = max(cycle, len(self.ranks))
        self._everyone = (*_EVERYONE, "publish", "save", "trial") if cut else _EVERYONE
        self._broken: WorkerDied | None = None
        self._met = False
        """All have answered once: before, their processes start and import, and nobody can tell that from silence."""
        self._shown = False
        """Ranks have something to evaluate where they have no unit of a step."""

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        """Call a method of all ranks, or of the first alone where it can answer for all.

        Raises:
            WorkerDied: a rank has died or does not answer; now, or in an earlier call.
        """
        if self._broken is not None:
            raise WorkerDied(f"{self._broken}; the trainer is gone", worker=self.name)
        if method == "train":
            return [_together([one for (one,) in await self._all("train", self._shares(*arguments), 0)])]
        everyone = method in self._everyone or (method == "publish" and "process" in arguments)
        ranks = self.ranks if everyone else self.ranks[:1]
        return (await self._all(method, [arguments] * len(ranks), returns))[0]

    def _shares(self, tickets: Sequence[int], step: int) -> list[tuple[Any, ...]]:
        """Return the arguments of ``train`` for each rank."""
        shares: list[list[int]] = [[] for _ in self.ranks]
        for ticket in tickets:
            shares[self._rank_of(ticket)].append(ticket)
        return [(share, step, len(tickets)) for share in shares]

    def _rank_of(self, ticket: int) -> int:
        return rank_of(ticket, len(self.ranks), self._cycle)

    async def _all(self, method: str, arguments: Sequence[tuple[Any, ...]], returns: int) -> list[list[Any]]:
        tasks = [
            asyncio.ensure_future(rank.call(method, *some, returns=returns))
            for rank, some in zip(self.ranks, arguments, strict=False)  # the first alone, where one answers for all
        ]
        try:
            await self._ended(tasks, method)
            self._met = self._met or len(tasks) == len(self.ranks)
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ended(self, tasks: Sequence[asyncio.Future[Any]], method: str) -> None:
        """Wait for all calls of ranks.

        Raises:
            Exception: what the rank to blame raised.
        """
        while True:
            done, waiting = await asyncio.wait(tasks, timeout=BEAT_S, return_when=asyncio.FIRST_EXCEPTION)
            if not waiting:
                break
            if any(task.exception() for task in done):
                _, waiting = await asyncio.wait(waiting, timeout=GRACE_S)
                break
            if not self._met:
                continue
            silent = await self._silent([number for number, task in enumerate(tasks) if task in waiting])
            if silent is not None and not tasks[silent].done():
                self._broken = WorkerDied(
                    f"{self.ranks[silent].name}: its process has not answered for {SILENT_S:g} s in {method!r}; the other "
                    "ranks wait for it",
                    worker=self.name,
                )
                raise self._broken
        errors = [error for task in tasks if task.done() and (error := task.exception())]
        if not errors:
            return
        worst = min(errors, key=_innocence)
        left = [rank.name for rank, task in zip(self.ranks, tasks, strict=False) if not task.done()]
        if isinstance(worst, WorkerDied) or left:
            self._broken = WorkerDied(f"{worst}", worker=self.name)
        if left:
            worst.add_note(f"{', '.join(left)} waited for it in a collective and cannot go on")
        raise worst

    async def _silent(self, numbers: Sequence[int]) -> int | None:
        """Return a rank whose process does not answer."""
        answers = await asyncio.gather(*(self.ranks[number].answers(SILENT_S) for number in numbers))
        return next((number for number, answer in zip(numbers, answers, strict=True) if not answer), None)

    def send(self, method: str, *arguments: Any, at_once: bool = False, instead: Call | None = None) -> None:
        """Record a chunk step at the ranks that its units belong to, or forget a unit."""
        if self._broken is not None:
            return
        if method == "record":
            *payload, entries = arguments
            self._record(payload, entries)
        else:
            ticket = arguments[0]
            self.ranks[self._rank_of(ticket)].send(method, *arguments, at_once=at_once, instead=instead)

    def _record(self, payload: Sequence[Any], entries: Sequence[Entry]) -> None:
        shares: dict[int, list[Entry | None]] = {}
        if not self._shown:
            self._shown = True
            shares = {number: [None] * len(entries) for number in range(len(self.ranks))}
        for place, entry in enumerate(entries):
            shares.setdefault(self._rank_of(entry.ticket), [None] * len(entries))[place] = entry
        for number, share in shares.items():
            self.ranks[number].send("record", *payload, share, instead=("miss", (share,)))

    async def answers(self, seconds: float) -> bool:
        """Say whether all ranks' processes answer in time."""
        return self._broken is None and all(await asyncio.gather(*(rank.answers(seconds) for rank in self.ranks)))

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    def close(self, timeout_s: float = 10.0) -> None:
        """Close all ranks; where one has failed the others hang, and their processes are left to the runtime."""
        for rank in self.ranks if self._broken is None else ():
            rank.close(timeout_s)


def _innocence(error: BaseException) -> int:
    """Order errors by how little they say of the cause: a death and a user's error come before a broken connection."""
    return 0 if isinstance(error, WorkerDied) else 1 if isinstance(error, RlvlaError) else 2


def _together(receipts: Sequence[TrainReceipt]) -> TrainReceipt:
    """Return the first rank's receipt, whose metrics are of all, with the times and peaks of all."""
    first = receipts[0]
    began = min(one.began_ns for one in receipts)
    names = {name for one in receipts for name in one.memory}
    return replace(
        first,
        seconds=max(one.seconds for one in receipts),
        began_ns=began,
        cpu_seconds=sum(one.cpu_seconds for one in receipts),
        lost=sum(one.lost for one in receipts),
        memory={name: max(one.memory.get(name, 0.0) for one in receipts) for name in sorted(names)},
    )
