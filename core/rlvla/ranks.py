"""Trainer ranks: how they meet, and sums over them; on one rank, nothing happens.

Sums of tensors on the CPU go through gloo, of tensors on a GPU through NCCL.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from rlvla.errors import ConfigError

_LONGEST = timedelta(hours=2)
"""A collective may take: who does not answer is found out long before (:mod:`rlvla.trainers`)."""


@dataclass(frozen=True)
class Rank:
    """One of several trainer processes."""

    number: int = 0
    world: int = 1
    meeting: tuple[str, int] = ("", 0)
    """Address and port of the :class:`Meeting`."""

    def join(self, device: torch.device) -> None:
        """Make this process one of the ranks; a second call does nothing.

        Args:
            device: that it trains on.
        """
        if self.world == 1 or dist.is_initialized():
            return
        address, port = self.meeting
        prepare(address, device)
        store = TCPStore(address, port, is_master=False, timeout=timedelta(minutes=2))
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.number, world_size=self.world, timeout=_LONGEST)


def prepare(address: str, device: torch.device) -> None:
    """Set what a process's first group needs.

    Args:
        address: where the group meets.
        device: that its tensors are on.
    """
    if address == "127.0.0.1":  # all are here: no other interface has to be open
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if device.type == "cuda":
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast needs a fabric manager that many hosts lack
        torch.cuda.set_device(device.index or 0)


@contextmanager
def alone() -> Iterator[None]:
    """Make this process the only rank while it lasts: what needs ranks can be tried without others."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Meeting:
    """Where ranks find each other: a store in this process, on a port that the system chooses.

    Args:
        address: of the interface that it listens on, and that ranks reach; ``127.0.0.1`` where all are on this machine.
    """

    def __init__(self, address: str) -> None:
        try:
            with socket.create_server((address, 0)) as listener:
                port = listener.getsockname()[1]
                self._store = TCPStore(
                    address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
                )
        except OSError as error:
            raise ConfigError(
                f"run.placement: no port for the trainer ranks to meet at on {address}: {error}; free one, or take one rank "
                "(train.shard none)"
            ) from error
        self.place = address, port


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


def counts(number: int) -> list[int]:
    """Return all ranks' numbers."""
    if world() == 1:
        return [number]
    tensor = torch.zeros(world(), dtype=torch.float64)
    tensor[rank()] = number
    dist.all_reduce(tensor)
    return [int(one) for one in tensor.tolist()]


def anywhere(flags: Sequence[bool]) -> list[bool]:
    """Return which of some flags any rank has set."""
    if world() == 1:
        return list(flags)
    tensor = torch.tensor([float(flag) for flag in flags])
    dist.all_reduce(tensor)
    return [count > 0 for count in tensor.tolist()]


def largest(number: int | float) -> float:
    """Return the largest of all ranks' numbers."""
    if world() == 1:
        return number
    tensor = torch.tensor(float(number), dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)
