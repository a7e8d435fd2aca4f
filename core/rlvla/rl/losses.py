"""Element-wise loss terms. Each takes and returns tensors of one shape, the ratio level's ``[S, h, k]`` or the credit
level's ``[S, c]``, and knows nothing of masks: entries that do not count are put to 0 before and left out after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlvla.rl.options import KlEstimator


class Clip(TypedDict):
    """Arguments that :func:`clipped_policy_term` and :func:`has_gradient` share."""

    clip_low: float
    clip_high: float
    dual_clip: float | None


def clipped_policy_term(
    log_ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Return ``max(-A rho, -A clip(rho, 1 - low, 1 + high))`` with ``rho = exp(log_ratio)``.

    With ``dual_clip`` c, elements with A < 0 lose at most ``c |A|``, so that a huge ratio cannot dominate.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5.
    """
    ratio = log_ratio.exp()
    term = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return term
    return torch.where(advantage < 0, torch.minimum(term, -dual_clip * advantage), term)


def has_gradient(
    log_ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Return bool: the clipped term still pushes this element."""
    ratio = log_ratio.exp()
    up = (advantage > 0) & (ratio <= 1 + clip_high)
    down = (advantage < 0) & (ratio >= 1 - clip_low) & (ratio <= (torch.inf if dual_clip is None else dual_clip))
    return up | down


def gaussian_policy_term(log_ratio: Tensor, advantage: Tensor, width: float) -> Tensor:
    """Return ``-A w rho`` with ``w = exp(-log_ratio^2 / (2 width^2))`` detached: no dead zone, and ``w rho`` stays below
    ``exp(width^2 / 2)``. Source: arXiv:2603.03955 (GIPO)."""
    weight = (-log_ratio.detach().square() / (2 * width**2)).exp()
    return -advantage * weight * log_ratio.exp()


def value_term(
    value: Tensor, old_value: Tensor, target: Tensor, *, clip: float | None, huber_delta: float | None
) -> Tensor:
    """Return ``max(huber(R - V), huber(R - V_clip))`` with ``V_clip = V_old + clip(V - V_old, +-clip)`` (reward units).

    ``clip=None``: no clipped part; ``huber_delta=None``: half the squared error. Source of the clip: OpenAI baselines,
    ``ppo2/model.py``.
    """
    term = huber(target - value, huber_delta)
    if clip is None:
        return term
    return torch.maximum(term, huber(target - old_value - (value - old_value).clamp(-clip, clip), huber_delta))


def huber(error: Tensor, delta: float | None) -> Tensor:
    """Return ``e^2 / 2`` for ``|e| < delta``, else ``delta (|e| - delta / 2)``; ``delta=None``: always the first."""
    square = error.square() / 2
    if delta is None:
        return square
    size = error.abs()
    return torch.where(size < delta, square, delta * (size - delta / 2))


def kl_estimate(logp: Tensor, reference_logp: Tensor, estimator: KlEstimator) -> Tensor:
    """Return an estimate of KL(policy || reference) from an action of the policy, with ``d = log ref - log pi``.

    ======= ===================== ======================================================================
    ``k1``  ``-d``                unbiased; as a loss its expected gradient is zero
    ``abs`` ``|d|``               not a KL gradient
    ``k2``  ``d^2 / 2``           biased; as a loss its expected gradient is that of this KL
    ``k3``  ``exp(d) - d - 1``    unbiased, never negative; as a loss, the gradient of KL(reference || policy)
    ======= ===================== ======================================================================

    Source: Schulman 2020, "Approximating KL divergence". ``d`` is cut to +-20 in ``k3``.
    """
    d = reference_logp - logp
    if estimator == "k1":
        return -d
    if estimator == "abs":
        return d.abs()
    if estimator == "k2":
        return d.square() / 2
    d = d.clamp(-20, 20)
    return d.exp() - d - 1


def interpolated(logp: Tensor, behaviour_logp: Tensor, lag: Tensor) -> Tensor:
    """Return proximal log-probs ``log b + alpha (log pi - log b)``, detached, with ``alpha = lag / (lag + 1)``.

    Fresh data is centred on the policy that acted, older data ever nearer to the present one: 0, 1/2, 2/3 at lag 0, 1, 2.
    """
    alpha = (lag / (lag + 1)).to(logp.dtype)
    return (behaviour_logp + alpha * (logp - behaviour_logp)).detach()


def behaviour_weight(
    proximal_logp: Tensor, behaviour_logp: Tensor, *, highest: float | None, over: Literal["truncate", "mask"]
) -> Tensor:
    """Return ``w = proximal / behaviour`` without gradient; above ``highest`` it is cut to it, or 0 (``mask``).

    Source: Hilton, Cobbe, Schulman 2021, arXiv:2110.00641, decoupled objective; bounds: Fu et al. 2025, arXiv:2505.24298.
    """
    weight = (proximal_logp - behaviour_logp).detach().clamp(max=20).exp()
    if highest is None:
        return weight
    return weight.clamp(max=highest) if over == "truncate" else torch.where(weight <= highest, weight, 0.0)


def staleness_weight(lag: Tensor, *, free: int, decay: float) -> Tensor:
    """Return fp32 ``decay ** max(0, lag - free)`` of a lag in versions."""
    return torch.as_tensor(decay, dtype=torch.float32, device=lag.device) ** (lag - free).clamp(min=0)
