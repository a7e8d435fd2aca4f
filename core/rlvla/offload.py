"""What nobody needs for a while waits in host memory, pinned where it came from a GPU: optimizer state, and a trainer's weights."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, UntypedStorage, nn
from torch.distributed.tensor import DTensor

from rlvla import sharding

PARAMETERS = ("parameters", "all")
"""Values of ``train.offload`` by which weights go away."""
_Kept = dict[int, tuple[UntypedStorage, Tensor]]
"""Storages by where they are known, and their bytes in host memory."""


class Away:
    """Tensors whose memory was given back: storages stay the same objects, so that whoever has a view of one keeps it."""

    def __init__(self) -> None:
        self._kept: _Kept = {}

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors, or this rank's part of those that are cut, to host memory and free where they were.

        Whoever reads one before :meth:`bring_back` finds no memory.
        """
        new = {name: one for name, one in _storages(tensors).items() if name not in self._kept}
        self._kept |= {name: (one, _copied(one)) for name, one in new.items()}
        _settle(new.values())
        for one in new.values():
            one.resize_(0)

    def bring_back(self) -> None:
        """Put everything where it was; nothing happens where nothing is away."""
        for storage, kept in self._kept.values():
            _restore(storage, kept)
        _settle(storage for storage, _ in self._kept.values())
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


class OnDemand:
    """A trainer's weights, on their device while somebody needs them and in host memory otherwise. Any thread may need them.

    Frozen weights that generators of the same process share stay where they are: those act while nothing is trained. What
    does not change between two absences is not copied to the host again.

    Args:
        model: whose weights.
        offload: they go away at all.
        shared: frozen weights are shared.
    """

    def __init__(self, model: nn.Module, offload: bool, shared: bool) -> None:
        self._models = [model]
        self._offload = offload
        self._shared = shared
        self._users = 0
        self._changed = True
        self._turn = threading.Lock()
        self._away: _Kept = {}
        self._copies: _Kept = {}

    def also(self, model: nn.Module) -> None:
        """Take care of a frozen model, too, which nobody shares."""
        self._models.append(model)

    @contextmanager
    def here(self, write: bool = False) -> Iterator[None]:
        """Hold while weights are read, copied, or (``write``) changed."""
        if not self._offload:
            yield
            return
        with self._turn:
            self._users += 1
            self._changed = self._changed or write
            if self._users == 1:
                self._bring_back()
        try:
            yield
        finally:
            _wait(one.device for model in self._models for one in model.parameters())
            with self._turn:
                self._users -= 1
                if not self._users:
                    self._take()

    def _bring_back(self) -> None:
        for storage, kept in self._away.values():
            _restore(storage, kept)
        _settle(storage for storage, _ in self._away.values())
        self._away = {}

    def _take(self) -> None:
        """Free all that may go; bytes that are in host memory already, and have not changed since, are not copied again."""
        sharding.at_rest(self._models[0])
        going, changing = _storages(self._going()), _storages(self._trained())
        known = {name: one for name, one in self._copies.items() if name in going}
        if self._changed:
            known = {name: one for name, one in known.items() if name not in changing}
        new = {name: (one, _copied(one)) for name, one in going.items() if name not in known}
        _settle(going.values())
        for one in going.values():
            one.resize_(0)
        self._away = self._copies = known | new
        self._changed = False

    def _trained(self) -> list[Tensor]:
        return [one for one in self._models[0].parameters() if one.requires_grad]

    def _going(self) -> list[Tensor]:
        """Return what may go: nothing that lies in one storage with what stays."""
        model, *others = self._models
        staying = _storages(one for one in model.parameters() if self._shared and not one.requires_grad)
        parameters = [one for some in (model, *others) for one in some.parameters()]
        return [one for one in parameters if not _storages([one]).keys() & staying.keys()]

    def __len__(self) -> int:
        return len(self._away)


def _storages(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """Return what tensors lie in, several of them perhaps in one; memory that is not torch's to free (a file's) is left out."""
    local = (one.to_local() if isinstance(one, DTensor) else one for one in tensors)
    found = [one.untyped_storage() for one in local]
    return {one._cdata: one for one in found if one.resizable()}


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copied(storage: UntypedStorage) -> Tensor:
    kept = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
    return kept.copy_(_bytes_of(storage), non_blocking=True)


def _restore(storage: UntypedStorage, kept: Tensor) -> None:
    storage.resize_(kept.nbytes)
    _bytes_of(storage).copy_(kept, non_blocking=True)


def _settle(storages: Iterable[UntypedStorage]) -> None:
    _wait(one.device for one in storages)


def _wait(devices: Iterable[torch.device]) -> None:
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
