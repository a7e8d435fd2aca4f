"""Nothing waits for ever: calls that wait are watched, and a stall is reported with who waits for whom."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rlvla.clock import waiting_tasks
from rlvla.errors import StallError

R = TypeVar("R")
MIN_STALL_S = 60.0
SLOWEST_FACTOR = 10.0
_GRACE_S = 10.0
"""For a worker that was too late to say where it was, and to end."""


class Watch:
    """Knows every waiting call. No call of a kind may take longer than 60 s and ten times the slowest seen so far.

    Args:
        min_stall_s: seconds before anything counts as a stall.
        first_call_s: allowance for the first call of each kind (simulators build scenes, kernels are compiled).
        call_limit_s: of the simulators' own calls, which comes first: what it ends may be replaced; None: there is none.
    """

    def __init__(
        self, min_stall_s: float = MIN_STALL_S, first_call_s: float = 600.0, call_limit_s: float | None = None
    ) -> None:
        self.min_stall_s = min_stall_s if call_limit_s is None else max(min_stall_s, call_limit_s + _GRACE_S)
        self.first_call_s = first_call_s
        self._slowest: dict[str, float] = {}
        self._waiting: dict[int, tuple[str, float, str]] = {}
        self._next = 0
        self._excuses = 0

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Within, it is no stall that no watched call is under way."""
        self._excuses += 1
        try:
            yield
        finally:
            self._excuses -= 1

    async def __call__(self, kind: str, waiting: Awaitable[R], who: str = "") -> R:
        """Wait, watched; ``who`` is waited for."""
        loop = asyncio.get_running_loop()
        number, began = self._next, loop.time()
        self._next += 1
        self._waiting[number] = (kind, began, who)
        try:
            return await waiting
        finally:
            del self._waiting[number]
            self._slowest[kind] = max(self._slowest.get(kind, 0.0), loop.time() - began)

    def allowance(self, kind: str) -> float:
        """Return the seconds that a call of this kind may take."""
        if kind not in self._slowest:
            return max(self.first_call_s, self.min_stall_s)
        return max(self.min_stall_s, SLOWEST_FACTOR * self._slowest[kind])

    async def run(self) -> None:
        """Look at the waiting calls for ever; raises when one has stalled.

        Raises:
            StallError: with the waiting calls and the stack of every thread.
        """
        loop = asyncio.get_running_loop()
        pause = min(5.0, self.min_stall_s / 4)
        begun, idle = self._next, 0.0
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            idle = idle + pause if begun == self._next and not self._waiting and not self._excuses else 0.0
            begun = self._next
            if idle > self.min_stall_s:
                raise StallError(
                    f"no progress: for {idle:.0f} s no call was under way, and none began. Tasks:\n{waiting_tasks(loop)}"
                )
            for kind, began, who in list(self._waiting.values()):
                if now - began > self.allowance(kind):
                    raise StallError(self._report(kind, who, now - began, now), worker=who)

    def _report(self, kind: str, who: str, seconds: float, now: float) -> str:
        waiting = "\n".join(
            f"  {one} {name}: {now - began:.0f} s (allowed {self.allowance(one):.0f} s)"
            for one, began, name in self._waiting.values()
        )
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = "\n".join(
            f"  thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame)[-4:])
            for ident, frame in sys._current_frames().items()
        )
        named = f" for {who}" if who else ""
        return f"no progress: {kind!r} has waited {seconds:.0f} s{named}. Waiting:\n{waiting}\nStacks:\n{stacks}"
