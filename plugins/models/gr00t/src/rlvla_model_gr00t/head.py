"""The action head: a transformer that denoises a chunk of actions, looking at what the backbone saw. Public names.

Weights that exist once for each of 32 embodiments are here those of one: acting and training multiply by them without
gathering, gradients and optimizer state are of that row alone (10 M of 315 M parameters), and files hold all rows
(:mod:`rlvla_model_gr00t.files`).

Letters: N rows, S context tokens, K denoising steps, L layers, T = 1 + future tokens + H tokens of the transformer, H actions
that are denoised, A action dimensions of the network, C features of the context, D of the transformer.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla.networks import kernels
from rlvla.networks.kernels import Run
from rlvla.networks.linear import pack, project, project_gelu
from rlvla_model_gr00t.header import AttentionShape, HeadShape

_EPS, _FINAL_EPS = 1e-5, 1e-6
_TIME_FEATURES = 256


class EmbodiedLinear(nn.Module):
    """``x W + b`` with one embodiment's weights."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(inputs, outputs))
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W.to(x.dtype) + self.b.to(x.dtype)


class EmbodiedMlp(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer1 = EmbodiedLinear(inputs, hidden)
        self.layer2 = EmbodiedLinear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(F.relu(self.layer1(x)))  # type: ignore[no-any-return]

    def exactly(self, x: Tensor) -> Tensor:
        """Return the output with an fp32 second layer, which is small and what follows is not."""
        return self.layer2(F.relu(self.layer1(x)).float())  # type: ignore[no-any-return]


class ActionEncoder(nn.Module):
    """Noisy actions and their time to tokens."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.W1 = EmbodiedLinear(actions, width)
        self.W2 = EmbodiedLinear(2 * width, width)
        self.W3 = EmbodiedLinear(width, width)

    def times(self, bucket_K: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what each time adds inside, ``[K, D]``: the second layer's share of its waves, bias included."""
        width = self.W3.W.shape[0]
        rate = torch.arange(width // 2, device=bucket_K.device, dtype=torch.float32) * (-math.log(1e4) / (width // 2))
        angle = bucket_K.float()[:, None] * rate.exp()
        waves = torch.cat([angle.sin(), angle.cos()], -1).to(dtype)
        return waves @ self.W2.W[width:].to(dtype) + self.W2.b.to(dtype)

    def forward(self, x_NHA: Tensor, time_N1D: Tensor) -> Tensor:
        """Return ``[N, H, D]``."""
        inner = self.W1(x_NHA)
        return self.W3(F.silu(inner @ self.W2.W[: inner.shape[-1]].to(inner.dtype) + time_N1D))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention, self- or cross-: calling it is the former, with all products in it.

    Args:
        width: D.
        seen: features of what is looked at.
        heads: of attention.
    """

    def __init__(self, width: int, seen: int, heads: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(seen, width)
        self.to_v = nn.Linear(seen, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self._heads = heads

    def forward(self, normed_NTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what attention among the tokens themselves adds."""
        qkv = project(normed_NTD, self.to_q, self.to_k, self.to_v).unflatten(-1, (3, self._heads, -1))
        q, k, v = (one.transpose(1, 2) for one in qkv.unbind(2))
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    def cross(self, normed_NTD: Tensor, both: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Return what attention to keys and values of others adds."""
        q = project(normed_NTD, self.to_q).unflatten(-1, (self._heads, -1)).transpose(1, 2)
        return self._out(F.scaled_dot_product_attention(q, *both, attn_mask=mask))

    def _out(self, attended: Tensor) -> Tensor:
        return project(attended.transpose(1, 2).flatten(2), self.to_out[0])


class _Projected(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, hidden)


class FeedForward(nn.Module):
    """Two layers with a GELU between them; the public names count a dropout between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.ModuleList([_Projected(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        first: nn.Linear = self.net[0].proj  # type: ignore[assignment]
        return project(project_gelu(x, first), self.net[2])


class _Modulation(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)


class Block(nn.Module):
    """A pre-norm block; it takes and returns normed features, so that adding and the norm after it are one kernel."""

    def __init__(self, shape: AttentionShape, seen: int, modulated: bool) -> None:
        super().__init__()
        width = shape.width
        self.norm1: nn.Module = _Modulation(width) if modulated else nn.LayerNorm(width, eps=_EPS)
        self.attn1 = Attention(width, seen, shape.num_attention_heads)
        if not modulated:
            self.norm3 = nn.LayerNorm(width, eps=_EPS)
        self.ff = FeedForward(width)


class _Times(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(_TIME_FEATURES, width)
        self.linear_2 = nn.Linear(width, width)


class TimestepEncoder(nn.Module):
    """Times to features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = _Times(width)

    def forward(self, bucket_K: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``[K, D]``."""
        half = _TIME_FEATURES // 2
        rate = torch.arange(half, device=bucket_K.device, dtype=torch.float32) * (-math.log(1e4) / (half - 1))
        angle = bucket_K.float()[:, None] * rate.exp()
        waves = torch.cat([angle.cos(), angle.sin()], -1).to(dtype)
        layers = self.timestep_embedder
        return project(F.silu(project(waves, layers.linear_1)), layers.linear_2)


@dataclass(frozen=True)
class Times:
    """What the network makes of denoising times alone, for all K of them: computed once a call."""

    blocks: Tensor
    """``[K, L, 2, D]``, scale and shift of each block's norm."""
    out: Tensor
    """``[K, 2, D]``, shift and scale of the last norm."""
    actions: Tensor
    """``[K, D]``, inside the action encoder."""

    def at(self, steps: Tensor) -> Times:
        """Return those of some steps: one for each row, or one for all."""
        return Times(*(one.index_select(0, steps) for one in (self.blocks, self.out, self.actions)))


class Diffusion(nn.Module):
    """The transformer: even layers look at the context, odd ones at the tokens themselves."""

    def __init__(self, shape: AttentionShape, context: int) -> None:
        super().__init__()
        width = shape.width
        self.timestep_encoder = TimestepEncoder(width)
        self.transformer_blocks = nn.ModuleList(
            [Block(shape, width if number % 2 else context, modulated=True) for number in range(shape.num_layers)]
        )
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, shape.output_dim)
        self._heads = shape.num_attention_heads

    @property
    def crossing(self) -> list[nn.Module]:
        """Keys' and values' layers of the blocks that look at the context."""
        blocks = list(self.transformer_blocks)[::2]
        return [layer for block in blocks for layer in (block.attn1.to_k, block.attn1.to_v)]  # type: ignore[union-attr,misc]

    @property
    def modulations(self) -> list[nn.Module]:
        """Layers that give each block's norm its scale and shift."""
        return [block.norm1.linear for block in self.transformer_blocks]  # type: ignore[union-attr,misc]

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        own = [block.attn1 for block in list(self.transformer_blocks)[1::2]]
        groups = [self.crossing, self.modulations, *([one.to_q, one.to_k, one.to_v] for one in own)]  # type: ignore[union-attr]
        moved = [pack(group) for group in groups if group]  # type: ignore[arg-type]
        return any(moved)

    def keys_and_values(self, context_NSC: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return those of the context for each block that looks at it, ``[N, heads, S, Z]``: the same in every step."""
        crossing = self.crossing
        both = project(context_NSC, *crossing).unflatten(-1, (len(crossing), self._heads, -1))
        each = [one.transpose(1, 2) for one in both.unbind(2)]  # so the gradient is put together once, as it lies
        return list(zip(each[::2], each[1::2], strict=True))

    def modulation(self, bucket_K: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the first two of :class:`Times`."""
        active = F.silu(self.timestep_encoder(bucket_K, dtype))
        layers = self.modulations
        blocks = project(active, *layers).unflatten(-1, (len(layers), 2, -1))
        return blocks, project(active, self.proj_out_1).unflatten(-1, (2, -1))

    def forward(
        self,
        x_NTD: Tensor,
        both: list[tuple[Tensor, Tensor]],
        times: Times,
        mask: Tensor | None,
        wanted: int,
        run: Run,
    ) -> Tensor:
        """Return the last ``wanted`` tokens, ``[N, H, features]``.

        Args:
            x_NTD: tokens, in the dtype of all products.
            both: of :meth:`keys_and_values`.
            times: of each row's time, or of one for all.
            mask: bool, context tokens that count; None: all.
            wanted: how many.
            run: makes a kernel of an element-wise function.
        """
        scales, shifts = times.blocks[:, :, 0, None].unbind(1), times.blocks[:, :, 1, None].unbind(1)
        add, blocks = run(kernels.add_modulated), list(self.transformer_blocks)
        normed = run(kernels.modulated)(x_NTD, scales[0], shifts[0], _EPS)
        for number, block in enumerate(blocks):
            if number % 2:
                delta = block.attn1(normed)  # type: ignore[operator]
            else:
                delta = block.attn1.cross(normed, both[number // 2], mask)  # type: ignore[operator,union-attr]
            if number + 1 == len(blocks):  # from here on, each token is on its own
                x_NTD, delta = x_NTD[:, -wanted:], delta[:, -wanted:]
            shape = x_NTD.shape
            x_RD, normed = run(kernels.add_bare_layer_norm)(x_NTD.flatten(0, 1), delta.flatten(0, 1), _EPS)
            x_NTD, delta = x_RD.view(shape), block.ff(normed).view(shape)  # type: ignore[operator]
            if number + 1 < len(blocks):
                x_NTD, normed = add(x_NTD, delta, scales[number + 1], shifts[number + 1], _EPS)
        shift, scale = times.out[:, :1], times.out[:, 1:]
        return project(kernels.modulated(x_NTD + delta, scale, shift, _FINAL_EPS), self.proj_out_2)


class ContextAttention(nn.Module):
    """Self-attention over what the backbone saw."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(
            [Block(shape, shape.width, modulated=False) for _ in range(shape.num_layers)]
        )

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        own = [block.attn1 for block in self.transformer_blocks]
        moved = [pack([one.to_q, one.to_k, one.to_v]) for one in own]  # type: ignore[union-attr,list-item]
        return any(moved)

    def forward(self, x_NSC: Tensor, normed: Tensor, mask: Tensor | None, run: Run) -> Tensor:
        """Return the residual stream after all blocks.

        Args:
            x_NSC: before them.
            normed: its norm by the first one.
            mask: bool, tokens that count; None: all.
            run: makes a kernel of an element-wise function.
        """
        add, blocks, shape = run(kernels.add_layer_norm), list(self.transformer_blocks), x_NSC.shape
        x_RC = x_NSC.flatten(0, 1)  # kernels are compiled for any number of rows, but for one row apart
        for number, block in enumerate(blocks):
            norm: nn.LayerNorm = block.norm3  # type: ignore[assignment]
            delta_RC = block.attn1(normed.view(shape), mask).flatten(0, 1)  # type: ignore[operator]
            x_RC, normed = add(x_RC, delta_RC, norm.weight, norm.bias, _EPS)
            delta_RC = block.ff(normed)  # type: ignore[operator]
            if number + 1 < len(blocks):
                following: nn.LayerNorm = blocks[number + 1].norm1  # type: ignore[assignment]
                x_RC, normed = add(x_RC, delta_RC, following.weight, following.bias, _EPS)
        return (x_RC + delta_RC).view(shape)  # type: ignore[no-any-return]


def _mlp(widths: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class ValueHead(nn.Module):
    """What the network saw, on average, and the state, to values; fp32. Published RL checkpoints have it."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.mlp = _mlp((width, 1024, 512, 256, values), nn.ReLU)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return fp32 ``[N, V]``."""
        return self.mlp(pooled.float())  # type: ignore[no-any-return]


class NoiseNet(nn.Module):
    """The transformer's output to how random each action is, before :func:`rlvla_model_gr00t.flow.learned_std`; fp32."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.mlp = _mlp((width, 128, 64, actions), nn.Tanh)

    def forward(self, features: Tensor) -> Tensor:
        """Return fp32 ``[N, H, A]``."""
        return self.mlp(features.float())  # type: ignore[no-any-return]


class ActionHead(nn.Module):
    """All weights of the head.

    Args:
        shape: sizes.
        values: of a chunk; 0: no value head.
        learned_noise: a noise network too.
    """

    def __init__(self, shape: HeadShape, values: int = 0, learned_noise: bool = False) -> None:
        super().__init__()
        width, context = shape.input_embedding_dim, shape.backbone_embedding_dim
        self.model = Diffusion(shape.diffusion, context)
        self.state_encoder = EmbodiedMlp(shape.max_state_dim, shape.hidden_size, width)
        self.action_encoder = ActionEncoder(shape.action_dim, width)
        self.action_decoder = EmbodiedMlp(shape.hidden_size, shape.hidden_size, shape.action_dim)
        self.future_tokens = nn.Embedding(shape.num_target_vision_tokens, width)
        self.position_embedding = nn.Embedding(shape.max_seq_len, width)
        self.vlln = nn.LayerNorm(context)
        self.vl_self_attention = ContextAttention(shape.context)
        if values:
            self.value_head = ValueHead(context + width, values)
        if learned_noise:
            self.noise_net = NoiseNet(shape.hidden_size, shape.action_dim)
        self._shape = shape

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        moved = self.model.pack()
        return self.vl_self_attention.pack() or moved

    def units(self) -> list[nn.Module]:
        """Return what computes by itself when it is called, most of all weights: the others are multiplied together."""
        context, own = list(self.vl_self_attention.transformer_blocks), list(self.model.transformer_blocks)
        blocks = [one.ff for one in (*context, *own)] + [one.attn1 for one in (*context, *own[1::2])]
        return [*blocks, *(getattr(self, name) for name in ("value_head", "noise_net") if hasattr(self, name))]  # type: ignore[list-item]

    def exact(self) -> list[nn.Parameter]:
        """Return parameters that stay in fp32 while acting: what is small, and close to log-probs and values."""
        parts = [self.action_decoder.layer2]
        parts += [getattr(self, name) for name in ("value_head", "noise_net") if hasattr(self, name)]
        return [one for part in parts for one in part.parameters()]

    def context(self, features_NSC: Tensor, mask: Tensor | None, run: Run) -> Tensor:
        """Return what the transformer and the value head look at, ``[N, S, C]``."""
        norm = self.vlln
        first: nn.LayerNorm = self.vl_self_attention.transformer_blocks[0].norm1  # type: ignore[assignment]
        dtype = features_NSC.dtype
        x = F.layer_norm(features_NSC, norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps)
        normed = F.layer_norm(x, norm.normalized_shape, first.weight.to(dtype), first.bias.to(dtype), _EPS)
        return self.vl_self_attention(x, normed, mask, run)  # type: ignore[no-any-return]

    def state(self, state_NS: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the state's token, ``[N, 1, D]``."""
        return self.state_encoder(state_NS.to(dtype))[:, None]  # type: ignore[no-any-return]

    def pooled(self, context_NSC: Tensor, there_NS: Tensor | None, state_N1D: Tensor) -> Tensor:
        """Return what the value head reads, fp32: the mean over context tokens, and the state's token."""
        if there_NS is None:
            mean = context_NSC.float().mean(1)
        else:
            there = there_NS[..., None].float()
            mean = (context_NSC.float() * there).sum(1) / there.sum(1)
        return torch.cat([mean, state_N1D[:, 0].float()], -1)

    def times(self, bucket_K: Tensor, dtype: torch.dtype) -> Times:
        """Return what the network makes of denoising times.

        Args:
            bucket_K: numbers of buckets, from 0 for noise to the last for actions.
            dtype: of all products.
        """
        return Times(*self.model.modulation(bucket_K, dtype), self.action_encoder.times(bucket_K, dtype))

    def velocity(
        self,
        x_NHA: Tensor,
        state_N1D: Tensor,
        both: list[tuple[Tensor, Tensor]],
        times: Times,
        mask: Tensor | None,
        run: Run,
    ) -> tuple[Tensor, Tensor]:
        """Return the velocity, fp32 ``[N, H, A]``, and the features that it was read from.

        Args:
            x_NHA: noisy actions, fp32.
            state_N1D: of :meth:`state`.
            both: keys and values of the context.
            times: of each row's step, or of one for all.
            mask: context tokens that count; None: all.
            run: makes a kernel of an element-wise function.
        """
        dtype, (rows, horizon, _) = state_N1D.dtype, x_NHA.shape
        tokens = self.action_encoder(x_NHA.to(dtype), times.actions[:, None])
        tokens = tokens + self.position_embedding.weight[:horizon].to(dtype)
        future = self.future_tokens.weight.to(dtype).expand(rows, -1, -1)
        features = self.model(torch.cat([state_N1D, future, tokens], 1), both, times, mask, horizon, run)
        return self.action_decoder.exactly(features), features
