"""Levels, masks and denominators: at which level a number lives, and by what a sum is divided.

Letters: U trajectories, T chunk steps, S samples (chunks), H actions in a chunk, K log-prob entries an action. At ratio
level ``chunk`` an element-wise term has shape ``[S, 1, 1]``, at ``action`` ``[S, H, 1]``, at ``token`` ``[S, H, K]``;
``h`` and ``k`` stand for these widths. The number of dimensions never changes, so nothing broadcasts by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlvla.rl.options import Aggregation
    from rlvla.specs import CreditLevel, RatioLevel


def at_least_fp32(x: Tensor) -> Tensor:
    """Return fp32 or better: bf16 steps by 0.06 at a log-prob of -8, so a ratio could be off by 3 %."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def reduce_to_level(x_SHK: Tensor, valid_SH: Tensor, level: RatioLevel) -> Tensor:
    """Sum log-probs or entropies over the valid actions of a level's element; entries that are not valid count as 0.

    Returns:
        ``[S, h, k]``, of the unit of ``x`` (nats).
    """
    x_SHK = torch.where(valid_SH[..., None], at_least_fp32(x_SHK), 0.0)
    if level == "token":
        return x_SHK
    x_SH1 = x_SHK.sum(-1, keepdim=True)
    return x_SH1 if level == "action" else x_SH1.sum(-2, keepdim=True)


def mask_at_level(valid_SH: Tensor, entries: int, level: RatioLevel) -> Tensor:
    """Return bool ``[S, h, k]``: this element holds at least one valid action.

    Args:
        valid_SH: bool, this action was executed while its episode ran.
        entries: K.
        level: of the elements.
    """
    if level == "chunk":
        return valid_SH.any(-1)[..., None, None]
    return valid_SH[..., None].expand(*valid_SH.shape, entries if level == "token" else 1)


def credit_mask(valid_SH: Tensor, level: CreditLevel) -> Tensor:
    """Return bool ``[S, 1]`` or ``[S, H]``: where reward, value and advantage live."""
    return valid_SH.any(-1, keepdim=True) if level == "chunk" else valid_SH


def spread_to(credit_Sc: Tensor, like_Shk: Tensor) -> Tensor:
    """Expand an advantage, ``[S, 1]`` or ``[S, H]``, to the elements of a ratio level, ``[S, h, k]``.

    Raises:
        RuntimeError: ``[S, H]`` at ratio level chunk, which has no meaning.
    """
    return credit_Sc[..., None].expand(like_Shk.shape)


def units(valid_UTH: Tensor, level: RatioLevel) -> Tensor:
    """Return int64 ``[U]``: n_b, the valid chunks (ratio level chunk) or actions (action, token) of each trajectory."""
    return (valid_UTH.any(-1) if level == "chunk" else valid_UTH).flatten(1).sum(1)


def element_weight(units_U: Tensor, entries: int, aggregation: Aggregation) -> Tensor:
    """Return fp32 ``[U]``: what each element of a trajectory is multiplied by before the sum.

    ``1 / (n_b * k)`` for ``trajectory-mean`` (0 where nothing is valid), 1 otherwise; n_b is of the *whole* trajectory,
    since a minibatch holds parts of them.

    Args:
        units_U: n_b of :func:`units`.
        entries: k, elements in a unit (K at ratio level token, else 1).
        aggregation: by name.
    """
    if aggregation != "trajectory-mean":
        return torch.ones(units_U.shape, device=units_U.device)
    return torch.where(units_U > 0, 1.0 / (units_U.clamp(min=1) * entries).float(), 0.0)


def denominator(
    mask_Shk: Tensor,
    share_S: Tensor,
    sample_weight_S: Tensor,
    aggregation: Aggregation,
    constant_length: int | None = None,
) -> Tensor:
    """Return by what the sum of ``weight * mask * term`` of one optimizer step is divided; sums over samples, so that it
    adds up over parts and ranks.

    =================== ========================================= =====================================
    ``element-mean``    number of elements                        a trajectory weighs by its length
    ``trajectory-mean`` number of trajectories                    all trajectories weigh the same
    ``trajectory-sum``  number of trajectories                    a trajectory weighs by its length
    ``constant``        number of trajectories x length x k       so too; no denominator that varies
    =================== ========================================= =====================================

    An optimizer step sees a part of the collected batch, so its number of trajectories is the sum over its samples of
    ``share`` = trajectories / samples of the collected batch. Weights for staleness are renormalised (they are in the
    denominator too) except under ``constant``.

    Args:
        mask_Shk: of :func:`mask_at_level`.
        share_S: trajectories that a sample stands for.
        sample_weight_S: staleness weight of each sample, 1 where there is none.
        aggregation: by name.
        constant_length: length of a trajectory, in units, under ``constant``.
    """
    weight_S = sample_weight_S.double()
    if aggregation == "element-mean":
        return (mask_Shk.flatten(1).sum(1) * weight_S).sum()
    if aggregation == "constant":
        assert constant_length is not None, "describe() refuses a missing length"
        return share_S.double().sum() * constant_length * mask_Shk.shape[-1]
    return (share_S.double() * weight_S).sum()


def divide(total: Tensor, by: Tensor) -> Tensor:
    """Return ``total / by``, and 0 where nothing was counted."""
    return torch.where(by > 0, total / torch.where(by > 0, by, 1.0).to(total.dtype), 0.0)
