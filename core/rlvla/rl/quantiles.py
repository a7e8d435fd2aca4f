"""Quantiles that merge: counts in fixed, fine bins add up over micro-batches, passes and ranks; quantiles do not.

Bins are of the logarithm x of a positive number (a ratio): one for ``|x| < 1e-6``, and on both sides of it 64 a decade up to
20. A quantile is the middle of its bin: x is off by 1.8 % of itself at most, so a ratio of 1.2 by 0.004, and 1 is exactly 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST, LARGEST, PER_DECADE = 1e-6, 20.0, 64
SIDE = math.ceil(math.log10(LARGEST / SMALLEST) * PER_DECADE)
"""Bins on each side of the middle one; the outermost take what lies beyond them."""
BINS = 2 * SIDE + 1
PERCENTILES = (1, 5, 50, 95, 99)


def counts(log_x: Tensor, mask: Tensor) -> Tensor:
    """Return float64 ``[BINS]``: how many entries where ``mask`` lie in each bin, smallest first.

    Args:
        log_x: natural logarithms, of any shape; entries off the mask are never looked at, and what is no number counts
            nowhere.
        mask: bool, of the same shape.
    """
    mask = mask & ~log_x.isnan()
    log_x = torch.where(mask, log_x.detach().double(), 0.0)
    step = (torch.log10(log_x.abs().clamp(min=SMALLEST / 10) / SMALLEST) * PER_DECADE).floor() + 1
    bin_ = SIDE + (log_x.sign() * step.clamp(0, SIDE)).long()
    empty = torch.zeros(BINS, dtype=torch.float64, device=log_x.device)
    return empty.index_add(0, bin_.flatten(), mask.flatten().double())


def quantile(counts: Tensor, share: float) -> float:
    """Return the number (not its logarithm) that the share of the counted entries does not exceed; nan if there are none.

    Args:
        counts: of :func:`counts`, summed.
        share: in [0, 1].
    """
    reached = counts.cumsum(0)
    if not reached[-1] > 0:
        return math.nan
    number = max(1, math.ceil(share * float(reached[-1]) - 1e-6))  # of the entry: 0.05 * 300 is a little more than 15
    bin_ = int(torch.searchsorted(reached, torch.tensor(float(number), dtype=torch.float64))) - SIDE
    if bin_ == 0:
        return 1.0
    return math.exp(math.copysign(SMALLEST * 10 ** ((abs(bin_) - 0.5) / PER_DECADE), bin_))
