"""Llama 2 for one forward pass over embeddings that are made elsewhere, under transformers' parameter names.

Stacked query-key-value and gate-up products, fused element-wise parts, attention without a mask where all rows have equal
lengths, and no more than the wanted positions in the last layer, of which only keys and values need all the others.

Letters: N rows, S tokens, W wanted tokens, D features, Z features of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlvla_model_openvla_oft import kernels
from rlvla_model_openvla_oft.header import LlamaShape
from rlvla_model_openvla_oft.linear import pack, project

Past = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, ``[N, heads, S, Z]``."""


class RmsNorm(nn.Module):
    """Holds the weight; computed in :mod:`rlvla_model_openvla_oft.kernels`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class LlamaAttention(nn.Module):
    """Holds the products around attention."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)


class LlamaMlp(nn.Module):
    """Holds the products around SwiGLU."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        width, hidden = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)


class LlamaLayer(nn.Module):
    """A decoder layer. It takes and returns the residual stream and what is still to be added to it, so that adding and
    the norm after it are one kernel."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(shape)
        self.mlp = LlamaMlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size)
        self._heads, self._eps = shape.num_attention_heads, shape.rms_norm_eps

    def pack(self) -> None:
        """Put weights that are multiplied together beside each other."""
        attention, mlp = self.self_attn, self.mlp
        pack([attention.q_proj, attention.k_proj, attention.v_proj])
        pack([mlp.gate_proj, mlp.up_proj])

    def forward(
        self,
        x: Tensor,
        delta: Tensor | None,
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
        wanted: slice | None,
        past: tuple[Tensor, Tensor] | None,
        run: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return the residual stream, what is to be added to it, and keys and values.

        Args:
            x: ``[N, S, D]``.
            delta: likewise; None: nothing.
            turn: cosine and sine of positions.
            mask: bool, which keys a query sees; None: all.
            wanted: positions whose result is of use; None: all.
            past: keys and values before these tokens.
            run: makes a kernel of an element-wise function.
        """
        attention, weight = self.self_attn, self.input_layernorm.weight
        if delta is None:
            normed = run(kernels.rms_norm)(x, weight, self._eps)
        else:
            x, normed = run(kernels.add_rms_norm)(x, delta, weight, self._eps)
        if wanted is None:
            qkv = project(normed, attention.q_proj, attention.k_proj, attention.v_proj)
            q, k, v = qkv.unflatten(-1, (3, self._heads, -1)).unbind(2)
            turn_q = turn
        else:
            k, v = project(normed, attention.k_proj, attention.v_proj).unflatten(-1, (2, self._heads, -1)).unbind(2)
            q = project(normed[:, wanted], attention.q_proj).unflatten(-1, (self._heads, -1))
            x, turn_q = x[:, wanted], (turn[0][:, wanted], turn[1][:, wanted])
            mask = mask[..., wanted, :] if mask is not None and mask.shape[-2] > 1 else mask
        rotate = run(kernels.rotate)
        q, k, v = rotate(q, *turn_q).transpose(1, 2), rotate(k, *turn).transpose(1, 2), v.transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        delta = project(attended.transpose(1, 2).flatten(2), attention.o_proj)
        x, normed = run(kernels.add_rms_norm)(x, delta, self.post_attention_layernorm.weight, self._eps)
        hidden = run(kernels.swiglu)(project(normed, self.mlp.gate_proj, self.mlp.up_proj))
        return x, project(hidden, self.mlp.down_proj), (k, v)


class LlamaStack(nn.Module):
    """All layers."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList([LlamaLayer(shape) for _ in range(shape.num_hidden_layers)])
        self.norm = RmsNorm(shape.hidden_size)
        self.recompute = False
        self.fuse = True
        self._shape = shape

    def pack(self) -> None:
        """Put weights that are multiplied together beside each other."""
        for layer in self.layers:
            layer.pack()  # type: ignore[operator]

    def turn(self, positions_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions, fp32 ``[N, S, 1, Z / 2]``."""
        size = self._shape.hidden_size // self._shape.num_attention_heads
        exponent = torch.arange(0, size, 2, device=positions_NS.device, dtype=torch.float32) / size
        angle = positions_NS[..., None, None].float() * self._shape.rope_theta**-exponent
        return angle.cos(), angle.sin()

    def forward(
        self,
        x_NSD: Tensor,
        positions_NS: Tensor,
        mask: Tensor | None,
        wanted: slice,
        past: Past | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, Past]:
        """Return the final norm's output at the wanted positions, ``[N, W, D]``, and keys and values (where kept).

        Args:
            x_NSD: embeddings, whose dtype all products have.
            positions_NS: of the tokens; one row where all are alike.
            mask: bool ``[N or 1, 1, S or 1, keys]``, which keys a query sees; None: all.
            wanted: positions.
            past: keys and values of earlier tokens.
            keep: return keys and values.
        """
        turn, kept, delta = self.turn(positions_NS), [], None
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            arguments = (
                x_NSD,
                delta,
                turn,
                mask,
                wanted if last else None,
                past[number] if past is not None else None,
                self._run,
            )
            if self.recompute and torch.is_grad_enabled():
                x_NSD, delta, both = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                x_NSD, delta, both = layer(*arguments)
            if keep:
                kept.append(both)
        _, out = self._run(kernels.add_rms_norm)(x_NSD, delta, self.norm.weight, self._shape.rms_norm_eps)
        return out, kept

    def _run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return kernels.fused(function) if self.fuse and self.norm.weight.is_cuda else function


class LanguageModel(nn.Module):
    """The stack, and the weights over the vocabulary."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.model = LlamaStack(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
