"""What a Ray cluster must have before a run starts on it: somebody at its address, the packages everywhere, shared memory."""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlvla.checks import Specs
from rlvla.errors import ConfigError, SimulatorError

SHARED_MEMORY = Path("/dev/shm")
_GIB = 2.0**30
_NO_MODULE = re.compile(r"No module named '([^']+)'")
_ANSWER_S = 120.0
"""A machine may take to start a worker and let it say something."""
TOKEN = "where the cluster has token authentication, RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN (or ~/.ray/auth_token) here too"
"""What a message says of a cluster that may not let this machine in."""


def reach(place: str, seconds: float = 5.0) -> None:
    """Make sure that somebody listens at a cluster's address: Ray itself would look for minutes.

    Raises:
        ConfigError: nobody does, or a run cannot be started through it.
    """
    if place.startswith("ray://"):
        raise ConfigError(
            f"run.runtime: got RAY_ADDRESS={place}, wanted host:port: start the run on a machine of the cluster, for instance "
            "with `ray job submit`"
        )
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        return  # "auto": Ray looks for one on this machine
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except OSError as error:
        raise ConfigError(
            f"run.runtime: nobody answers at RAY_ADDRESS={place} ({error}): look at `ray status` there, and at firewalls; or unset "
            "it, and the run starts Ray on this machine"
        ) from error


def check_ray(place: str, seconds: float = 30.0) -> None:
    """Make sure that what listens at a cluster's address answers Ray: joining anything else would never end.

    Asks in a process of its own, which can be ended. Where Ray says no by itself, joining says why.

    Args:
        place: of RAY_ADDRESS.
        seconds: it may take.

    Raises:
        ConfigError: it does not answer in time.
    """
    ask = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", place]
    try:
        subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"run.runtime: what listens at RAY_ADDRESS={place} has not answered as Ray does in {seconds:g} s; wanted host:port of "
            f"`ray start --head`; {TOKEN}"
        ) from error


def check_ports(wanted: int = 64) -> None:
    """Make sure that a Ray can start on this machine as far as ports and open files go: it would find out in 40 s, and not say so.

    Args:
        wanted: that Ray, its workers and a run's meeting places may take.

    Raises:
        ConfigError: there are fewer.
    """
    with ExitStack() as held:
        for number in range(wanted):
            try:
                held.enter_context(socket.create_server(("127.0.0.1", 0)))
            except OSError as error:
                raise ConfigError(
                    f"run.runtime: 'ray' wants {wanted} free ports and open files on this machine, got {number}: {error.strerror}: "
                    "look at `ss -s`, at `sysctl net.ipv4.ip_local_port_range` and at `ulimit -n`"
                ) from error


def misfits(node: str, wanted: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
    """Return what a machine lacks to run actors.

    Args:
        node: its address.
        wanted: package (or ``python``) to its version on this machine.
        found: the same there; None: not installed.
    """
    lines = []
    for package, version in wanted.items():
        there = found.get(package)
        if there is None:
            lines.append(
                f"node {node}: {package} is not installed, wanted {version}: pip install {package}=={version} there"
            )
        elif there.partition("+")[0] != version.partition("+")[0]:  # behind the plus: built for which CUDA
            lines.append(f"node {node}: {package} {there}, wanted {version} as on this machine")
    return lines


def reader(names: tuple[str, ...]) -> Callable[[], dict[str, str | None]]:
    """Return a function that tells what a machine has. It needs nothing of rlvla there: it travels by value."""

    def installed() -> dict[str, str | None]:
        import sys
        from importlib import metadata

        found: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:2]))}
        for name in names:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = None
        return found

    return installed


def played_bytes(specs: Specs) -> int:
    """Return the most bytes of pictures that wait in the object store: of units played, begun, and trained on now."""
    pictures = sum(camera.height * camera.width * 3 for camera in specs.sim.cameras)
    return (specs.scheduler.max_staleness + 2) * specs.samples_per_step * pictures


def store_bytes(need: int, free: int | None = None, memory: int | None = None) -> int:
    """Return the size of the object store of a Ray that a run starts: what it needs and half of that, at least 1 GiB.

    Args:
        need: of :func:`played_bytes`.
        free: bytes in shared memory; None: as it is.
        memory: of this machine; None: as it is.

    Raises:
        ConfigError: shared memory is too small; says how much is needed.
    """
    free = shutil.disk_usage(SHARED_MEMORY).free if free is None and SHARED_MEMORY.is_dir() else free or 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if memory is None else memory
    if need > free:
        raise ConfigError(
            f"run.runtime: 'ray' keeps what is played in {SHARED_MEMORY}: needs up to {need / _GIB:.2g} GiB, {free / _GIB:.2g} GiB "
            f"are free. Make it larger (docker run --shm-size={math.ceil(need / _GIB)}g; mount -o remount,size=...), or play less: a "
            "smaller window, fewer units a step, smaller pictures"
        )
    return int(min(max(1.5 * need, 0.1 * memory, _GIB), 0.9 * free))


def check_nodes(ray: Any, wanted: Mapping[str, str]) -> None:
    """Make sure that every machine of a cluster has a run's packages.

    Args:
        ray: the module, connected.
        wanted: package (or ``python``) to its version here.

    Raises:
        ConfigError: a line for each package that a machine lacks.
    """
    look = reader(tuple(name for name in wanted if name != "python"))
    problems: list[str] = []
    for node, found in _asked(ray, look, None):
        problems += misfits(node, wanted, found)
    if problems:
        raise ConfigError(problems)


def check_simulator(ray: Any, look: Callable[[], str], nodes: Container[str] | None) -> None:
    """Ask each machine that will have simulators what keeps their workers from starting there.

    Args:
        ray: the module, connected.
        look: says it, on that machine; nothing: they start.
        nodes: Ray's names of those machines; None: all may have some.

    Raises:
        SimulatorError: all that is missing, with the machines' names.
    """
    missing = [f"node {node}: {words}" for node, words in _asked(ray, look, nodes) if words]
    if missing:
        raise SimulatorError("\n".join(missing))


def _asked(ray: Any, look: Callable[[], Any], nodes: Container[str] | None) -> list[tuple[str, Any]]:
    """Return address and what a function returns, of each machine: two may have one address.

    Raises:
        ConfigError: a machine does not answer, or the function fails there.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def answer() -> Any:  # by value, whatever it is and wherever it is from
        return look()

    remote = ray.remote(answer)
    asked = {
        remote.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        ).remote(): (node["NodeManagerAddress"], node["NodeID"])
        for node in ray.nodes()
        if node["Alive"] and (nodes is None or node["NodeID"] in nodes)
    }
    done, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    problems = [
        f"node {_named(*asked[one])}: no worker of Ray has answered there in {_ANSWER_S:.0f} s (ray status)"
        for one in silent
    ]
    found: list[tuple[str, Any]] = []
    for one in done:
        try:
            found.append((asked[one][0], ray.get(one)))
        except Exception as error:
            problems.append(f"node {_named(*asked[one])}: {_why(error)}")
    if problems:
        raise ConfigError(problems)
    return found


def _named(address: str, node: str) -> str:
    return f"{address} ({node[:8]})"


def _why(error: Exception) -> str:
    """Return what a machine that cannot be asked lacks, of an error of Ray."""
    cause = getattr(error, "cause", None) or error
    package = cause.name if isinstance(cause, ModuleNotFoundError) else None
    if package is None and (found := _NO_MODULE.search(str(error))):
        package = found[1]
    if package is None:
        return f"cannot be asked what it has: {type(cause).__name__}: {cause}"
    return f"{package} is not installed, wanted as on this machine: pip install it there"
