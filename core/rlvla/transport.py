"""How new weights come from the trainer to generators: trainable parameters and buffers alone, with their version.

``reference``: one process; the generator is handed the trainer's copy. ``store``: through the runtime's object store, by the CPU.
``process``: each generator lives in a process with a trainer rank, and takes its copy there, on the GPU. ``broadcast``: rank 0
sends to all generators at once, in buckets, on a stream and in a thread of its own, while the next training step goes on; NCCL
between GPUs, gloo between CPUs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from rlvla import ranks
from rlvla.errors import TransportError
from rlvla.weights import Weights

BUCKET_BYTES = 1 << 28
"""Most bytes that are sent at once, but for a larger single tensor."""
_LONGEST = timedelta(seconds=60)
"""A bucket may take; beyond, somebody is gone."""


@dataclass(frozen=True)
class Notice:
    """What a generator is told where weights come by another way than the call: their names, shapes and dtypes, in order."""

    via: str
    version: int
    layout: tuple[tuple[str, tuple[int, ...], torch.dtype], ...] = ()


class WeightTransport(Protocol):
    """Brings weights out of a trainer's copy and into a generator's hands. Both ends are made with the actors."""

    def send(self, weights: Weights, version: int) -> Weights | Notice:
        """Hand over weights, which nobody changes any more; returns what generators are to be told."""

    def receive(self, told: Weights | Notice) -> Weights:
        """Return the weights that belong to what :meth:`send` returned.

        Raises:
            TransportError: they cannot come that way; they have to be sent anew by another.
        """


class Reference:
    """The weights themselves are told."""

    def send(self, weights: Weights, version: int) -> Weights:
        return weights

    def receive(self, told: Weights | Notice) -> Weights:
        assert not isinstance(told, Notice), "a notice where weights were expected"
        return told


class Store(Reference):
    """The weights are told, as they are to go through an object store: on the CPU."""

    def send(self, weights: Weights, version: int) -> Weights:
        return {name: one.cpu() for name, one in weights.items()}


class Shelf:
    """A place in a process where its trainer rank leaves weights and its generators take them."""

    def __init__(self) -> None:
        self._kept: tuple[int, Weights] | None = None

    def send(self, weights: Weights, version: int) -> Notice:
        self._kept = version, weights
        return Notice("process", version)

    def receive(self, told: Weights | Notice) -> Weights:
        assert isinstance(told, Notice), "weights where a notice was expected"
        if self._kept is None or self._kept[0] < told.version:
            raise TransportError(
                f"version {told.version} of the weights is not in this process: no trainer rank lives here"
            )
        return self._kept[1]


class Broadcast:
    """One end of a group of rank 0 (number 0) and the generators (from 1).

    Args:
        meeting: address and port of a :class:`rlvla.ranks.Meeting`.
        number: of this end.
        ends: of the group.
        device: that the weights are on.
    """

    def __init__(self, meeting: tuple[str, int], number: int, ends: int, device: torch.device) -> None:
        address, port = meeting
        ranks.prepare(address, device)
        store = PrefixStore("weights", TCPStore(address, port, is_master=False, timeout=timedelta(minutes=2)))
        self._device = device
        self._group: Any
        if device.type == "cuda":
            self._group = dist.ProcessGroupNCCL(store, number, ends, dist.ProcessGroupNCCL.Options())
        else:
            self._group = dist.ProcessGroupGloo(store, number, ends, _LONGEST)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._sending: threading.Thread | None = None
        self._failed: Exception | None = None

    def send(self, weights: Weights, version: int) -> Notice:
        if self._sending is not None:
            self._sending.join()
        if self._failed is not None:
            raise TransportError(f"weights could not be sent: {self._failed}")
        ready = torch.cuda.current_stream(self._device).record_event() if self._stream is not None else None
        self._sending = threading.Thread(target=self._send, args=(weights, ready), name="weights", daemon=True)
        self._sending.start()
        return Notice("broadcast", version, tuple((name, tuple(one.shape), one.dtype) for name, one in weights.items()))

    def _send(self, weights: Weights, ready: Any) -> None:
        try:
            with self._aside():
                if ready is not None and self._stream is not None:
                    self._stream.wait_event(ready)
                for names in buckets({name: one.numel() * one.element_size() for name, one in weights.items()}):
                    for flat in _by_dtype([weights[name] for name in names]):
                        self._pass_on(torch.cat([one.reshape(-1) for one in flat]))
            self._settle()  # before the copies are freed
        except Exception as error:  # the next publication says so
            self._failed = error

    def receive(self, told: Weights | Notice) -> Weights:
        assert isinstance(told, Notice), "weights where a notice was expected"
        with self._aside():
            weights = {name: torch.empty(shape, dtype=dtype, device=self._device) for name, shape, dtype in told.layout}
            try:
                for names in buckets({name: one.numel() * one.element_size() for name, one in weights.items()}):
                    for some in _by_dtype([weights[name] for name in names]):
                        flat = torch.empty(sum(one.numel() for one in some), dtype=some[0].dtype, device=self._device)
                        self._pass_on(flat)
                        for one, part in zip(some, flat.split([one.numel() for one in some]), strict=True):
                            one.copy_(part.view_as(one))
            except RuntimeError as error:
                raise TransportError(f"weights did not come: {error}") from error
        self._settle()
        return weights

    def _settle(self) -> None:
        """Wait for what was put on the stream."""
        if self._stream is not None:
            self._stream.synchronize()

    def _pass_on(self, flat: Tensor) -> None:
        """Send a bucket from end 0 to all others, and wait for it."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([flat], options).wait(_LONGEST)

    def _aside(self) -> Any:
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()


def buckets(sizes: Mapping[str, int], most: int | None = None) -> Iterator[list[str]]:
    """Yield names whose bytes together are at most ``most``, in order; a larger one goes alone."""
    limit = BUCKET_BYTES if most is None else most
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return tensors that can be one, those without numbers left out."""
    found: dict[torch.dtype, list[Tensor]] = {}
    for one in tensors:
        if one.numel():
            found.setdefault(one.dtype, []).append(one)
    return list(found.values())
