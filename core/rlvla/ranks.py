"""Sums over trainer ranks; on one rank, nothing happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> int:
    """Return the number of trainer ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this rank, from 0."""
    return dist.get_rank() if world() > 1 else 0


def add_up(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all ranks."""
    if world() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def every(names: Sequence[Iterable[str]]) -> list[list[str]]:
    """Return, for each of some lists, the names that any rank has in it, sorted: equal on all ranks."""
    if world() == 1:
        return [sorted(some) for some in names]
    gathered: list[Any] = [None] * world()
    dist.all_gather_object(gathered, [list(some) for some in names])
    return [sorted(set().union(*of_ranks)) for of_ranks in zip(*gathered, strict=True)]


def largest(number: int | float) -> float:
    """Return the largest of all ranks' numbers."""
    if world() == 1:
        return number
    tensor = torch.tensor(float(number), dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)
