"""Linear layers that read one input together: one product of their stacked weights, LoRA adapters added in place.

Layers keep their own parameters (and their public names, and whatever peft wraps around them); their frozen weights lie
one behind the other in memory, so the stack is a view. With adapters the product is ``x W^T + scale * (x A^T) B^T``,
written as one autograd function: adding each adapter to its part of the output by ordinary operations would copy the
whole gradient once a layer.

Letters: R rows, I inputs, O outputs of all layers together, L ranks of all adapters together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ADAPTER = "default"
"""peft's name of the only adapter."""
QUANTISED = "rlvla_quantised"
"""Attribute of a layer: number of layers in a stack that begins with it, to what multiplies by their quantised weights."""
_WITHOUT_ADAPTERS: ContextVar[bool] = ContextVar("without_adapters", default=False)

_Part = tuple[int, int, int, int, float]
"""Of one adapter: first and last output, first and last rank, scale."""


@contextmanager
def without_adapters() -> Iterator[None]:
    """Within, layers are what they were before LoRA."""
    token = _WITHOUT_ADAPTERS.set(True)
    try:
        yield
    finally:
        _WITHOUT_ADAPTERS.reset(token)


def in_force(module: nn.Module) -> nn.Module:
    """Return a layer with its adapter, unless adapters are switched off."""
    return base(module) if _WITHOUT_ADAPTERS.get() else module


def base(module: nn.Module) -> nn.Module:
    """Return the layer itself, without what peft put around it."""
    inner = getattr(module, "base_layer", module)
    assert isinstance(inner, nn.Module)
    return inner


def pack(modules: Sequence[nn.Module]) -> bool:
    """Put the weights of layers one behind the other in memory; says whether they moved. Their values stay."""
    weights: list[nn.Parameter] = [base(module).weight for module in modules]  # type: ignore[misc]
    if len({weight.dtype for weight in weights}) > 1 or weights[0].is_meta or _adjacent(weights):
        return False
    with torch.no_grad():
        stacked = torch.cat(list(weights))
        for weight, part in zip(weights, stacked.split([len(one) for one in weights]), strict=True):
            weight.data = part
    return True


def _adjacent(weights: Sequence[Tensor]) -> bool:
    return all(
        one.data_ptr() + one.numel() * one.element_size() == other.data_ptr()
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        for one, other in itertools.pairwise(weights)
    )


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    """Return ``[O, I]``: a view where the weights lie together and no gradient has to find its part."""
    if len(weights) == 1:
        return weights[0]
    trained = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
    if trained or not _adjacent(weights):
        return torch.cat(list(weights))
    rows, columns = sum(map(len, weights)), weights[0].shape[1]
    return weights[0].as_strided((rows, columns), (columns, 1), weights[0].storage_offset())


def project(x: Tensor, *modules: nn.Module, rows: slice | None = None) -> Tensor:
    """Return the outputs of linear layers beside each other, ``[..., O]``, in ``x``'s dtype.

    Args:
        x: ``[..., I]``.
        modules: ``nn.Linear``, or peft's LoRA layers around them; all or none have a bias.
        rows: these outputs only (one layer).
    """
    layers = [base(module) for module in modules]
    weight = _chosen(_stacked([layer.weight for layer in layers]), rows).to(x.dtype)  # type: ignore[misc]
    bias: Tensor | None = None
    if layers[0].bias is not None:
        biases: list[Tensor] = [layer.bias for layer in layers]  # type: ignore[misc]
        bias = _chosen(torch.cat(biases) if len(biases) > 1 else biases[0], rows).to(x.dtype)
    parts, down, up = _adapters(modules, rows, x.dtype)
    flat = x.reshape(-1, x.shape[-1])
    quick = getattr(layers[0], QUANTISED, {}).get(len(layers)) if rows is None and not torch.is_grad_enabled() else None
    if quick is not None:
        out_RO: Tensor = quick(flat)
        if down is not None:
            _add_adapters_(out_RO, flat @ down.T, parts, up)
        return out_RO.view(*x.shape[:-1], len(out_RO.T))
    if down is None:
        return F.linear(x, weight, bias)
    return _Adapted.apply(flat, weight, bias, parts, down, *up).view(*x.shape[:-1], len(weight))  # type: ignore[no-any-return]


def project_gelu(x: Tensor, module: nn.Module) -> Tensor:
    """Return GELU (its tanh form) of a linear layer with bias; on a GPU, acting, within the product: one pass less."""
    layer = base(module)
    plain = layer is module or _WITHOUT_ADAPTERS.get()
    if not (x.is_cuda and plain) or torch.is_grad_enabled() or x.dtype == torch.float32:
        return F.gelu(project(x, module), approximate="tanh")
    weight: Tensor = layer.weight.to(x.dtype)  # type: ignore[assignment]
    bias: Tensor = layer.bias.to(x.dtype)  # type: ignore[assignment]
    out = torch._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.T, use_gelu=True)
    return out.view(*x.shape[:-1], len(weight))


def _chosen(tensor: Tensor, rows: slice | None) -> Tensor:
    """Return some rows; all of them without an operation, whose gradient would be zeros and a copy."""
    return tensor if rows is None else tensor[rows]


def _adapters(
    modules: Sequence[nn.Module], rows: slice | None, dtype: torch.dtype
) -> tuple[list[_Part], Tensor | None, list[Tensor]]:
    """Return where each adapter adds, their A of all layers ``[L, I]``, and each B ``[outputs, rank]``."""
    parts: list[_Part] = []
    down: list[Tensor] = []
    up: list[Tensor] = []
    first = rank = 0
    for module in modules:
        weight: Tensor = base(module).weight  # type: ignore[assignment]
        outputs = len(_chosen(weight, rows))
        if hasattr(module, "base_layer") and not _WITHOUT_ADAPTERS.get():
            down.append(module.lora_A[ADAPTER].weight.to(dtype))  # type: ignore[index,union-attr]
            up.append(_chosen(module.lora_B[ADAPTER].weight, rows).to(dtype))  # type: ignore[index,union-attr]
            size = len(down[-1])
            parts.append((first, first + outputs, rank, rank + size, float(module.scaling[ADAPTER])))  # type: ignore[index]
            rank += size
        first += outputs
    return parts, (torch.cat(down) if down else None), up


def _add_adapters_(out_RO: Tensor, low_RL: Tensor, parts: list[_Part], up: Sequence[Tensor]) -> None:
    for (first, last, low, high, scale), one in zip(parts, up, strict=True):
        out_RO[:, first:last].addmm_(low_RL[:, low:high], one.T, alpha=scale)


class _Adapted(torch.autograd.Function):
    """``x W^T + b``, plus each adapter on its own outputs. W and b are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        parts: list[_Part],
        down_LI: Tensor,
        *up: Tensor,
    ) -> Tensor:
        out_RO = F.linear(x_RI, weight_OI, bias_O)
        low_RL = x_RI @ down_LI.T
        _add_adapters_(out_RO, low_RL, parts, up)
        ctx.parts = parts
        ctx.save_for_backward(x_RI, weight_OI, down_LI, low_RL, *up)
        return out_RO

    @staticmethod
    def backward(ctx: Any, grad_RO: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, weight_OI, down_LI, low_RL, *up = ctx.saved_tensors
        grad_low_RL = torch.empty_like(low_RL)
        grad_up = []
        for (first, last, low, high, scale), one in zip(ctx.parts, up, strict=True):
            part = grad_RO[:, first:last]
            torch.mul(part @ one, scale, out=grad_low_RL[:, low:high])
            grad_up.append((part.T @ low_RL[:, low:high]).mul_(scale))
        grad_x_RI = None
        if ctx.needs_input_grad[0]:
            grad_x_RI = (grad_RO @ weight_OI).addmm_(grad_low_RL, down_LI)
        return (grad_x_RI, None, None, None, grad_low_RL.T @ x_RI, *grad_up)
