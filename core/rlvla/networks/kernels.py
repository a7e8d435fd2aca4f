"""Element-wise parts between the matrix products; on a GPU each is compiled into one kernel.

Eager they read and write every activation several times, which took a third of the forward pass (one H200, batch 32).

Letters: R rows and tokens (one dimension, so that few shapes are compiled for), N rows, T tokens, D features, Z features of a
head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvla import turns

Run = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a kernel of an element-wise function, or leaves it as it is."""


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for any number of rows; other sizes are constants of its kernels.

    With those variable too, kernels spent most of their time on dividing indices by them (one H200). Where arguments are
    such that it has to be compiled, that is done while no other thread computes (``rlvla.turns``).
    """
    compiled = torch.compile(function, dynamic=False)
    known: set[object] = set()

    def call(*arguments: Any) -> Any:
        for one in arguments:
            if isinstance(one, Tensor) and one.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(one, 0)
        kind = (torch.is_grad_enabled(), *map(_kind, arguments))
        if kind in known:
            return compiled(*arguments)
        with turns.alone():
            result = compiled(*arguments)
        known.add(kind)
        return result

    return call


def _kind(argument: Any) -> object:
    """Return what compiled code depends on: all but a number of rows above one."""
    if not isinstance(argument, Tensor):
        return argument
    rows = min(argument.shape[0], 2) if argument.ndim > 1 else None
    sizes = argument.shape[1:] if argument.ndim > 1 else argument.shape
    return rows, sizes, argument.stride(), argument.dtype, argument.device, argument.requires_grad


def rms_norm(x_RD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return ``x / rms(x) * weight``, computed in fp32."""
    wide = x_RD.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight_D.float()).to(x_RD.dtype)


def add_rms_norm(x_RD: Tensor, delta_RD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``x + delta``, and its norm."""
    total = x_RD + delta_RD
    return total, rms_norm(total, weight_D, eps)


def add_layer_norm(
    x_RD: Tensor, delta_RD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``x + delta``, and its norm in fp32, rounded once."""
    total = x_RD + delta_RD
    return total, (_normed(total, eps) * weight_D.float() + bias_D.float()).to(x_RD.dtype)


def add_bare_layer_norm(x: Tensor, delta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``x + delta``, and its norm in fp32 without weights, rounded once."""
    total = x + delta
    return total, _normed(total, eps).to(x.dtype)


def modulated(x_NTD: Tensor, scale_N1D: Tensor, shift_N1D: Tensor, eps: float) -> Tensor:
    """Return ``norm(x) * (1 + scale) + shift``, in fp32, rounded once; a scale and shift for each row, or for all."""
    return (_normed(x_NTD, eps) * (1 + scale_N1D.float()) + shift_N1D.float()).to(x_NTD.dtype)


def add_modulated(
    x_NTD: Tensor, delta_NTD: Tensor, scale_N1D: Tensor, shift_N1D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``x + delta``, and :func:`modulated` of it."""
    total = x_NTD + delta_NTD
    return total, modulated(total, scale_N1D, shift_N1D, eps)


def _normed(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)  # two means: a variance in one pass divides at every element (Welford)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)


def add_scaled_layer_norm(
    x_RD: Tensor, delta_RD: Tensor, scale_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``x + scale * delta`` (layer scale), and its norm."""
    return add_layer_norm(x_RD, delta_RD * scale_D.to(delta_RD.dtype), weight_D, bias_D, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotary position embedding of ``[R, heads, Z]``.

    Args:
        x: query or key.
        cos: fp32 ``[R, 1, 1, Z / 2]``.
        sin: fp32 ``[R, 1, 2, Z / 2]``, negative for the first half: so each half is itself times one number and the other
            half times another, which needs no concatenation, forwards or backwards.
    """
    halves = x.float().unflatten(-1, (2, -1))
    turned: Tensor = halves * cos + halves.flip(-2) * sin
    return turned.flatten(-2).to(x.dtype)


def norm_rotate(x: Tensor, weight_Z: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Return the rotary position embedding of each head's RMS norm; arguments as in :func:`rotate`."""
    return rotate(rms_norm(x, weight_Z, eps), cos, sin)


def split_rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return query and key of ``[R, 3, heads, Z]`` rotated, and value: one kernel, so that its gradient is one too."""
    q, k, v = qkv.unbind(1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.clone()


def swiglu(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of both beside each other."""
    gate, up = gate_up.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)
