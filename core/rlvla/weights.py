"""Weights on their way from trainer to generator: only what training changes travels."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rlvla import sharding
from rlvla.model import Model

Weights = dict[str, Tensor]
"""Name to tensor: trainable parameters and buffers."""


def acting_copy(model: Model) -> Model:
    """Return a model with trainables and buffers of its own that shares the frozen parameters."""
    frozen = {id(one): one for one in model.parameters() if not one.requires_grad}
    return copy.deepcopy(model, frozen)


def snapshot(model: Model) -> Weights:
    """Return copies of the trainable parameters and of the buffers that are saved, whole: all ranks must ask if they are cut."""
    with sharding.gathered(model):
        saved = model.state_dict(keep_vars=True)
        return {
            name: tensor.detach().clone()
            for name, tensor in saved.items()
            if not isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad
        }


def products_in(precision: str, device: torch.device) -> torch.autocast:
    """Return the context of ``train.precision``: matrix products in bf16, or as they are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def own_precision(device: torch.device) -> torch.autocast:
    """Return a context in which dtypes are those that a model's code names, whatever ``train.precision`` says."""
    return torch.autocast(device.type, enabled=False)


@torch.no_grad()
def copy_into(model: Model, weights: Weights) -> None:
    """Copy in place, so that captured graphs and shared views stay valid."""
    mine = model.state_dict(keep_vars=True)
    for name, tensor in weights.items():
        mine[name].detach().copy_(tensor)
