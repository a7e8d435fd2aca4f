"""Merges the requests of several slots into one call of a generator. It cannot stall, and has nothing to tune.

A batch is launched when a generator is idle and

* it is full, or
* nobody else can arrive, or
* waiting for whoever is expected next would cost more than it saves.

Where several generators are idle, those who wait are dealt out among them: n rows cost each a + b n / idle seconds, and
idle time is free. Whoever has been idle for longest is taken, so that all of a station do as much: a trainer on all GPUs
waits for the one that generates most.

A call with n rows takes about a + b n seconds (measured, :class:`rlvla.latency.LatencyCurve`). If the n rows that wait are held back for
d seconds until m more arrive, the n lose d + b m, and the m gain a - d: they need not wait for a call that began without
them. So waiting pays while d < m (a - b n) / (n + m). When that time has passed, the batch is launched whatever happens.

What arrives in one instant goes into one batch: the queue is looked at when all that is ready has run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlvla.latency import LatencyCurve
from rlvla.rollout import Slot


@dataclass
class _Request:
    slot: Slot
    rows: int
    served: asyncio.Future[None]
    since: float
    stage: int | None
    """Slots that came together and are not to be merged with others; None: with whoever waits."""


class Batcher:
    """A queue before the generators of one station: first come, first served.

    Args:
        act: chooses chunks for some slots, in one call of the generator of that number.
        limit: most rows in a batch; a single slot with more still passes. None: no bound.
        generators: how many there are.
        waited: told of each served request: seconds to the launch of its batch, and to its chunk.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Slot], int], Awaitable[None]],
        limit: int | None = None,
        generators: int = 1,
        waited: Callable[[float, float], None] = lambda queue_s, wait_s: None,
    ) -> None:
        self.curve = LatencyCurve(first=generators)
        self._act = act
        self._limit = limit
        self._waited = waited
        self._idle = list(range(generators))
        """Since when, the longest first."""
        self._stages = 0
        self._queue: list[_Request] = []
        self._away: dict[int, float] = {}
        """Slots that will come with a request, and since when they are on their way."""
        self._rows: dict[int, int] = {}
        """Rows of each slot's last request."""
        self._round: dict[int, float] = {}
        """Mean seconds between a slot's chunk and its next request."""
        self._measured: set[int] = set()
        """Slots that are on their way from a chunk, not from a wait for work."""
        self._serving: list[asyncio.Task[None]] = []
        self._looking = False
        self._hold: asyncio.TimerHandle | None = None
        self._held: tuple[int, float] | None = None
        """Rows that are held back, and until when at the latest."""

    def expect(self, slot: Slot) -> None:
        """A slot has begun to do what ends in a request."""
        self._away.setdefault(slot.number, asyncio.get_running_loop().time())

    def leave(self, slot: Slot) -> None:
        """A slot will not come: it has no work, or is paused."""
        if self._away.pop(slot.number, None) is not None:
            self._measured.discard(slot.number)
            self._look()

    async def request(self, slots: Sequence[Slot], alone: bool = False) -> None:
        """Wait until these slots have their next chunk; ``alone``: in batches that hold nobody else, and at once."""
        loop = asyncio.get_running_loop()
        self._stages += 1
        stage, now = self._stages if alone else None, loop.time()
        requests = [_Request(slot, len(slot.working()), loop.create_future(), now, stage) for slot in slots]
        for one in requests:
            self._arrived(one, loop.time())
        self._queue += requests
        self._look()
        try:
            for one in requests:
                await one.served
        finally:  # a scheduler that is cancelled must not leave requests behind
            mine = set(map(id, requests))
            self._queue = [one for one in self._queue if id(one) not in mine]
            for one in requests:
                if not one.served.cancel() and not one.served.cancelled():
                    one.served.exception()  # seen: it was raised for the first of them

    def abandon(self) -> None:
        """Forget everything under way, after a run that went wrong."""
        for one in self._serving:
            one.cancel()
        self._away.clear()
        self._measured.clear()

    def _arrived(self, request: _Request, now: float) -> None:
        number = request.slot.number
        since = self._away.pop(number, now)
        if number in self._measured:
            self._measured.remove(number)
            self._round[number] = 0.8 * self._round.get(number, now - since) + 0.2 * (now - since)
        self._rows[number] = request.rows

    def _look(self) -> None:
        """Look at the queue when everything that is ready has run."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(0, self._launch_if_due)

    def _launch_if_due(self, waited: bool = False) -> None:
        self._looking = False
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        while self._idle and self._queue and self._launch(waited):
            waited = False

    def _launch(self, waited: bool) -> bool:
        """Launch the next batch, or hold it back and return False."""
        batch, rows = self._next_batch()
        full = (
            len(batch) < len(self._queue)
            or (self._limit is not None and rows >= self._limit)
            or batch[0].stage is not None
        )
        if not full and not waited and (seconds := self._worth_waiting(rows)) > 0:
            until = asyncio.get_running_loop().time() + seconds
            if self._held is not None and self._held[0] == rows:
                until = min(until, self._held[1])
            self._held = rows, until
            self._hold = asyncio.get_running_loop().call_at(until, self._launch_if_due, True)
            return False
        self._held = None
        self._queue = self._queue[len(batch) :]
        generator = self._idle.pop(0)
        serving = asyncio.create_task(self._serve(batch, rows, generator), name=f"generate-{generator}")
        self._serving.append(serving)
        serving.add_done_callback(self._serving.remove)
        return True

    def _next_batch(self) -> tuple[list[_Request], int]:
        """Return the requests of the next batch, oldest first: an idle generator's share of those that wait."""
        batch: list[_Request] = []
        rows = 0
        share = -(-sum(one.rows for one in self._queue) // len(self._idle))
        for one in self._queue:
            if batch and (
                rows >= share
                or one.stage != batch[0].stage
                or (self._limit is not None and rows + one.rows > self._limit)
            ):
                break
            batch.append(one)
            rows += one.rows
        return batch, rows

    def _worth_waiting(self, rows: int) -> float:
        """Return for how many seconds at most to wait for the slot that is expected next; 0: launch now."""
        curve = self.curve.fit()
        if curve is None or curve[0] <= curve[1] * rows:
            return 0.0  # nothing pays; most calls of a busy generator end here
        expected = [number for number in self._away if number in self._round]
        if not expected:
            return 0.0
        now = asyncio.get_running_loop().time()
        # one that is late may be as late again
        delay, number = min((abs(self._away[one] + self._round[one] - now), one) for one in expected)
        more = self._rows[number]
        pays = more * (curve[0] - curve[1] * rows) / (rows + more)
        return pays if delay < pays else 0.0

    async def _serve(self, batch: list[_Request], rows: int, generator: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._act([one.slot for one in batch], generator)
        except asyncio.CancelledError:
            for one in batch:
                one.served.cancel()
            raise
        except Exception as error:
            for one in batch:
                if not one.served.done():
                    one.served.set_exception(error)
        else:
            now = loop.time()
            self.curve.add(rows, now - began)
            for one in batch:
                self._waited(began - one.since, now - one.since)
                if not one.served.done():
                    one.served.set_result(None)
                    self._away[one.slot.number] = now
                    self._measured.add(one.slot.number)
        finally:
            self._idle.append(generator)
            self._look()
