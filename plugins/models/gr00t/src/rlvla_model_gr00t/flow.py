"""Denoising as a policy: from noise at time 0 to actions at time 1, in steps that may be random. All in fp32.

A step at time t over dt ends in a normal distribution around a mixture of the two ends that the velocity points to, the
noise ``x - v t`` and the actions ``x + v (1 - t)``. Where it is not random it is Euler's ``x + v dt``.

* ``flow_sde``: variance ``level^2 (1 - t) / t`` a unit of time, and the drift that keeps the flow's marginals
  (arXiv:2505.05470, eq. 9; the first step takes the time after it in the denominator).
* ``flow_cps``: noise is turned by an angle ``level * pi / 2``, so that coefficients keep their squares (arXiv:2509.05952).
* ``reinflow``: Euler's step as mean, a learned deviation (arXiv:2505.22094).

Letters: N rows, H actions that are denoised, A action dimensions of the network.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

Kind = Literal["flow_sde", "flow_cps", "reinflow"]
LEAST_STD, GREATEST_STD = 0.08, 0.16
"""Ends of the learned deviation (RLinf's)."""


def euler(x: Tensor, velocity: Tensor, dt: float) -> Tensor:
    """Return where a step ends that is not random."""
    return x + velocity * dt


def distribution(
    kind: Kind, x: Tensor, velocity: Tensor, t: Tensor, dt: float, level: Tensor, learned: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of a random step, both ``[N, H, A]``.

    Args:
        kind: of the noise.
        x: ``[N, H, A]``, before the step.
        velocity: likewise.
        t: time before the step, which broadcasts against ``x``.
        dt: its length.
        level: how strong the noise is, which broadcasts against ``x``.
        learned: ``[N, H, A]``, standard deviation for ``reinflow``.
    """
    if kind == "reinflow":
        assert learned is not None
        return euler(x, velocity, dt), learned
    noise, data, after = x - velocity * t, x + velocity * (1 - t), t + dt
    if kind == "flow_cps":
        angle = level * (math.pi / 2)
        std = (1 - after) * angle.sin()
        return noise * ((1 - after) * angle.cos()) + data * after, std.expand_as(x)
    rate = level.square() / t.clamp_min(dt)  # the variance a unit of time, over 1 - t
    mean = noise * (1 - after - rate * (dt / 2)) + data * after
    return mean, (rate * (1 - t) * dt).sqrt().expand_as(x)


def learned_std(raw: Tensor) -> Tensor:
    """Return the deviation of a noise network's output: within its ends, evenly in the logarithm."""
    share = (raw.tanh() + 1) / 2
    return LEAST_STD * (GREATEST_STD / LEAST_STD) ** share


def level_at(version: int, first: float, final: float | None, steps: int) -> float:
    """Return the noise level of the weights of training step ``version``."""
    if final is None:
        return first
    return first + (final - first) * min(max(version, 0) / steps, 1.0)
