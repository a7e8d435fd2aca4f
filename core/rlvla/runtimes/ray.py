"""The Ray runtime: actors are in Ray worker processes (:mod:`rlvla.runtimes.ray_host`); payloads stay in the object store, receipts
come here.

It joins the cluster that RAY_ADDRESS names, or a Ray that runs in this process already, or else starts one that ends with
the run. Ray listens on every interface whatever it is told, so that one takes nobody without a secret of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from rlvla.devices import cluster_address, usable_cores
from rlvla.errors import ConfigError, PayloadLost, SimulatorError, WorkerDied
from rlvla.runtimes import Call, Handle, cluster

if cluster_address() is None and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
    # It reads this once, when it is imported.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from rlvla.runtimes.ray_host import Host, packed
except ImportError as error:
    raise ConfigError(f"run.runtime: 'ray' needs the package ray ({error}); pip install 'rlvla[ray]'") from error

R = TypeVar("R")
log = logging.getLogger(__name__)
_ray: Any = ray
"""Without its types, which it has in part."""
_CALLS = 100_000
"""That may wait in a worker: what is played while the trainer trains."""
_SHARE = 0.05
"""Of a GPU, that a worker asks for: the whole of it is reserved, and its workers share it as the placement says."""
_RESERVE_S = 30.0
"""Until GPUs are there: at the start, and where a machine was lost, in another one's place."""
_LOOK_S = 0.5
"""Between two looks at what is reserved."""
_TOGETHER = 8
"""Calls that nobody waits for, in one call of Ray: so many at most wait to be sent, and keep what they refer to."""
_Sent = tuple[str, Sequence[Any], Call | None]
"""Method, arguments, and what is called where what they refer to is lost."""


class _Place:
    """The Ray worker that some actors live in, or the one after it."""

    def __init__(
        self, makers: Mapping[str, Callable[[], Any]], replaceable: bool, where: Mapping[str, Any], group: Any
    ) -> None:
        self._makers = dict(makers)
        self._replaceable = replaceable
        self._where = dict(where)
        self._group = group
        """Of the devices that are reserved, if they are."""
        self._stands = True
        """Its worker has a machine."""
        self.life = 0
        """How many workers have died."""
        self.host: Any = None
        self._ways: dict[int, Callable[..., Any]] = {}
        """How its worker is called, by the number of what comes back: Ray takes its time to make them."""
        self._start()

    def _start(self) -> None:
        # Else Ray keeps what it knows of the last calls: 250 MiB after 20 minutes (benchmarks/results/ray_object_store.md).
        options = {"num_cpus": 0, "max_concurrency": _CALLS, "enable_task_events": False, **self._where}
        self.host = ray.remote(Host).options(**options).remote(self._makers)
        self._ways.clear()

    def submit(self, parts: int, arguments: Sequence[Any]) -> Any:
        """Call the worker; returns the references of so many parts of the answer. None: it only says that it is done."""
        way = self._ways.get(parts)
        if way is None:
            method = self.host.call if parts else self.host.send
            way = self._ways[parts] = method.options(num_returns=max(1, parts)).remote
        return way(*arguments)

    def died(self, life: int) -> None:
        """Hear from one of the actors that its worker has died; the first one starts the next worker."""
        if self._replaceable and life == self.life:
            self.life += 1
            self._stands = self._group is None  # where nothing is reserved, a worker fits anywhere
            self._start()

    async def stand(self) -> None:
        """Wait until a worker in a dead one's place has a machine: Ray reserves another GPU for one that is gone with its machine.

        Raises:
            SimulatorError: none is free in time.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + _RESERVE_S
        while not self._stands:
            self._stands = (await asyncio.to_thread(ray.util.placement_group_table, self._group))["state"] == "CREATED"
            if not self._stands and loop.time() > ends:
                raise SimulatorError(
                    f"{', '.join(self._makers)}: lost with a machine, and for {_RESERVE_S:g} s no other has had a free GPU and core "
                    "for it (ray status): add one, or go on with fewer (rlvla train --resume RUN --run.devices N)",
                    worker=next(iter(self._makers)),
                )
            if not self._stands:
                await asyncio.sleep(_LOOK_S)


class RayHandle:
    """An actor in a Ray worker."""

    def __init__(self, name: str, place: _Place) -> None:
        self.name = name
        self._place = place
        self._life = place.life
        self._numbers = itertools.count()
        self._sent: list[_Sent] = []
        """Nobody waits for them, and they have not left."""
        self._leaving: set[asyncio.Task[Any]] = set()
        """Wait for calls that have left, until they have come."""
        self._closed = False

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        if self._life != self._place.life:
            raise self._died(f"before {method!r}")
        await self._place.stand()
        if self._life != self._place.life:
            raise self._died(f"before {method!r}")
        life = self._life
        before, self._sent = self._sent, []
        number, host = next(self._numbers), self._place.host
        try:
            return await self._called(host, number, before, (method, arguments), returns)
        except RayActorError as error:
            heard = life != self._life  # another call that was under way told of this death
            self._place.died(life)
            died = self._died(f"in {method!r}: {error}")
            died.heard = heard
            raise died from error

    async def _called(
        self, host: Any, number: int, before: Sequence[_Sent], call: Call, returns: int, last: bool = False
    ) -> list[Any]:
        """Make a call of the worker, after some that nobody waits for; ``last``: not again, should it be lost."""
        made = self._place.submit(returns + 1, packed((self.name, number, _plain(before), call, returns)))
        references = [made] if returns == 0 else list(made)
        try:
            receipt = await references[0]
        except asyncio.CancelledError:  # should it never come, later calls are not to wait for it
            self._leave(self._arrived(references[0], host, number, before))
            raise
        except (RayTaskError, ObjectLostError) as error:
            again = self._failed(host, number, before, call, returns, error, last)
            return await asyncio.shield(self._leave(again))
        return [pickle.loads(receipt), *references[1:]]

    async def _failed(
        self, host: Any, number: int, before: Sequence[_Sent], call: Call, returns: int, error: Exception, last: bool
    ) -> list[Any]:
        """Raise what a call failed with; but where it never came since something before it is lost, make it without that."""
        with contextlib.suppress(RayActorError):
            if not await host.came.remote(self.name, number):
                kept, why = await self._kept(host, before)
                if not last and not why and await _reached(host, call[1]) is None:
                    return await self._called(host, number, kept, call, returns, last=True)
                await self._skip(host, number, kept, "")
                raise PayloadLost(why or self._lost(call[0], error)) from error
        raise getattr(error, "cause", error) from error

    async def _kept(self, host: Any, sent: Sequence[_Sent]) -> tuple[list[_Sent], str]:
        """Return what is called instead of some calls of which some were lost, and what to say where nothing stands in for one."""
        found = await asyncio.gather(*(_reached(host, arguments) for _, arguments, _ in sent))
        kept, why = [], ""
        for one, error in zip(sent, found, strict=True):
            method, _, instead = one
            if error is None:
                kept.append(one)
            elif instead is not None:
                kept.append((*instead, None))
            else:
                why = why or self._lost(method, error)
        return kept, why

    async def _skip(self, host: Any, number: int, sent: Sequence[_Sent], why: str) -> None:
        """Let the worker go on after a call that never came, with what is left of what nobody waits for in it."""
        try:
            await host.skip.remote(*packed((self.name, number, _plain(sent), why)))
        except (RayTaskError, ObjectLostError) as error:  # lost since
            rest = [(*instead, None) for _, _, instead in sent if instead is not None]
            why = why or self._lost(sent[0][0], error)
            await host.skip.remote(*packed((self.name, number, _plain(rest), why)))

    def _died(self, when: str) -> WorkerDied:
        """Return what to raise, once: from now on calls go to the next worker, if there is one."""
        if self._life != self._place.life:
            self._life, self._numbers, self._sent = self._place.life, itertools.count(), []
        return WorkerDied(f"{self.name}: its Ray worker ended {when}", worker=self.name)

    def send(self, method: str, *arguments: Any, at_once: bool = False, instead: Call | None = None) -> None:
        if self._life != self._place.life:
            return  # the worker is gone: the next call says so
        self._sent.append((method, arguments, instead))
        if at_once or len(self._sent) == _TOGETHER:
            before, self._sent = self._sent, []
            number = next(self._numbers)
            made = self._place.submit(0, packed((self.name, number, _plain(before))))
            self._leave(self._arrived(made, self._place.host, number, before))

    def _leave(self, waiting: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Wait for what became of a call, whoever else does."""
        leaving = asyncio.ensure_future(waiting)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._left)
        return leaving

    def _left(self, leaving: asyncio.Task[Any]) -> None:
        self._leaving.discard(leaving)
        if not leaving.cancelled():
            leaving.exception()  # said by whoever waits, if anybody still does

    async def _arrived(self, made: Any, host: Any, number: int, sent: Sequence[_Sent]) -> None:
        """Wait until what was sent has come; what never will is skipped, and said by the next call that is waited for."""
        try:
            await made
        except (RayTaskError, ObjectLostError):
            with contextlib.suppress(RayActorError):
                await self._skip(host, number, *await self._kept(host, sent))
        except RayActorError:
            pass  # the next call says so

    def _lost(self, method: str, error: Exception) -> str:
        words = str(getattr(error, "cause", error)).strip().splitlines()[0]
        return f"{self.name}: what {method!r} was given is lost, with the machine or the process that held it ({words})"

    async def answers(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(_resolved(self._place.host.ping.remote()), seconds)
        except (TimeoutError, RayActorError):
            return False
        return True

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


def _plain(sent: Sequence[_Sent]) -> list[Call]:
    """Return what travels of calls that nobody waits for."""
    return [(method, arguments) for method, arguments, _ in sent]


async def _reached(host: Any, arguments: Sequence[Any]) -> Exception | None:
    """Return what keeps a worker from getting what arguments refer to; None: nothing does."""
    _, *references = packed(arguments)
    try:
        if references:
            await host.reached.remote(*references)
    except (RayTaskError, ObjectLostError) as error:
        return error
    return None


async def _resolved(reference: Any) -> Any:
    return await reference


class RayRuntime:
    """Actors are in Ray workers.

    Args:
        devices: that the run uses.
        gpus: they are GPUs: each is reserved, with the workers that use it.
        packages: package to version that every machine of a cluster must have.
        played: most bytes of pictures that wait in the object store.
        look: says what keeps simulators' workers from starting on the machine that it is called on; None: nobody asks.
        rendering: devices that simulators live on.
    """

    def __init__(
        self,
        devices: int = 1,
        gpus: bool = False,
        packages: Mapping[str, str] | None = None,
        played: int = 0,
        look: Callable[[], str] | None = None,
        rendering: Sequence[int] = (),
    ) -> None:
        self._places: list[_Place] = []
        self._devices = devices
        self._group: Any = None
        self._started = not ray.is_initialized()
        if self._started:
            self._thread = _connected(played)
        several = sum(node["Alive"] for node in _ray.nodes()) > 1
        self.address = str(_ray.util.get_node_ip_address()) if several else "127.0.0.1"
        try:
            if packages and (several or cluster_address() is not None):
                cluster.check_nodes(ray, packages)
            if gpus:
                self._group = _reserved(devices)
            if look is not None:
                at = self._bundles()
                cluster.check_simulator(ray, look, {at[device] for device in rendering} if gpus else None)
        except BaseException:
            self.close()
            raise

    def start(
        self, actors: Mapping[str, Callable[[], Any]], replaceable: bool = False, device: int = 0
    ) -> list[Handle]:
        where: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if self._group is not None:
            bundle = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=device)
            where = {"scheduling_strategy": bundle, "num_gpus": _SHARE}
        place = _Place(actors, replaceable, where, self._group)
        self._places.append(place)
        return [RayHandle(name, place) for name in actors]

    def nodes(self) -> list[int]:
        if self._group is None:
            return [0] * self._devices
        at = self._bundles()
        order: dict[str, int] = {}
        return [order.setdefault(at[device], len(order)) for device in range(self._devices)]

    def _bundles(self) -> dict[int, str]:
        """Return Ray's name of the machine of each device, as far as devices are reserved."""
        if self._group is None:
            return {}
        found: dict[int, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return found

    def close(self) -> None:
        for place in self._places:
            ray.kill(place.host)
        self._places.clear()
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None
        if self._started:
            ray.shutdown()
            self._thread.shutdown(wait=False)


def _connected(played: int) -> ThreadPoolExecutor:
    """Join or start Ray in a thread, so that no signal ends that half way: what is left then crashes when the process exits.

    Returns:
        The thread. Processes that Ray started end with it.

    Raises:
        KeyboardInterrupt: SIGTERM or Ctrl-C came meanwhile.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
    before = signal.getsignal(signal.SIGTERM)
    started = thread.submit(_connect, played)
    try:
        while not wait([started], timeout=0.5).done:  # a wait without end would not hear Ctrl-C
            pass
        started.result()
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            signal.alarm(0)  # with its own handler of SIGTERM, Ray sets one that aborts the process 3 seconds later
            wait([started])
        ray.shutdown()
        thread.shutdown(wait=False)
        raise
    finally:
        if threading.current_thread() is threading.main_thread() and callable(before):
            signal.signal(signal.SIGTERM, before)  # Ray's would end the process with everything left behind
    return thread


def _connect(played: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one for this run alone.

    Raises:
        ConfigError: of another version of Ray or Python, nobody there, or too little of what it takes to start one.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if (address := cluster_address()) is not None:
        cluster.reach(address)
        cluster.check_ray(address)
        try:
            ray.init(**quiet)
        except (RuntimeError, ConnectionError) as error:
            raise ConfigError(
                f"run.runtime: cannot join the Ray cluster at RAY_ADDRESS={address}: {error}; wanted Ray {ray.__version__} on every "
                f"machine (ray status), the same Python, and an address that this machine reaches; {cluster.TOKEN}"
            ) from error
    else:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            log.warning(
                "Ray listens on every interface and takes anybody: RAY_AUTH_MODE is not 'token'; mind the firewall"
            )
        cluster.check_ports()
        store = cluster.store_bytes(played)
        try:
            ray.init(
                address="local",  # not one that somebody has started on this machine
                num_cpus=usable_cores(),
                object_store_memory=store,
                include_dashboard=False,
                **quiet,
            )
        except BaseException as error:  # it raises Exception itself
            ray.shutdown()
            if not isinstance(error, Exception):
                raise
            raise ConfigError(
                f"run.runtime: Ray does not start on this machine: {error} Look at /tmp/ray/session_latest/logs, at free memory, and at "
                "processes that an earlier Ray has left (ray stop)"
            ) from error


def _reserved(devices: int) -> Any:
    """Reserve a GPU, and a core for it, for each device; those of a machine are next to each other.

    Raises:
        ConfigError: there are not so many, or others hold them.
    """
    there = _ray.cluster_resources()
    needs = f"run.devices: needs {devices} GPUs and as many cores"
    if there.get("GPU", 0) < devices or there.get("CPU", 0) < devices:
        raise ConfigError(
            f"{needs}; the cluster has {there.get('GPU', 0):g} GPUs and {there.get('CPU', 0):g} cores: lower run.devices, or add "
            "machines"
        )
    group = ray.util.placement_group([{"GPU": 1, "CPU": 1}] * devices, strategy="PACK")
    if not group.wait(timeout_seconds=_RESERVE_S):
        free = _ray.available_resources()
        ray.util.remove_placement_group(group)
        raise ConfigError(
            f"{needs}; {free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} cores are free: others hold the rest (ray status)"
        )
    return group
