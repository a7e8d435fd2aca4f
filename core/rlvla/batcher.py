"""Merges the requests of several slots into one call of the generator. It cannot stall, and has nothing to tune.

A batch is launched when the generator is idle and

* it is full, or
* nobody else can arrive, or
* waiting for whoever is expected next would cost more than it saves.

A call with n rows takes about a + b n seconds (measured, :class:`LatencyCurve`). If the n rows that wait are held back for
d seconds until m more arrive, the n lose d + b m, and the m gain a - d: they need not wait for a call that began without
them. So waiting pays while d < m (a - b n) / (n + m). When that time has passed, the batch is launched whatever happens.

What arrives in one instant goes into one batch: the queue is looked at when all that is ready has run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlvla.rollout import Slot

_FORGET = 0.97
"""Weight of a measurement when the next one comes."""


class LatencyCurve:
    """Seconds of a call as a + b n, by least squares over recent calls."""

    def __init__(self) -> None:
        self._calls = 0
        self._sums = [0.0] * 5

    def add(self, rows: int, seconds: float) -> None:
        """Count a call; the first one of a run is slow (kernels are chosen, memory is allocated) and is left out."""
        self._calls += 1
        if self._calls > 1:
            new = (1.0, rows, rows * rows, seconds, rows * seconds)
            self._sums = [_FORGET * old + one for old, one in zip(self._sums, new, strict=True)]

    def fit(self) -> tuple[float, float] | None:
        """Return a and b, both at least 0; None before the first measurement.

        While all batches had one size, rows are taken to cost nothing: waiting for more then brings other sizes.
        """
        weight, n, nn, t, nt = self._sums
        if not weight:
            return None
        spread = weight * nn - n * n
        if spread <= 1e-6 * weight * nn:
            return t / weight, 0.0
        slope = min(max(0.0, (weight * nt - n * t) / spread), t / n)
        return (t - slope * n) / weight, slope


@dataclass
class _Request:
    slot: Slot
    rows: int
    served: asyncio.Future[None]
    since: float


class Batcher:
    """A queue before the generator: first come, first served.

    Args:
        act: chooses chunks for some slots, in one call.
        limit: most rows in a batch; a single slot with more still passes. None: no bound.
        waited: told of each served request: seconds to the launch of its batch, and to its chunk.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Slot]], Awaitable[None]],
        limit: int | None = None,
        waited: Callable[[float, float], None] = lambda queue_s, wait_s: None,
    ) -> None:
        self.curve = LatencyCurve()
        self._act = act
        self._limit = limit
        self._waited = waited
        self._queue: list[_Request] = []
        self._away: dict[int, float] = {}
        """Slots that will come with a request, and since when they are on their way."""
        self._rows: dict[int, int] = {}
        """Rows of each slot's last request."""
        self._round: dict[int, float] = {}
        """Mean seconds between a slot's chunk and its next request."""
        self._measured: set[int] = set()
        """Slots that are on their way from a chunk, not from a wait for work."""
        self._serving: asyncio.Task[None] | None = None
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

    async def request(self, slots: Sequence[Slot]) -> None:
        """Wait until these slots have their next chunk."""
        loop = asyncio.get_running_loop()
        requests = [_Request(slot, len(slot.working()), loop.create_future(), loop.time()) for slot in slots]
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
        if self._serving is not None:
            self._serving.cancel()
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
        if self._serving is not None or not self._queue:
            return
        batch, rows = self._next_batch()
        full = len(batch) < len(self._queue) or (self._limit is not None and rows >= self._limit)
        if not full and not waited and (seconds := self._worth_waiting(rows)) > 0:
            until = asyncio.get_running_loop().time() + seconds
            if self._held is not None and self._held[0] == rows:
                until = min(until, self._held[1])
            self._held = rows, until
            self._hold = asyncio.get_running_loop().call_at(until, self._launch_if_due, True)
            return
        self._held = None
        self._queue = self._queue[len(batch) :]
        self._serving = asyncio.create_task(self._serve(batch, rows), name="generate")

    def _next_batch(self) -> tuple[list[_Request], int]:
        batch: list[_Request] = []
        rows = 0
        for one in self._queue:
            if batch and self._limit is not None and rows + one.rows > self._limit:
                break
            batch.append(one)
            rows += one.rows
        return batch, rows

    def _worth_waiting(self, rows: int) -> float:
        """Return for how many seconds at most to wait for the slot that is expected next; 0: launch now."""
        curve = self.curve.fit()
        expected = [number for number in self._away if number in self._round]
        if curve is None or not expected:
            return 0.0
        now = asyncio.get_running_loop().time()
        # one that is late may be as late again
        delay, number = min((abs(self._away[one] + self._round[one] - now), one) for one in expected)
        more = self._rows[number]
        pays = more * (curve[0] - curve[1] * rows) / (rows + more)
        return pays if delay < pays else 0.0

    async def _serve(self, batch: list[_Request], rows: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._act([one.slot for one in batch])
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
            self._serving = None
            self._look()
