"""Where actors run. A runtime makes handles; schedulers and services see nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from rlvla import preflight, versions
from rlvla.checks import Specs, measured_on, on_gpus
from rlvla.configs import RunConfig

Call = tuple[str, Sequence[Any]]
"""Method and arguments."""


class Handle(Protocol):
    """An actor somewhere."""

    name: str

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        """Call a method and wait for its receipt.

        Args:
            method: of the actor; it returns a receipt alone or a tuple (receipt, payload...).
            arguments: plain data, or references that earlier calls returned, also in lists.
            returns: number of payloads.

        Returns:
            The receipt, then one reference for each payload: the payload itself here, a ticket for it on a cluster.

        Raises:
            WorkerDied: its process has ended.
            PayloadLost: a reference among the arguments leads nowhere any more.
            SimulatorError: no machine has room for the process that is to take a dead one's place.
        """

    def send(self, method: str, *arguments: Any, at_once: bool = False, instead: Call | None = None) -> None:
        """Call a method without waiting; an error shows at the next waited call.

        Args:
            method: of the actor.
            arguments: as of :meth:`call`.
            at_once: it leaves now. Else it may wait for others that are sent, and leaves before any later call does.
            instead: what is called where references among the arguments lead nowhere any more; None: that is an error.
        """

    async def answers(self, seconds: float) -> bool:
        """Say whether its process answers in time, whatever the actor is doing."""

    def kill(self) -> None:
        """End what hangs in a simulator's call, from any thread: the call then fails."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Close the actor after its present call, or kill what does not end in time. A second call does nothing."""


class Runtime(Protocol):
    """Makes actors. One call at a time runs in an actor, in the order of the calls."""

    address: str
    """Of the interface at which this process is reached by the actors' processes."""

    def start(
        self, actors: Mapping[str, Callable[[], Any]], replaceable: bool = False, device: int = 0
    ) -> list[Handle]:
        """Return handles of actors that live in one process, each in a thread of its own.

        Args:
            actors: name to what makes it, called in that process.
            device: number of the GPU that it uses, if the run has any.
            replaceable: where that process dies, a call that waits in it, or the next one, fails with
                :class:`rlvla.errors.WorkerDied`, and calls after it reach an actor that is made anew in another process.
                Else they fail too.
        """

    def nodes(self) -> list[int]:
        """Return the number of the machine of each device."""

    def close(self) -> None:
        """End what the runtime started; its actors are closed before."""


def runtime_of(config: RunConfig, specs: Specs) -> Runtime:
    """Return the runtime that ``run.runtime`` names, for a run.

    Raises:
        ConfigError: Ray, or its cluster, cannot take the run.
        SimulatorError: a machine of the cluster lacks what the simulator needs.
    """
    if config.run.runtime == "ray":
        from rlvla.runtimes import cluster
        from rlvla.runtimes.ray import RayRuntime

        wanted = [config.sim] if specs.algo.unit != "demonstration" else []
        if config.eval.every and (measured := measured_on(config)) not in wanted:
            wanted.append(measured)
        return RayRuntime(
            specs.placement.devices,
            on_gpus(config),
            versions.everywhere(config),
            cluster.played_bytes(specs),
            partial(preflight.missing, wanted, config.run.sim_python) if wanted else None,
            specs.placement.simulator,
        )
    from rlvla.runtimes.local import LocalRuntime

    return LocalRuntime()
