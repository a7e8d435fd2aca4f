"""The vision towers: DINOv2 with registers and SigLIP, under timm's parameter names.

Own modules rather than timm's, because what is used of them is a ViT block; so there are no names to translate when
loading and saving (timm calls layer scale's factor ``gamma``), adapters of several cameras go through one product, and the
last block, whose output nobody reads, is stored but not computed. They are compared with timm's in the tests.

Letters: N pictures, P patches (and registers), R = N * P, D features.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla.networks import kernels
from rlvla.networks.kernels import Run
from rlvla.networks.linear import in_force, project
from rlvla_model_openvla_oft.header import PATCH, TowerShape

_EPS = 1e-6


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the norm in ``x``'s dtype, whatever the dtype of its weights."""
    return F.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)


class LayerScale(nn.Module):
    """Holds a factor for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-5))


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

    def forward(self, x_RD: Tensor, pictures: int) -> Tensor:
        qkv = project(x_RD, self.qkv).unflatten(0, (pictures, -1)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        return project(attended.transpose(1, 2).flatten(2).flatten(0, 1), self.proj)


class Block(nn.Module):
    """A pre-norm transformer block. It takes normed features, so that adding and the norm after it are one kernel."""

    def __init__(self, shape: TowerShape, layer_scale: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=_EPS)
        self.attn = Attention(shape.width, shape.heads)
        self.norm2 = nn.LayerNorm(shape.width, eps=_EPS)
        self.mlp = Mlp(shape.width, shape.mlp)
        if layer_scale:
            self.ls1 = LayerScale(shape.width)
            self.ls2 = LayerScale(shape.width)
        self._scaled = layer_scale

    def _add(self, x_RD: Tensor, delta_RD: Tensor, scale: str, norm: nn.LayerNorm, run: Run) -> tuple[Tensor, Tensor]:
        if not self._scaled:
            return run(kernels.add_layer_norm)(x_RD, delta_RD, norm.weight, norm.bias, _EPS)  # type: ignore[no-any-return]
        factor = getattr(self, scale).scale_factor
        return run(kernels.add_scaled_layer_norm)(x_RD, delta_RD, factor, norm.weight, norm.bias, _EPS)  # type: ignore[no-any-return]

    def forward(
        self, x_RD: Tensor, normed_RD: Tensor, pictures: int, after: nn.LayerNorm, run: Run
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream, and its norm for the next block.

        Args:
            x_RD: patches of all pictures, one picture after another.
            normed_RD: their norm by ``norm1``.
            pictures: N.
            after: norm that follows.
            run: makes a kernel of an element-wise function.
        """
        x_RD, normed_RD = self._add(x_RD, self.attn(normed_RD, pictures), "ls1", self.norm2, run)
        x_RD, normed_RD = self._add(x_RD, self.mlp(normed_RD), "ls2", after, run)
        return x_RD, normed_RD


class PatchEmbedding(nn.Module):
    """Patches to features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, PATCH)

    def forward(self, pictures: Tensor) -> Tensor:
        layer = in_force(self.proj)
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

    def forward(self, pictures_N3HW: Tensor, run: Run = lambda function: function) -> Tensor:
        """Return ``[N, P, D]``.

        Args:
            pictures_N3HW: normalised, in the dtype of all products.
            run: makes a kernel of an element-wise function.
        """
        x: Tensor = self.patch_embed(pictures_N3HW) + self.pos_embed.to(pictures_N3HW.dtype)
        if self._registers:
            prefix = torch.cat([self.cls_token, self.reg_token], 1).to(x.dtype)
            x = torch.cat([prefix.expand(len(x), -1, -1), x], 1)
        pictures, x_RD = len(x), x.flatten(0, 1)
        normed_RD: Tensor = layer_norm(x_RD, self.blocks[0].norm1)  # type: ignore[arg-type]
        for block, following in itertools.pairwise(self.blocks):
            x_RD, normed_RD = block(x_RD, normed_RD, pictures, following.norm1, run)
        x = x_RD.unflatten(0, (pictures, -1))
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

    def forward(self, pictures_N3HW: Tensor, dtype: torch.dtype, means: Tensor, stds: Tensor, run: Run) -> Tensor:
        """Return ``[N, P, both towers' D]``.

        Args:
            pictures_N3HW: uint8.
            dtype: of all products.
            means: ``[2, 3, 1, 1]``, of each tower, for pictures in [0, 1].
            stds: likewise.
            run: makes a kernel of an element-wise function.
        """
        scaled = pictures_N3HW.float() / 255
        towers = (self.featurizer, self.fused_featurizer)
        return torch.cat([tower(((scaled - means[i]) / stds[i]).to(dtype), run) for i, tower in enumerate(towers)], -1)


class Projector(nn.Module):
    """Picture features to Llama's."""

    def __init__(self, vision: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision, 4 * vision)
        self.fc2 = nn.Linear(4 * vision, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return project(F.gelu(project(F.gelu(project(x, self.fc1)), self.fc2)), self.fc3)
