"""Tensors that nobody needs for a while: their bytes wait in host memory, pinned where they came from a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Away:
    """Tensors whose memory was given back; each must be alone in its storage, which stays the same object."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors, or this rank's part of those that are cut, to host memory and free where they were.

        Whoever reads one before :meth:`bring_back` finds no memory.
        """
        for one in tensors:
            here = one.to_local() if isinstance(one, DTensor) else one
            kept = torch.empty_like(here, device="cpu", pin_memory=here.is_cuda)
            self._kept.append((here, kept.copy_(here, non_blocking=True)))
        _wait(self._kept)
        for here, _ in self._kept:
            here.untyped_storage().resize_(0)

    def bring_back(self) -> None:
        """Put everything where it was; nothing happens where nothing is away."""
        for here, kept in self._kept:
            here.untyped_storage().resize_(kept.untyped_storage().nbytes())
            here.copy_(kept, non_blocking=True)
        _wait(self._kept)
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


def _wait(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for device in {here.device for here, _ in pairs if here.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
