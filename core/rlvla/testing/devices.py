"""Devices in virtual time: what several fake actors use at once slows all of them down alike."""

from __future__ import annotations

import asyncio
import heapq
import itertools

_ROUNDING_S = 1e-9
"""Timers are rounded to nanoseconds."""


class Shared:
    """Processor sharing: each user asks for a share of the device; together they get at most its capacity.

    While the shares asked for exceed the capacity, everybody is slowed down by the same factor. A GPU has capacity 1; eight
    cores, on which each simulator process wants one, have capacity 8. Costs O(log n) a use.

    Args:
        capacity: sum of shares that run at full speed.
    """

    def __init__(self, capacity: float = 1.0) -> None:
        self.capacity = capacity
        self.busy = 0.0
        """Seconds of the whole device that were used, up to the last change."""
        self._demand = 0.0
        self._service = 0.0
        """Seconds of work that a user who was there from the start would have done."""
        self._at = 0.0
        self._users: list[tuple[float, int, float, asyncio.Future[None]]] = []
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def use(self, seconds: float, share: float = 1.0) -> None:
        """Wait until ``seconds`` of work at ``share`` of the device are done."""
        if seconds <= 0:
            return
        self._advance()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._users, (self._service + seconds, next(self._sequence), share, done))
        self._demand += share
        self._plan()
        try:
            await done
        except asyncio.CancelledError:
            self._advance()
            self._users = [one for one in self._users if one[3] is not done]
            heapq.heapify(self._users)
            self._demand = sum(one[2] for one in self._users)
            self._plan()
            raise

    def so_far(self) -> float:
        """Return the seconds of the whole device that were used, up to now."""
        self._advance()
        return self.busy

    def _speed(self) -> float:
        return min(1.0, self.capacity / self._demand) if self._demand else 1.0

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        passed, self._at = now - self._at, now
        self._service += passed * self._speed()
        self.busy += passed * min(1.0, self._demand / self.capacity)

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._users:
            left = max(0.0, self._users[0][0] - self._service) / self._speed()
            self._timer = asyncio.get_running_loop().call_later(left, self._finish)

    def _finish(self) -> None:
        self._timer = None
        self._advance()
        while self._users and self._users[0][0] <= self._service + _ROUNDING_S:
            _, _, share, done = heapq.heappop(self._users)
            self._demand -= share
            if not done.done():
                done.set_result(None)
        if not self._users:
            self._demand = 0.0
        self._plan()
