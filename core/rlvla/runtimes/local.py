"""The local runtime: each actor is a thread of this process; simulators have worker processes beside it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class LocalHandle:
    """An actor with a thread of its own: one call at a time, in the order of the calls."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._sent: list[Future[Any]] = []

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        self._raise_of_sent()
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._thread, getattr(self.actor, method), *arguments)
        self._raise_of_sent()
        if returns == 0:
            return [result]
        parts = list(result)
        assert len(parts) == returns + 1, (
            f"{self.name}.{method} returned {len(parts)} parts, {returns + 1} were announced"
        )
        return parts

    def send(self, method: str, *arguments: Any) -> None:
        self._sent.append(self.submit(method, *arguments))

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method from any thread."""
        return self._thread.submit(getattr(self.actor, method), *arguments)

    def _raise_of_sent(self) -> None:
        done = [future for future in self._sent if future.done()]
        self._sent = [future for future in self._sent if future not in done]
        for future in done:
            future.result()

    def close_actor(self, timeout_s: float) -> None:
        """Close the actor, after its present call.

        Raises:
            TimeoutError: that call does not end.
        """
        try:
            closing = self.submit("close")
        except RuntimeError:  # the interpreter is ending and has joined the thread
            self.actor.close()
        else:
            closing.result(timeout=timeout_s)

    def close(self) -> None:
        """Let the thread end after its present call."""
        self._thread.shutdown(wait=False, cancel_futures=True)
