"""Products in FP8 (e4m3) for acting: a scale for each row of weights, and one for each row of activations.

The weights are quantised copies beside those that training reads. Log-probs are then those of the quantised policy, which
is what acted; what the trainer computes of the same tokens differs (``train/generator_gap``).

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlvla.networks import kernels
from rlvla.networks.linear import QUANTISED, base

GREATEST = 448.0
"""Of e4m3."""


def problem(option: str, asked: bool) -> list[str]:
    """Return why an option that asks for such products cannot have them on this machine's GPU."""
    if not asked or not torch.cuda.is_available() or (found := torch.cuda.get_device_capability()) >= (8, 9):
        return []
    return [f"{option}: got 'fp8', which this GPU (compute capability {found}) cannot multiply: 'same'"]


@dataclass
class Quantised:
    """Stacked weights of layers that read one input."""

    weight_OI: Tensor
    """float8_e4m3fn."""
    scale_O: Tensor
    """fp32, what a row is multiplied by."""

    def part(self, rows: slice) -> Quantised:
        """Return some of the outputs, in the same memory."""
        return Quantised(self.weight_OI[rows], self.scale_O[rows])

    def __call__(self, x_RI: Tensor) -> Tensor:
        """Return ``x W^T`` in ``x``'s dtype."""
        quantise = kernels.fused(quantised_rows) if x_RI.is_cuda else quantised_rows
        x8_RI, scale_R1 = quantise(x_RI)
        if not x_RI.is_cuda:  # the same numbers, for tests
            return (x8_RI.float() @ self.weight_OI.float().T * scale_R1 * self.scale_O).to(x_RI.dtype)
        return torch._scaled_mm(
            x8_RI,
            self.weight_OI.T,
            scale_a=scale_R1,
            scale_b=self.scale_O[None],
            out_dtype=x_RI.dtype,
            use_fast_accum=True,
        )


def quantised_rows(x_RI: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in FP8, and what each is multiplied by, fp32 ``[R, 1]``."""
    wide = x_RI.float()
    scale_R1 = wide.abs().amax(1, keepdim=True).clamp_min(1e-12) / GREATEST
    return (wide / scale_R1).clamp(-GREATEST, GREATEST).to(torch.float8_e4m3fn), scale_R1


@torch.no_grad()
def quantise_(modules: Sequence[nn.Module]) -> None:
    """Give layers that read one input a quantised copy of their weights, or refresh it in place."""
    layers = [base(module) for module in modules]
    fresh = [quantised_rows(layer.weight) for layer in layers]  # type: ignore[arg-type]
    weight, scale = torch.cat([one for one, _ in fresh]), torch.cat([one.flatten() for _, one in fresh])
    whole = getattr(layers[0], QUANTISED, {}).get(len(layers))
    if whole is not None:
        whole.weight_OI.copy_(weight)
        whole.scale_O.copy_(scale)
        return
    whole, first = Quantised(weight, scale), 0
    for number, layer in enumerate(layers):  # a product may need the last of them only, or one
        rest, own = len(layers) - number, len(layer.weight)  # type: ignore[arg-type]
        parts = {1: whole.part(slice(first, first + own)), rest: whole.part(slice(first, None))}
        setattr(layer, QUANTISED, parts if number else {**parts, rest: whole})
        first += own
