"""The vision towers: DINOv2 with registers and SigLIP, under timm's parameter names.

Own modules rather than timm's, because what is used of them is a ViT block; so there are no names to translate when
loading and saving (timm calls layer scale's factor ``gamma``), adapters of several cameras go through one product, and the
last block, whose output nobody reads, is stored but not computed. They are compared with timm's in the tests.

Letters: N pictures, P patches, D features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla_model_openvla_oft.header import PATCH, TowerShape
from rlvla_model_openvla_oft.linear import project

_EPS = 1e-6


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the norm in ``x``'s dtype, whatever the dtype of its weights."""
    return F.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)


class LayerScale(nn.Module):
    """A factor for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor.to(x.dtype)


class Mlp(nn.Module):
    """Two layers with an exact GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return project(F.gelu(project(x, self.fc1)), self.fc2)


class Attention(nn.Module):
    """Self-attention over all patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = project(x, self.qkv).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), self.proj)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, shape: TowerShape, layer_scale: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=_EPS)
        self.attn = Attention(shape.width, shape.heads)
        self.ls1 = LayerScale(shape.width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.width, eps=_EPS)
        self.mlp = Mlp(shape.width, shape.mlp)
        self.ls2 = LayerScale(shape.width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(layer_norm(x, self.norm1)))
        added: Tensor = self.ls2(self.mlp(layer_norm(x, self.norm2)))
        return x + added


class PatchEmbedding(nn.Module):
    """Patches to features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, PATCH)

    def forward(self, pictures: Tensor) -> Tensor:
        layer: nn.Module = self.proj
        if isinstance(layer, nn.Conv2d):  # its weights may be fp32 masters
            weight, bias = layer.weight.to(pictures.dtype), layer.bias
            out = F.conv2d(pictures, weight, bias.to(pictures.dtype) if bias is not None else None, stride=PATCH)
        else:
            out = layer(pictures)
        return out.flatten(2).transpose(1, 2)


class AttentionPool(nn.Module):
    """SigLIP's pooling head: stored in every checkpoint, never computed."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.q = nn.Linear(shape.width, shape.width)
        self.kv = nn.Linear(shape.width, 2 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=_EPS)
        self.mlp = Mlp(shape.width, shape.mlp)


class Tower(nn.Module):
    """A ViT whose features are the output of the last block but one, without a final norm.

    Args:
        shape: sizes.
        image_size: height and width of a picture.
        registers: class token, registers and layer scale (DINO), or attention pool (SigLIP).
    """

    def __init__(self, shape: TowerShape, image_size: int, registers: bool) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(shape.width)
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // PATCH) ** 2, shape.width))
        if registers:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
            self.reg_token = nn.Parameter(torch.zeros(1, 4, shape.width))
        else:
            self.attn_pool = AttentionPool(shape)
        self.blocks = nn.ModuleList([Block(shape, registers) for _ in range(shape.depth)])
        self.norm = nn.LayerNorm(shape.width, eps=_EPS)
        self._registers = registers

    def dead(self) -> list[nn.Module]:
        """Return what is stored and never computed."""
        return [self.blocks[-1], self.norm, *([] if self._registers else [self.attn_pool])]

    def forward(self, pictures_N3HW: Tensor) -> Tensor:
        """Return ``[N, P, D]``."""
        x: Tensor = self.patch_embed(pictures_N3HW) + self.pos_embed.to(pictures_N3HW.dtype)
        if self._registers:
            prefix = torch.cat([self.cls_token, self.reg_token], 1).to(x.dtype)
            x = torch.cat([prefix.expand(len(x), -1, -1), x], 1)
        for block in self.blocks[:-1]:
            x = block(x)
        return x[:, 5:] if self._registers else x


class VisionBackbone(nn.Module):
    """Both towers on one picture; features beside each other."""

    def __init__(self, dino: TowerShape, siglip: TowerShape, image_size: int) -> None:
        super().__init__()
        self.featurizer = Tower(dino, image_size, registers=True)
        self.fused_featurizer = Tower(siglip, image_size, registers=False)
        self.width = dino.width + siglip.width
        self.patches = (image_size // PATCH) ** 2

    def dead(self) -> list[nn.Module]:
        """Return what is stored and never computed."""
        return [*self.featurizer.dead(), *self.fused_featurizer.dead()]

    def forward(self, pictures_N3HW: Tensor, dtype: torch.dtype, means: Tensor, stds: Tensor) -> Tensor:
        """Return ``[N, P, both towers' D]``.

        Args:
            pictures_N3HW: uint8.
            dtype: of all products.
            means: ``[2, 3, 1, 1]``, of each tower, for pictures in [0, 1].
            stds: likewise.
        """
        scaled = pictures_N3HW.float() / 255
        towers = (self.featurizer, self.fused_featurizer)
        return torch.cat([tower(((scaled - means[i]) / stds[i]).to(dtype)) for i, tower in enumerate(towers)], -1)


class Projector(nn.Module):
    """Picture features to Llama's."""

    def __init__(self, vision: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision, 4 * vision)
        self.fc2 = nn.Linear(4 * vision, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return project(F.gelu(project(F.gelu(project(x, self.fc1)), self.fc2)), self.fc3)
