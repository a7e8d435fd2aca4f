"""Llama 2 for one forward pass over embeddings that are made elsewhere, under transformers' parameter names.

Stacked query-key-value and gate-up products, fused element-wise parts, attention without a mask where all rows have equal
lengths, and no more than the wanted positions in the last layer, of which only keys and values need all the others.

Letters: N rows, S tokens, R = N * S, W wanted tokens, D features, Z features of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlvla.networks import kernels
from rlvla.networks.decoder import Attention, DecoderLayer, DecoderStack, turns
from rlvla.networks.kernels import Run
from rlvla.networks.linear import project
from rlvla_model_openvla_oft.header import LlamaShape

Past = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, ``[N, heads, S, Z]``."""


class LlamaLayer(DecoderLayer):
    """A decoder layer."""

    def __init__(self, shape: LlamaShape) -> None:
        width, heads = shape.hidden_size, shape.num_attention_heads
        attention = Attention(width, heads, heads, width // heads)
        super().__init__(attention, width, shape.intermediate_size, shape.rms_norm_eps)
        self.recompute = False
        """Keep nothing between forward and backward pass but what goes in, and what the last product needs."""
        self._heads = heads

    def forward(
        self,
        x_RD: Tensor,
        delta_RD: Tensor | None,
        rows: int,
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
        wanted: slice | None,
        past: tuple[Tensor, Tensor] | None,
        run: Run,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return the residual stream, what is to be added to it, and keys and values.

        Args:
            x_RD: tokens of all rows, one row after another.
            delta_RD: likewise; None: nothing.
            rows: N.
            turn: cosine and sine of positions.
            mask: bool, which keys a query sees; None: all.
            wanted: places whose result is of use; None: all.
            past: keys and values before these tokens.
            run: makes a kernel of an element-wise function.
        """
        arguments = (x_RD, delta_RD, rows, turn, mask, wanted, past, run)
        if self.recompute and torch.is_grad_enabled():
            x_RD, hidden, both = checkpoint(self._inner, *arguments, use_reentrant=False)
        else:
            x_RD, hidden, both = self._inner(*arguments)
        return x_RD, self.down(hidden), both

    def _inner(
        self,
        x_RD: Tensor,
        delta_RD: Tensor | None,
        rows: int,
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
        wanted: slice | None,
        past: tuple[Tensor, Tensor] | None,
        run: Run,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return the same with SwiGLU's output, before the last product."""
        attention = self.self_attn
        x_RD, normed = self.enter(x_RD, delta_RD, run)
        rotate = run(kernels.rotate)
        if wanted is None:
            qkv = project(normed, attention.q_proj, attention.k_proj, attention.v_proj)
            qkv = qkv.unflatten(-1, (3, self._heads, -1))
            if torch.is_grad_enabled():
                q, k, v = run(kernels.split_rotate)(qkv, *turn)
            else:
                q, k, v = rotate(qkv[:, 0], *turn), rotate(qkv[:, 1], *turn), qkv[:, 2]
        else:
            k, v = project(normed, attention.k_proj, attention.v_proj).unflatten(-1, (2, self._heads, -1)).unbind(1)
            x_RD, normed = _places(x_RD, rows, wanted), _places(normed, rows, wanted)
            q = project(normed, attention.q_proj).unflatten(-1, (self._heads, -1))
            q, k = rotate(q, _places(turn[0], rows, wanted), _places(turn[1], rows, wanted)), rotate(k, *turn)
            mask = mask[..., wanted, :] if mask is not None and mask.shape[-2] > 1 else mask
        q, k, v = (one.unflatten(0, (rows, -1)).transpose(1, 2) for one in (q, k, v))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return *self.leave(x_RD, attended.transpose(1, 2).flatten(2).flatten(0, 1), run), (k, v)


def _places(x: Tensor, rows: int, wanted: slice) -> Tensor:
    """Return some tokens of each row, one row after another."""
    places: Tensor = x.unflatten(0, (rows, -1))[:, wanted]
    return places.flatten(0, 1)


class LlamaStack(DecoderStack):
    """All layers."""

    def __init__(self, shape: LlamaShape) -> None:
        layers: list[DecoderLayer] = [LlamaLayer(shape) for _ in range(shape.num_hidden_layers)]
        super().__init__(shape.vocab_size, shape.hidden_size, layers)
        self._shape = shape

    def recompute(self, again: bool) -> None:
        """Let all layers keep little for the backward pass, and compute the rest again in it; or keep all."""
        for layer in self.layers:
            layer.recompute = again  # type: ignore[assignment]

    def turn(self, positions_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions as :func:`rlvla.networks.kernels.rotate` takes them."""
        size = self._shape.hidden_size // self._shape.num_attention_heads
        return turns(positions_NS.flatten(), size, self._shape.rope_theta)

    def forward(
        self,
        x_NSD: Tensor,
        positions_NS: Tensor,
        mask: Tensor | None,
        wanted: slice,
        run: Run,
        past: Past | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, Past]:
        """Return the final norm's output at the wanted positions, ``[N, W, D]``, and keys and values (where kept).

        Args:
            x_NSD: embeddings, whose dtype all products have.
            positions_NS: of the tokens; one row where all are alike.
            mask: bool ``[N or 1, 1, S or 1, keys]``, which keys a query sees; None: all.
            wanted: positions.
            run: makes a kernel of an element-wise function.
            past: keys and values of earlier tokens.
            keep: return keys and values.
        """
        rows, delta_RD, kept = len(x_NSD), None, []
        turn = self.turn(positions_NS.expand(x_NSD.shape[:2]))
        x_RD = x_NSD.flatten(0, 1)
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            x_RD, delta_RD, both = layer(
                x_RD,
                delta_RD,
                rows,
                turn,
                mask,
                wanted if last else None,
                past[number] if past is not None else None,
                run,
            )
            if keep:
                kept.append(both)
        _, out_RD = run(kernels.add_rms_norm)(x_RD, delta_RD, self.norm.weight, self._shape.rms_norm_eps)
        return out_RD.unflatten(0, (rows, -1)), kept


class LanguageModel(nn.Module):
    """The stack, and the weights over the vocabulary."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.model = LlamaStack(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
