"""The Ray runtime: actors are in Ray worker processes; payloads stay in the object store, receipts come here.

It joins the cluster that RAY_ADDRESS names, or a Ray that runs in this process already, or else starts one that listens on
the loopback interface alone and ends with the run.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlvla.devices import usable_cores
from rlvla.errors import ConfigError, WorkerDied
from rlvla.runtimes import Handle
from rlvla.runtimes.local import parts_of

try:
    import ray
    from ray.exceptions import RayActorError, RayTaskError
except ImportError as error:
    raise ConfigError(f"run.runtime: 'ray' needs the package ray ({error}); pip install 'rlvla[ray]'") from error


class _Host:
    """Lives in a Ray worker: some of a run's actors, each with a thread of its own."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = dict(makers)
        self._actors: dict[str, Any] = {}
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in makers}
        self._failed: dict[str, Exception] = {}
        self._turn = threading.Condition()
        self._next = dict.fromkeys(makers, 0)
        """Number of the next call of each actor: calls reach this process in any order."""

    def call(self, name: str, number: int, method: str, returns: int, *arguments: Any) -> Any:
        """Call a method of an actor; see :meth:`rlvla.runtimes.Handle.call`."""
        called = self._submitted(name, number, method, arguments)
        if failed := self._failed.pop(name, None):
            raise failed
        parts = parts_of(called.result(), returns, f"{name}.{method}")
        if failed := self._failed.pop(name, None):
            raise failed
        return parts[0] if len(parts) == 1 else tuple(parts)

    def send(self, name: str, number: int, method: str, *arguments: Any) -> None:
        """Call a method whose error shows at the next call."""
        try:
            self._submitted(name, number, method, arguments).result()
        except Exception as error:
            self._failed.setdefault(name, error)

    def _submitted(self, name: str, number: int, method: str, arguments: Sequence[Any]) -> Any:
        fetched = [
            ray.get(list(one)) if isinstance(one, list) and one and isinstance(one[0], ray.ObjectRef) else one
            for one in arguments  # references that are arguments by themselves were fetched by Ray
        ]
        with self._turn:
            self._turn.wait_for(lambda: self._next[name] == number)
            self._next[name] += 1
            called = self._threads[name].submit(self._run, name, method, fetched)
            self._turn.notify_all()
        return called

    def _run(self, name: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method in the actor's own thread, where it was made."""
        if name not in self._actors:
            self._actors[name] = self._makers[name]()
        return getattr(self._actors[name], method)(*arguments)

    def kill(self, name: str) -> None:
        """End what hangs in an actor's call."""
        actor: Any = self._actors.get(name)
        if hasattr(actor, "kill"):
            actor.kill()

    def close(self, name: str) -> None:
        """Close an actor after its present call."""
        actor: Any = self._actors.get(name)
        if hasattr(actor, "close"):
            self._threads[name].submit(actor.close).result()


class _Place:
    """The Ray worker that some actors live in, or the one after it."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]], replaceable: bool) -> None:
        self._makers = dict(makers)
        self._replaceable = replaceable
        self.life = 0
        """How many workers have died."""
        self.host = self._started()

    def _started(self) -> Any:
        count = len(self._makers)
        concurrency = 1 if count == 1 else 2 * count  # a call and what ends it, of each
        options = {"num_cpus": 0, "max_concurrency": concurrency, "scheduling_strategy": "SPREAD"}
        return ray.remote(_Host).options(**options).remote(self._makers)

    def died(self, life: int) -> None:
        """Hear from one of the actors that its worker has died; the first one starts the next worker."""
        if self._replaceable and life == self.life:
            self.life += 1
            self.host = self._started()


class RayHandle:
    """An actor in a Ray worker."""

    def __init__(self, name: str, place: _Place) -> None:
        self.name = name
        self._place = place
        self._life = place.life
        self._numbers = itertools.count()
        self._closed = False

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        if self._life != self._place.life:
            raise self._died(f"before {method!r}")
        remote = self._place.host.call.options(num_returns=returns + 1).remote
        made = remote(self.name, next(self._numbers), method, returns, *arguments)
        references = [made] if returns == 0 else list(made)
        try:
            receipt = await references[0]
        except RayTaskError as error:
            raise error.cause from error
        except RayActorError as error:
            self._place.died(self._life)
            raise self._died(f"in {method!r}: {error}") from error
        return [receipt, *references[1:]]

    def _died(self, when: str) -> WorkerDied:
        """Return what to raise, once: from now on calls go to the next worker, if there is one."""
        if self._life != self._place.life:
            self._life, self._numbers = self._place.life, itertools.count()
        return WorkerDied(f"{self.name}: its Ray worker ended {when}", worker=self.name)

    def send(self, method: str, *arguments: Any) -> None:
        self._place.host.send.options(num_returns=0).remote(self.name, next(self._numbers), method, *arguments)

    def kill(self) -> None:
        self._place.host.kill.remote(self.name)

    def close(self, timeout_s: float = 10.0) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            ray.get(self._place.host.close.remote(self.name), timeout=timeout_s)
        except Exception:
            self.kill()


class RayRuntime:
    """Actors are in Ray workers."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._started = not ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
            if os.environ.get("RAY_ADDRESS"):
                ray.init(**quiet)
            else:
                ray.init(num_cpus=usable_cores(), include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)

    def start(self, actors: Mapping[str, Callable[[], Any]], replaceable: bool = False) -> list[Handle]:
        place = _Place(actors, replaceable)
        self._places.append(place)
        return [RayHandle(name, place) for name in actors]

    def close(self) -> None:
        for place in self._places:
            ray.kill(place.host)
        self._places.clear()
        if self._started:
            ray.shutdown()
