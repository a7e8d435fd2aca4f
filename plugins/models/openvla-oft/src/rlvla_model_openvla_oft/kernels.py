"""Element-wise parts between the matrix products; on a GPU each is compiled into one kernel.

Eager they read and write every activation several times, which took a third of the forward pass (one H200, batch 32).

Letters: N rows, S tokens, D features, Z features of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for any shape."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def rms_norm(x_NSD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return ``x / rms(x) * weight``, computed in fp32."""
    wide = x_NSD.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight_D.float()).to(x_NSD.dtype)


def add_rms_norm(x_NSD: Tensor, delta_NSD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``x + delta``, and its norm."""
    total = x_NSD + delta_NSD
    return total, rms_norm(total, weight_D, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return rotary position embedding of ``[N, S, heads, Z]``, contiguous; ``cos`` and ``sin`` are ``[N or 1, S, 1, Z / 2]``, fp32."""
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of both beside each other."""
    gate, up = gate_up.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)
