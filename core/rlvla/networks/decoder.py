"""What decoder layers of Llama's family share, under transformers' parameter names: norms, projections, SwiGLU, and which
weights lie beside each other. Attention is each model's own.

Letters: R rows and tokens (one dimension), D features, Z features of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlvla.networks import kernels
from rlvla.networks.kernels import Run
from rlvla.networks.linear import pack, project


class RmsNorm(nn.Module):
    """Holds the weight; computed in :mod:`rlvla.networks.kernels`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Attention(nn.Module):
    """Holds the products around attention.

    Args:
        width: D.
        heads: of queries.
        groups: heads of keys and values.
        size: Z.
    """

    def __init__(self, width: int, heads: int, groups: int, size: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, heads * size, bias=False)
        self.k_proj = nn.Linear(width, groups * size, bias=False)
        self.v_proj = nn.Linear(width, groups * size, bias=False)
        self.o_proj = nn.Linear(heads * size, width, bias=False)


class Mlp(nn.Module):
    """Holds the products around SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)


class DecoderLayer(nn.Module):
    """A layer but for its attention, for a model's own to inherit from. It takes and returns the residual stream and what is
    still to be added to it, so that adding and the norm after it are one kernel::

        x, normed = self.enter(x, delta, run)
        attended = ...                             # of normed, by the model's attention
        x, hidden = self.leave(x, attended, run)
        delta = self.down(hidden)

    Args:
        attention: the products around it.
        width: D.
        hidden: features between the products of the MLP.
        eps: of the norms.
    """

    def __init__(self, attention: Attention, width: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = Mlp(width, hidden)
        self.input_layernorm = RmsNorm(width)
        self.post_attention_layernorm = RmsNorm(width)
        self._eps = eps

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        moved = [pack(stack) for stack in self.stacks()]
        return any(moved)

    def stacks(self) -> list[list[nn.Module]]:
        """Return the linear layers, those that read one input together."""
        attention, mlp = self.self_attn, self.mlp
        qkv: list[nn.Module] = [attention.q_proj, attention.k_proj, attention.v_proj]
        return [qkv, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]

    def enter(self, x_RD: Tensor, delta_RD: Tensor | None, run: Run) -> tuple[Tensor, Tensor]:
        """Return the residual stream, and its norm before attention.

        Args:
            x_RD: tokens of all rows, one row after another.
            delta_RD: to be added to it; None: nothing.
            run: makes a kernel of an element-wise function.
        """
        weight = self.input_layernorm.weight
        if delta_RD is None:
            return x_RD, run(kernels.rms_norm)(x_RD, weight, self._eps)
        return run(kernels.add_rms_norm)(x_RD, delta_RD, weight, self._eps)  # type: ignore[no-any-return]

    def leave(self, x_RD: Tensor, attended_RD: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Return the residual stream with attention added, and SwiGLU's output."""
        delta_RD = project(attended_RD, self.self_attn.o_proj)
        x_RD, normed = run(kernels.add_rms_norm)(x_RD, delta_RD, self.post_attention_layernorm.weight, self._eps)
        return x_RD, run(kernels.swiglu)(project(normed, self.mlp.gate_proj, self.mlp.up_proj))

    def down(self, hidden: Tensor) -> Tensor:
        """Return the layer's last product. It stands apart, since no backward pass needs it computed again."""
        return project(hidden, self.mlp.down_proj)


class DecoderStack(nn.Module):
    """Embeddings, layers and the last norm, for a model's own pass to inherit from.

    Args:
        vocabulary: number of embeddings.
        width: D.
        layers: of the model.
    """

    def __init__(self, vocabulary: int, width: int, layers: list[DecoderLayer]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(layers)
        self.norm = RmsNorm(width)

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other; says whether any moved."""
        moved: list[bool] = [layer.pack() for layer in self.layers]  # type: ignore[operator]
        return any(moved)


def turns(position_R: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of positions as :func:`rlvla.networks.kernels.rotate` takes them, fp32.

    Args:
        position_R: of the tokens.
        size: Z.
        theta: what the slowest turn's wavelength grows with.
    """
    exponent = torch.arange(0, size, 2, device=position_R.device, dtype=torch.float32) / size
    angle = position_R[:, None, None, None].float() * theta**-exponent
    return angle.cos(), torch.cat([-angle.sin(), angle.sin()], -2)
