"""The local runtime: each actor is a thread of this process; simulators have worker processes beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlvla.runtimes import Call, Handle


class LocalHandle:
    """An actor with a thread of its own: one call at a time, in the order of the calls."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._sent: list[Future[Any]] = []
        self._closed = False

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        self._raise_of_sent()
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._thread, getattr(self.actor, method), *arguments)
        self._raise_of_sent()
        return parts_of(result, returns, f"{self.name}.{method}")

    def send(self, method: str, *arguments: Any, at_once: bool = False, instead: Call | None = None) -> None:
        self._sent.append(self._thread.submit(getattr(self.actor, method), *arguments))

    def _raise_of_sent(self) -> None:
        done = [future for future in self._sent if future.done()]
        self._sent = [future for future in self._sent if future not in done]
        for future in done:
            future.result()

    async def answers(self, seconds: float) -> bool:
        return True

    def kill(self) -> None:
        if hasattr(self.actor, "kill"):
            self.actor.kill()

    def close(self, timeout_s: float = 10.0) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self.actor, "close"):
            try:
                self._close_actor(timeout_s)
            except Exception:
                self.kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _close_actor(self, timeout_s: float) -> None:
        try:
            closing = self._thread.submit(self.actor.close)
        except RuntimeError:  # the interpreter is ending and has joined the thread
            self.actor.close()
        else:
            closing.result(timeout=timeout_s)


class LocalRuntime:
    """Actors are threads of this process."""

    address = "127.0.0.1"

    def start(
        self, actors: Mapping[str, Callable[[], Any]], replaceable: bool = False, device: int = 0
    ) -> list[Handle]:
        return [LocalHandle(name, make()) for name, make in actors.items()]

    def nodes(self) -> list[int]:
        return [0]

    def close(self) -> None:
        """Nothing is left."""


def parts_of(result: Any, returns: int, what: str) -> list[Any]:
    """Return the receipt and the payloads that a call announced."""
    if returns == 0:
        return [result]
    parts = list(result)
    assert len(parts) == returns + 1, f"{what} returned {len(parts)} parts, {returns + 1} were announced"
    return parts
