"""What is trained, cut among trainer ranks by FSDP2 (``fully_shard``); frozen weights stay whole, and shared with generators.

Source: PyTorch, ``torch.distributed.fsdp.fully_shard``. A parameter is cut along its first dimension; one without dimensions
cannot be, and stays whole on every rank.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rlvla.model import Model


def shard(model: Model) -> None:
    """Cut a model's trainable parameters among the ranks of the process group.

    Each of ``model.wrap_units()`` is gathered for itself while it computes, the rest for the whole pass. Gradients are added up,
    not averaged: a loss has denominators of all ranks.
    """
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    whole = {one for one in model.parameters() if not one.requires_grad or one.dim() == 0}
    for module in (*model.wrap_units(), model):
        if any(one.requires_grad and one.dim() for one in module.parameters()):
            fully_shard(module, mesh=mesh, ignored_params=whole)
    for method in ("evaluate", "value"):
        register_fsdp_forward_method(model, method)
    for unit in _units(model):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def is_sharded(model: nn.Module) -> bool:
    """Say whether its parameters are cut among ranks."""
    return isinstance(model, FSDPModule)


def _units(model: nn.Module) -> Iterator[FSDPModule]:
    return (one for one in model.modules() if isinstance(one, FSDPModule))


def at_rest(model: nn.Module) -> None:
    """Give back gathered parameters: after a pass without gradients they are still whole."""
    for unit in _units(model):
        unit.reshard()


@contextmanager
@torch.no_grad()
def gathered(model: nn.Module, write: bool = False) -> Iterator[None]:
    """Within, all parameters are plain and whole: on every rank, since all gather them.

    Args:
        model: cut by :func:`shard`; any other is left as it is.
        write: what was changed within stays; else it is forgotten.
    """
    if not is_sharded(model):
        yield
        return
    at_rest(model)
    cut: list[tuple[nn.Module, str, Any]] = [
        (module, name, one)
        for module in model.modules()
        for name, one in module._parameters.items()
        if isinstance(one, DTensor)
    ]
    hooks = {module: module._load_state_dict_post_hooks for module in model.modules()}
    for module, name, one in cut:
        module._parameters[name] = nn.Parameter(one.full_tensor().detach(), requires_grad=True)
    for module in hooks:
        module._load_state_dict_post_hooks = OrderedDict()  # FSDP2's look for the parts of what was loaded
    try:
        yield
        for module, name, one in cut if write else ():
            full = module._parameters[name]
            assert full is not None, f"{name} was removed"
            mine = distribute_tensor(full.detach(), one.device_mesh, one.placements, src_data_rank=None)
            one.to_local().copy_(mine.to_local())
    finally:
        for module, kept in hooks.items():
            module._load_state_dict_post_hooks = kept
        for module, name, one in cut:
            module._parameters[name] = one


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be cut, whole."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the norm of tensors that may be cut, over all ranks; 0: there are none."""
    some = list(tensors)
    return whole(torch.nn.utils.get_total_norm(some)) if some else torch.zeros(())
