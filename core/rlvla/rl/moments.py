"""Count, mean and variance that merge, so that a statistic does not depend on how trajectories are spread over ranks.

Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", the pairwise update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations, as float64 scalars.

    Example:
        >>> Moments.merge([Moments.of(torch.ones(2)), Moments.of(torch.full((2,), 3.0))]).std()
        tensor(1.1547, dtype=torch.float64)
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    @classmethod
    def of(cls, x: Tensor, mask: Tensor | None = None) -> Moments:
        """Return the moments of the entries of ``x`` where ``mask`` (of its shape) is true; others never count."""
        x = x.detach().double()
        if mask is None:
            mask = torch.ones(x.shape, dtype=torch.bool, device=x.device)
        assert mask.shape == x.shape, f"mask {tuple(mask.shape)} for {tuple(x.shape)}"
        count = mask.sum().double()
        mean = torch.where(mask, x, 0.0).sum() / count.clamp(min=1)
        return cls(count, mean, torch.where(mask, x - mean, 0.0).square().sum())

    @staticmethod
    def merge(parts: Sequence[Moments]) -> Moments:
        """Return the moments of all parts together: M2 = sum M2_r + count_r (mean_r - mean)^2, in the order given."""
        count_R, mean_R, m2_R = (
            torch.stack([getattr(part, name) for part in parts]) for name in ("count", "mean", "m2")
        )
        count = count_R.sum()
        mean = (count_R * mean_R).sum() / count.clamp(min=1)
        return Moments(count, mean, (m2_R + count_R * (mean_R - mean).square()).sum())

    def over_ranks(self) -> Moments:
        """Return the moments over all ranks, merged in rank order; this rank's own without a process group."""
        every_R3 = gather(torch.stack([self.count, self.mean, self.m2]))
        return self if len(every_R3) == 1 else Moments.merge([Moments(*row.unbind()) for row in every_R3])

    def std(self, unbiased: bool = True) -> Tensor:
        """Return the standard deviation; ``unbiased`` divides by count - 1, and gives 0 for fewer than 2 entries."""
        return (self.m2 / (self.count - int(unbiased)).clamp(min=1)).sqrt()


def gather(x: Tensor) -> Tensor:
    """Return ``[R, *x.shape]``: ``x`` of every rank, in rank order; ``[1, ...]`` without a process group."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return x[None]
    every = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, x.contiguous())
    return torch.stack(every)


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the sum of ``x`` over all ranks, in rank order."""
    return gather(x).sum(0)
