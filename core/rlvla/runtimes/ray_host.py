"""What lives in a Ray worker, and how calls travel there: packed arguments, references beside them."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from rlvla.errors import PayloadLost
from rlvla.runtimes import Call
from rlvla.runtimes.local import parts_of


def _reference(number: int) -> Any:
    """Stand for a reference among packed arguments, and for what was fetched of it among those that are unpacked."""
    raise AssertionError("arguments were not unpacked by Unpacker")


class _Packer(pickle.Pickler):
    """Packs arguments in one, and takes references out, each once. Ray makes every argument of a call dear, references in it more.

    By themselves references are fetched by Ray, and whoever gets them does not become one more holder of them.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.references: list[Any] = []

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, ray.ObjectRef):
            return NotImplemented
        self.references.append(value)
        return _reference, (len(self.references) - 1,)


class Unpacker(pickle.Unpickler):
    """Puts in what was fetched."""

    def __init__(self, packed: bytes, fetched: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._fetched = fetched

    def find_class(self, module: str, name: str) -> Any:
        return self._fetched.__getitem__ if (module, name) == _REFERENCE else super().find_class(module, name)


_REFERENCE = _reference.__module__, _reference.__qualname__


def packed(value: Any) -> list[Any]:
    """Return what a call of Ray is given for arguments with references in them."""
    packer = _Packer(file := io.BytesIO())
    packer.dump(value)
    return [file.getvalue(), *packer.references]


def _see_own_gpu(given: Sequence[str]) -> None:
    """Show this process, before torch looks, and its simulators the GPUs that Ray gave it.

    Ray does so itself for CUDA, unless it was told not to (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES), which would put every
    worker on the first GPU. EGL counts devices as the driver does.
    """
    if given:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(given)
        if given[0].isdecimal():
            os.environ["MUJOCO_EGL_DEVICE_ID"] = given[0]


class Host:
    """Lives in a Ray worker: some of a run's actors, each with a thread of its own.

    Ray calls it on an event loop, so that calls that wait for an actor, or for an earlier call of theirs, hold up nobody.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        _see_own_gpu([str(one) for one in ray.get_gpu_ids()])
        self._makers = dict(makers)
        self._actors: dict[str, Any] = {}
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in makers}
        self._failed: dict[str, Exception] = {}
        """By actor, of a call that nobody waited for."""
        self._next = dict.fromkeys(makers, 0)
        """Number of the next call of each actor: calls reach this process in any order."""
        self._early: dict[tuple[str, int], asyncio.Future[None]] = {}
        """Calls that came before their turn."""

    async def call(self, packed: bytes, *fetched: Any) -> Any:
        """Call a method of an actor, after some that nobody waits for; see :meth:`rlvla.runtimes.Handle.call`.

        Args:
            packed: name of the actor, number of this call, the methods before with their arguments, the method, its
                arguments, and how many payloads it returns.
            fetched: what references among the arguments refer to.

        Returns:
            The packed receipt, and the payloads.
        """
        name, number, sent, call, returns = Unpacker(packed, fetched).load()
        called = await self._submitted(name, number, sent, call)
        receipt, *payloads = parts_of(await called, returns, f"{name}.{call[0]}")
        receipt = pickle.dumps(receipt, pickle.HIGHEST_PROTOCOL)
        return (receipt, *payloads) if payloads else receipt

    async def send(self, packed: bytes, *fetched: Any) -> None:
        """Call methods whose errors show at the next call."""
        name, number, sent = Unpacker(packed, fetched).load()
        await (await self._submitted(name, number, sent, None))

    async def _submitted(self, name: str, number: int, sent: Sequence[Call], call: Call | None) -> asyncio.Future[Any]:
        """Put calls in their actor's queue, when it is their turn."""
        await self._turn(name, number)
        called = asyncio.get_running_loop().run_in_executor(self._threads[name], self._run, name, sent, call)
        self._passed(name)
        return called

    async def came(self, name: str, number: int) -> bool:
        """Say whether a call of an actor has come: one that failed without was given what is lost."""
        return number < self._next[name]

    async def reached(self, *fetched: Any) -> None:
        """Be called where what the arguments refer to can be had."""

    async def skip(self, packed: bytes, *fetched: Any) -> None:
        """Take the place of a call that Ray does not make, since its arguments are lost: others must not wait for it.

        Args:
            packed: name of the actor, number of the call, what of it nobody waits for, as :meth:`send` takes it, and what the
                next call that is waited for says; empty: the caller says it.
            fetched: what references among the arguments refer to.
        """
        name, number, sent, why = Unpacker(packed, fetched).load()
        if number < self._next[name]:
            return  # it came, and failed by itself
        await self._turn(name, number)
        if why:
            self._failed.setdefault(name, PayloadLost(why))
        await (await self._submitted(name, number, sent, None))

    async def _turn(self, name: str, number: int) -> None:
        """Wait until all calls of an actor before this one have come."""
        if self._next[name] != number:
            self._early[name, number] = asyncio.get_running_loop().create_future()
            await self._early[name, number]
            del self._early[name, number]

    def _passed(self, name: str) -> None:
        """Let an actor's next call have its turn."""
        self._next[name] += 1
        if (next_one := self._early.get((name, self._next[name]))) is not None:
            next_one.set_result(None)

    def _run(self, name: str, sent: Sequence[Call], call: Call | None) -> Any:
        """Call methods in the actor's own thread, where it was made; what failed before ends the one that is waited for."""
        for method, arguments in sent:
            try:
                getattr(self._actor(name), method)(*arguments)
            except Exception as error:
                self._failed.setdefault(name, error)
        if call is None:
            return None
        if failed := self._failed.pop(name, None):
            raise failed
        method, arguments = call
        return getattr(self._actor(name), method)(*arguments)

    def _actor(self, name: str) -> Any:
        if name not in self._actors:
            self._actors[name] = self._makers[name]()
        return self._actors[name]

    async def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    async def kill(self, name: str) -> None:
        """End what hangs in an actor's call."""
        actor: Any = self._actors.get(name)
        if hasattr(actor, "kill"):
            actor.kill()

    async def close(self, name: str) -> None:
        """Close an actor after its present call."""
        actor: Any = self._actors.get(name)
        if hasattr(actor, "close"):
            await asyncio.get_running_loop().run_in_executor(self._threads[name], actor.close)
