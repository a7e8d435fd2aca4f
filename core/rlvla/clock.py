"""Virtual time: an asyncio event loop whose clock jumps to the next timer instead of waiting for it.

A scheduler takes time only from its event loop, so on this loop the same code runs hours of waiting in seconds, and twice
the same to the nanosecond::

    async def main():
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    run_virtual(main())                                     # 3600.0, at once

Time is an integer number of nanoseconds from 0. Timers of one instant run in the order in which they were set, after
everything that is ready; so ``call_later(0, f)`` calls ``f`` at the end of the present instant. What would wait for ever
in real time is an error here (:class:`Stuck`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from asyncio import base_events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

from rlvla.errors import RlvlaError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
NANOSECONDS = 1_000_000_000
MAX_TURNS = 200_000
"""Rounds of callbacks in one instant, after which somebody is polling."""


class Stuck(RlvlaError):
    """Every task waits for another, or the clock stands still; the message says where each task waits."""


class VirtualLoop(base_events.BaseEventLoop):
    """An event loop for coroutines that wait for timers and for each other, and for nothing outside."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._sequence = itertools.count()
        self._turns = 0

    def time(self) -> float:
        """Return the seconds since the loop was made; only differences mean something on other loops."""
        return self._now / NANOSECONDS

    def time_ns(self) -> int:
        """Return the nanoseconds since the loop was made, exactly."""
        return self._now

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(self._now + round(delay * NANOSECONDS), callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(round(when * NANOSECONDS), callback, args, context)

    def _call_at(
        self, when: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.TimerHandle(when / NANOSECONDS, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._sequence), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave the heap when their time comes."""

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            raise RuntimeError("virtual time knows no threads: a real thread's work takes no time on this clock")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> Any:
        raise RuntimeError(
            f"virtual time knows no threads: {getattr(func, '__qualname__', func)} would take no time on this clock; "
            "give the actor a fake with a latency"
        )

    def _run_once(self) -> None:
        """Run what is ready; when nothing is, jump to the next timer and run all timers of that instant."""
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)
            if not self._timers:
                raise Stuck(f"nothing can happen any more at {self.time()} s; waiting:\n{waiting_tasks(self)}")
            when = self._timers[0][0]
            if when > self._now:
                self._now, self._turns = when, 0
            while self._timers and self._timers[0][0] <= self._now:
                ready.append(heapq.heappop(self._timers)[2])
        self._turns += 1
        if self._turns > MAX_TURNS:
            self._turns = 0  # the tasks must still be able to end
            raise Stuck(f"the clock stands at {self.time()} s for {MAX_TURNS} turns; waiting:\n{waiting_tasks(self)}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who had to be woken."""


def waiting_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return one line a task: its name, and through which calls it waits."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return "\n".join(f"  {task.get_name()}: {' > '.join(_chain(task.get_coro()))}" for task in tasks)


def _chain(waiter: Any) -> list[str]:
    """Return the calls through which a coroutine waits, outermost first, and what it waits for."""
    calls: list[str] = []
    while (frame := getattr(waiter, "cr_frame", None)) is not None:
        calls.append(f"{waiter.cr_code.co_qualname}:{frame.f_lineno}")
        waiter = waiter.cr_await
    return [*calls, type(waiter).__name__] if waiter is not None else calls


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, from 0.

    Raises:
        Stuck: nothing can happen any more although ``main`` is not done, or somebody polls.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
