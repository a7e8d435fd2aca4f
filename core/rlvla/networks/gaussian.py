"""The normal distribution, element by element, in the dtype of its arguments."""

from __future__ import annotations

from torch import Tensor

HALF_LOG_2_PI = 0.9189385332046727
HALF_LOG_2_PI_E = 1.4189385332046727
"""Entropy of a standard normal, nats."""


def normal_logp(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log-density of each element, nats."""
    return -0.5 * ((x - mean) / std).square() - std.log() - HALF_LOG_2_PI
