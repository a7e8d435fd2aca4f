"""Qwen3's first layers over embeddings that are made elsewhere, under the public parameter names.

One causal pass. Sequences are padded on the right, so no real token sees padding. Attention leaves padding out, as the
variable-length kernels of the public code do: a padded token attends to nothing, and is what its own layers make of it.

Letters: N rows, S tokens, R = N * S, D features, Z features of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla.networks import kernels
from rlvla.networks.decoder import Attention, DecoderLayer, DecoderStack, RmsNorm, turns
from rlvla.networks.kernels import Run
from rlvla.networks.linear import project
from rlvla_model_gr00t.header import QwenShape


class QwenAttention(Attention):
    """Holds the products around attention, and the norms of queries and keys."""

    def __init__(self, shape: QwenShape) -> None:
        super().__init__(shape.hidden_size, shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim)
        self.q_norm = RmsNorm(shape.head_dim)
        self.k_norm = RmsNorm(shape.head_dim)


class QwenLayer(DecoderLayer):
    """A decoder layer."""

    self_attn: QwenAttention

    def __init__(self, shape: QwenShape) -> None:
        super().__init__(QwenAttention(shape), shape.hidden_size, shape.intermediate_size, shape.rms_norm_eps)
        self._shape = shape

    def forward(
        self, x_RD: Tensor, delta_RD: Tensor | None, there_NS: Tensor, first: int, turn: tuple[Tensor, Tensor], run: Run
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream, and what is to be added to it.

        Args:
            x_RD: tokens of all rows, one row after another.
            delta_RD: to be added to it; None: nothing.
            there_NS: bool, tokens that are not padding.
            first: place of the first token that may be padding.
            turn: cosine and sine of positions.
            run: makes a kernel of an element-wise function.
        """
        attention, shape, eps = self.self_attn, self._shape, self._shape.rms_norm_eps
        x_RD, normed = self.enter(x_RD, delta_RD, run)
        qkv = project(normed, attention.q_proj, attention.k_proj, attention.v_proj).unflatten(-1, (-1, shape.head_dim))
        heads, groups = shape.num_attention_heads, shape.num_key_value_heads
        q, k, v = qkv.split([heads, groups, groups], 1)
        norm_rotate = run(kernels.norm_rotate)
        q = norm_rotate(q, attention.q_norm.weight, *turn, eps)
        k = norm_rotate(k, attention.k_norm.weight, *turn, eps)
        q, k, v = (one.unflatten(0, there_NS.shape).transpose(1, 2) for one in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)
        attended_RD = _without_padding(attended.transpose(1, 2).flatten(2), there_NS, first).flatten(0, 1)
        x_RD, hidden = self.leave(x_RD, attended_RD, run)
        return x_RD, self.down(hidden)


def _without_padding(attended_NSD: Tensor, there_NS: Tensor, first: int) -> Tensor:
    """Return zeros at padded places, all of which lie from ``first`` on."""
    tail = attended_NSD[:, first:] * there_NS[:, first:, None]
    if torch.is_grad_enabled():
        return torch.cat([attended_NSD[:, :first], tail], 1)
    attended_NSD[:, first:] = tail
    return attended_NSD


class QwenStack(DecoderStack):
    """All layers."""

    def __init__(self, shape: QwenShape) -> None:
        layers: list[DecoderLayer] = [QwenLayer(shape) for _ in range(shape.num_hidden_layers)]
        super().__init__(shape.vocab_size, shape.hidden_size, layers)
        self._shape = shape

    def forward(self, x_NSD: Tensor, there_NS: Tensor, first: int, run: Run) -> Tensor:
        """Return the final norm's output, ``[N, S, D]``; arguments as in :class:`QwenLayer`."""
        x_RD, delta_RD = x_NSD.flatten(0, 1), None
        positions = torch.arange(x_NSD.shape[1], device=x_NSD.device).repeat(len(x_NSD))
        turn = turns(positions, self._shape.head_dim, self._shape.rope_theta)
        for layer in self.layers:
            x_RD, delta_RD = layer(x_RD, delta_RD, there_NS, first, turn, run)
        _, out_RD = run(kernels.add_rms_norm)(x_RD, delta_RD, self.norm.weight, self._shape.rms_norm_eps)
        return out_RD.unflatten(0, there_NS.shape)  # type: ignore[no-any-return]


class Qwen(nn.Module):
    """The stack, one level down, as the public names have it. The weights over the vocabulary are the embeddings'."""

    def __init__(self, shape: QwenShape) -> None:
        super().__init__()
        self.model = QwenStack(shape)

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        return self.model.pack()
