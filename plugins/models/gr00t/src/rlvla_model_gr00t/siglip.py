"""The vision tower SigLIP 2, under the public parameter names.

Letters: N pictures, P patches, R = N * P, D features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla.networks import kernels
from rlvla.networks.kernels import Run
from rlvla.networks.linear import pack, project, project_gelu
from rlvla_model_gr00t.header import SiglipShape


class SiglipAttention(nn.Module):
    """Self-attention over all patches."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self._heads = shape.num_attention_heads

    def forward(self, x_RD: Tensor, pictures: int) -> Tensor:
        qkv = project(x_RD, self.q_proj, self.k_proj, self.v_proj)
        q, k, v = qkv.unflatten(0, (pictures, -1)).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        return project(attended.transpose(1, 2).flatten(2).flatten(0, 1), self.out_proj)


class SiglipMlp(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.fc2 = nn.Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return project(project_gelu(x, self.fc1), self.fc2)


class SiglipLayer(nn.Module):
    """A pre-norm block. It takes normed features, so that adding and the norm after it are one kernel."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        self.self_attn = SiglipAttention(shape)
        self.layer_norm2 = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        self.mlp = SiglipMlp(shape)

    def forward(
        self, x_RD: Tensor, normed_RD: Tensor, pictures: int, after: nn.LayerNorm, run: Run
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream, and its norm by ``after``, the one that follows."""
        add, norm = run(kernels.add_layer_norm), self.layer_norm2
        x_RD, normed_RD = add(x_RD, self.self_attn(normed_RD, pictures), norm.weight, norm.bias, norm.eps)
        x_RD, normed_RD = add(x_RD, self.mlp(normed_RD), after.weight, after.bias, after.eps)
        return x_RD, normed_RD


class SiglipEmbeddings(nn.Module):
    """Patches to features, each with its place."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        patch = shape.patch_size
        self.patch_embedding = nn.Conv2d(3, shape.hidden_size, patch, patch)
        self.position_embedding = nn.Embedding(shape.tokens, shape.hidden_size)
        self._side = patch

    def forward(self, pictures_N3HW: Tensor) -> Tensor:
        layer, dtype, side = self.patch_embedding, pictures_N3HW.dtype, self._side
        assert layer.bias is not None
        patches = pictures_N3HW.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 2, 4, 1, 3, 5).flatten(3)
        weight, room = (
            layer.weight.to(dtype).flatten(1),
            -patches.shape[-1] % 8,
        )  # what tensor cores want: multiples of 8
        embedded = F.linear(F.pad(patches.flatten(1, 2), (0, room)), F.pad(weight, (0, room)), layer.bias.to(dtype))
        return embedded + self.position_embedding.weight.to(dtype)


class SiglipPool(nn.Module):
    """The attention pool: stored in every checkpoint, never computed."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.probe = nn.Parameter(torch.zeros(1, 1, width))
        self.attention = nn.MultiheadAttention(width, shape.num_attention_heads, batch_first=True)
        self.layernorm = nn.LayerNorm(width, eps=shape.layer_norm_eps)
        self.mlp = SiglipMlp(shape)


class SiglipEncoder(nn.Module):
    """All blocks."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SiglipLayer(shape) for _ in range(shape.num_hidden_layers)])


class SiglipTransformer(nn.Module):
    """Embeddings, blocks, final norm."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        self.embeddings = SiglipEmbeddings(shape)
        self.encoder = SiglipEncoder(shape)
        self.post_layernorm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        self.head = SiglipPool(shape)

    def forward(self, pictures_N3HW: Tensor, run: Run) -> Tensor:
        x = self.embeddings(pictures_N3HW)
        pictures, x_RD = len(x), x.flatten(0, 1)
        layers = list(self.encoder.layers)
        first: nn.LayerNorm = layers[0].layer_norm1  # type: ignore[assignment]
        normed_RD = F.layer_norm(
            x_RD, first.normalized_shape, first.weight.to(x.dtype), first.bias.to(x.dtype), first.eps
        )
        norms = [*(layer.layer_norm1 for layer in layers[1:]), self.post_layernorm]
        for layer, after in zip(layers, norms, strict=True):
            x_RD, normed_RD = layer(x_RD, normed_RD, pictures, after, run)
        return normed_RD.unflatten(0, (pictures, -1))  # type: ignore[no-any-return]


class Siglip(nn.Module):
    """The tower, one level down, as the public names have it."""

    def __init__(self, shape: SiglipShape) -> None:
        super().__init__()
        self.vision_model = SiglipTransformer(shape)

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other in memory; says whether any moved."""
        layers = self.vision_model.encoder.layers
        moved = [pack([one.self_attn.q_proj, one.self_attn.k_proj, one.self_attn.v_proj]) for one in layers]  # type: ignore[union-attr, list-item]
        return any(moved)

    def forward(self, pictures_N3HW: Tensor, run: Run = lambda function: function) -> Tensor:
        """Return ``[N, P, D]`` of normalised pictures, in the dtype of all products."""
        return self.vision_model(pictures_N3HW, run)  # type: ignore[no-any-return]
