"""What is trained, cut among trainer ranks by FSDP2 (``fully_shard``); frozen weights stay whole, and shared with generators.

Source: PyTorch, ``torch.distributed.fsdp.fully_shard``. A parameter is cut along its first dimension; one without dimensions
cannot be, and stays whole on every rank. So do vectors inside of a model's wrap units: norms are read by the kernels of the
block before, when their own unit is not gathered.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from rlvla.model import Model


def shard(model: Model) -> None:
    """Cut a model's trainable parameters among the ranks of the process group.

    Each of ``model.wrap_units()`` is gathered for itself while it computes, the rest for the whole pass. Gradients are added up,
    not averaged: a loss has denominators of all ranks.
    """
    # In-place operations on what a unit returns would be wrong; rlvla.testing.ModelConformance sees them, views alone are no fault.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    units = list(model.wrap_units())
    vectors = {one for unit in units for one in unit.parameters() if one.dim() == 1}
    whole = {one for one in model.parameters() if not one.requires_grad or one.dim() == 0} | vectors
    for module in (*units, model):
        if any(one not in whole for one in module.parameters()):
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


class Gathered:
    """Counts, from now on, the most trained numbers of a model that are gathered at once.

    Args:
        model: cut by :func:`shard`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._whole = {id(one) for one in model.parameters() if not isinstance(one, DTensor)}
        self.most = 0
        for unit in _units(model):
            assert isinstance(unit, nn.Module), "FSDP2 adds its class to the module's"
            unit.register_forward_pre_hook(self.look)
            unit.register_forward_hook(self._wait, prepend=True)  # before the unit is given back

    def look(self, *_: Any) -> None:
        """Count what is gathered now."""
        now = sum(
            one.numel()
            for one in self._model.parameters()
            if id(one) not in self._whole and not isinstance(one, DTensor)
        )
        self.most = max(self.most, now)

    def _wait(self, unit: nn.Module, arguments: Any, outcome: Any) -> None:
        self.look()
        for tensor in tree_leaves(outcome):
            if torch.is_tensor(tensor) and tensor.requires_grad:
                tensor.register_hook(self.look)


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


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of tensors that may be cut, over all ranks, on their device."""
    return whole(torch.nn.utils.get_total_norm(tensors))
