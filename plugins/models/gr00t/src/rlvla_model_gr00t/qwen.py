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
from rlvla.networks.kernels import Run
from rlvla.networks.linear import pack, project
from rlvla_model_gr00t.header import QwenShape


class RmsNorm(nn.Module):
    """Holds the weight; computed in :mod:`rlvla.networks.kernels`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class QwenAttention(nn.Module):
    """Holds the products around attention, and the norms of queries and keys."""

    def __init__(self, shape: QwenShape) -> None:
        super().__init__()
        width, size = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(width, shape.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * size, width, bias=False)
        self.q_norm = RmsNorm(size)
        self.k_norm = RmsNorm(size)


class QwenMlp(nn.Module):
    """Holds the products around SwiGLU."""

    def __init__(self, shape: QwenShape) -> None:
        super().__init__()
        width, hidden = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)


class QwenLayer(nn.Module):
    """A decoder layer. It takes and returns the residual stream and what is still to be added to it, so that adding and
    the norm after it are one kernel."""

    def __init__(self, shape: QwenShape) -> None:
        super().__init__()
        self.self_attn = QwenAttention(shape)
        self.mlp = QwenMlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size)
        self._shape = shape

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        moved = [pack(stack) for stack in self.stacks()]
        return any(moved)

    def stacks(self) -> list[list[nn.Module]]:
        """Return the linear layers, those that read one input together."""
        attention, mlp = self.self_attn, self.mlp
        qkv: list[nn.Module] = [attention.q_proj, attention.k_proj, attention.v_proj]
        return [qkv, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]

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
        if delta_RD is None:
            normed = run(kernels.rms_norm)(x_RD, self.input_layernorm.weight, eps)
        else:
            x_RD, normed = run(kernels.add_rms_norm)(x_RD, delta_RD, self.input_layernorm.weight, eps)
        qkv = project(normed, attention.q_proj, attention.k_proj, attention.v_proj).unflatten(-1, (-1, shape.head_dim))
        heads, groups = shape.num_attention_heads, shape.num_key_value_heads
        q, k, v = qkv.split([heads, groups, groups], 1)
        norm_rotate = run(kernels.norm_rotate)
        q = norm_rotate(q, attention.q_norm.weight, *turn, eps)
        k = norm_rotate(k, attention.k_norm.weight, *turn, eps)
        q, k, v = (one.unflatten(0, there_NS.shape).transpose(1, 2) for one in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)
        attended_RD = _without_padding(attended.transpose(1, 2).flatten(2), there_NS, first).flatten(0, 1)
        delta_RD = project(attended_RD, attention.o_proj)
        x_RD, normed = run(kernels.add_rms_norm)(x_RD, delta_RD, self.post_attention_layernorm.weight, eps)
        hidden = run(kernels.swiglu)(project(normed, self.mlp.gate_proj, self.mlp.up_proj))
        return x_RD, project(hidden, self.mlp.down_proj)


def _without_padding(attended_NSD: Tensor, there_NS: Tensor, first: int) -> Tensor:
    """Return zeros at padded places, all of which lie from ``first`` on."""
    tail = attended_NSD[:, first:] * there_NS[:, first:, None]
    if torch.is_grad_enabled():
        return torch.cat([attended_NSD[:, :first], tail], 1)
    attended_NSD[:, first:] = tail
    return attended_NSD


class QwenStack(nn.Module):
    """All layers."""

    def __init__(self, shape: QwenShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList([QwenLayer(shape) for _ in range(shape.num_hidden_layers)])
        self.norm = RmsNorm(shape.hidden_size)
        self._shape = shape

    def turn(self, rows: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions as :func:`rlvla.networks.kernels.rotate` takes them."""
        size = self._shape.head_dim
        exponent = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
        position = torch.arange(tokens, device=device, dtype=torch.float32).repeat(rows)
        angle = position[:, None, None, None] * self._shape.rope_theta**-exponent
        return angle.cos(), torch.cat([-angle.sin(), angle.sin()], -2)

    def forward(self, x_NSD: Tensor, there_NS: Tensor, first: int, run: Run) -> Tensor:
        """Return the final norm's output, ``[N, S, D]``; arguments as in :class:`QwenLayer`."""
        x_RD, delta_RD = x_NSD.flatten(0, 1), None
        turn = self.turn(len(x_NSD), x_NSD.shape[1], x_NSD.device)
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
        moved: list[bool] = [layer.pack() for layer in self.model.layers]  # type: ignore[operator]
        return any(moved)
