"""Advantages: credit arrays, generalised advantage estimation, episode scores, group baselines.

Letters: U trajectories, T chunk steps, H actions in a chunk, N time steps at the credit level (T chunks, or T * H actions
in the order they are played), K log-prob entries an action. Nothing that is not valid is ever looked at: it is replaced,
never multiplied by zero, so that not even NaN gets through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rlvla.rl.moments import Moments
from rlvla.rl.reductions import at_least_fp32

if TYPE_CHECKING:
    from rlvla.batch import Trajectories
    from rlvla.specs import CreditLevel

Bootstrap = Literal["truncation", "always", "never"]
Baseline = Literal["std", "mean", "rloo"]


@dataclass(frozen=True)
class Credit:
    """What happened, on the time axis of a credit level; entries that are not valid are 0 or false."""

    reward_UN: Tensor
    terminated_UN: Tensor
    truncated_UN: Tensor
    """Never together with ``terminated``, which wins."""
    valid_UN: Tensor


def credit_arrays(trajectories: Trajectories, reward_UTH: Tensor, level: CreditLevel) -> Credit:
    """Lay rewards and flags out in time: [U, T, H] to [U, T * H], or summed (any) over a chunk's valid actions to [U, T].

    Mask first, then reduce: what a simulator reports after an episode's end must not cancel its success.
    """
    valid_UTH = trajectories.valid & trajectories.exists[..., None]
    reward_UTH = torch.where(valid_UTH, at_least_fp32(reward_UTH), 0.0)
    terminated_UTH = trajectories.terminated & valid_UTH
    truncated_UTH = trajectories.truncated & valid_UTH & ~terminated_UTH
    if level == "action":
        return Credit(*(x_UTH.flatten(1) for x_UTH in (reward_UTH, terminated_UTH, truncated_UTH, valid_UTH)))
    terminated_UT = terminated_UTH.any(-1)
    return Credit(reward_UTH.sum(-1), terminated_UT, truncated_UTH.any(-1) & ~terminated_UT, valid_UTH.any(-1))


def end_values(trajectories: Trajectories, level: CreditLevel) -> tuple[Tensor, Tensor]:
    """Return ``final_value`` as ``[U, N]`` (each action of a chunk sees its chunk's), and the last existing chunk's
    ``[U]``, which follows a window that ends without an episode's end."""
    final_UT = at_least_fp32(trajectories.final_value)
    last_U1 = (trajectories.exists.sum(1, keepdim=True) - 1).clamp(min=0)
    after_U = final_UT.gather(1, last_U1)[:, 0]
    if level == "chunk":
        return final_UT, after_U
    return final_UT[..., None].expand(trajectories.valid.shape).flatten(1), after_U


def gae(
    credit: Credit,
    value_UN: Tensor,
    final_value_UN: Tensor,
    after_U: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    bootstrap: Bootstrap = "truncation",
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns ``[U, N]`` (reward units), 0 where not valid.

    Over the valid steps t of a trajectory, last to first::

        b     = value of the next valid step              within an episode
              = final_value_t                             truncated, bootstrap truncation or always
              = final_value_t                             terminated, bootstrap always
              = 0                                         at any other end
        delta = r_t + gamma * b - V_t
        A_t   = delta + gamma * lambda * A_next           (A_next = 0 after an episode's end)
        R_t   = A_t + V_t

    Steps that are not valid are stepped over: after a chunk's last executed action comes the next chunk's first.
    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16; truncation: Pardo et al. 2018, arXiv:1712.00378.

    Args:
        credit: rewards and flags.
        value_UN: V of each step, from the observation that its chunk was chosen on.
        final_value_UN: V of the observation after each step's chunk, used where an episode ends.
        after_U: V of the observation after the window, used where it ends within an episode.
        gamma: discount of a step (a chunk or an action, by credit level).
        gae_lambda: weight of longer returns; 1 is the full return, 0 one step.
        bootstrap: which ends are followed by a value.
    """
    end_UN = torch.zeros_like(final_value_UN)
    if bootstrap != "never":
        end_UN = torch.where(credit.truncated_UN, final_value_UN, end_UN)
    if bootstrap == "always":
        end_UN = torch.where(credit.terminated_UN, final_value_UN, end_UN)
    done_UN = credit.terminated_UN | credit.truncated_UN
    value_UN = torch.where(credit.valid_UN, at_least_fp32(value_UN), 0.0)
    advantage_UN = torch.zeros_like(value_UN)
    next_value_U, next_advantage_U = after_U, torch.zeros_like(after_U)
    for t in range(value_UN.shape[1] - 1, -1, -1):
        done_U, valid_U = done_UN[:, t], credit.valid_UN[:, t]
        follows_U = torch.where(done_U, end_UN[:, t], next_value_U)
        delta_U = credit.reward_UN[:, t] + gamma * follows_U - value_UN[:, t]
        this_U = delta_U + gamma * gae_lambda * torch.where(done_U, 0.0, next_advantage_U)
        advantage_UN[:, t] = torch.where(valid_U, this_U, 0.0)
        next_advantage_U = torch.where(valid_U, this_U, next_advantage_U)
        next_value_U = torch.where(valid_U, value_UN[:, t], next_value_U)
    return advantage_UN, advantage_UN + value_UN


def normalise(x: Tensor, mask: Tensor, moments: Moments, *, unbiased: bool = True, eps: float = 1e-5) -> Tensor:
    """Return ``(x - mean) / (sd + eps)`` where ``mask``, else 0; only centred where fewer than 2 entries were counted.

    Args:
        x: advantages.
        mask: of the shape of ``x``.
        moments: of the valid entries of the whole collected batch, over all ranks.
        unbiased: the variance divides by count - 1.
        eps: added to the standard deviation.
    """
    scale = torch.where(moments.count < 2, 1.0, moments.std(unbiased) + eps)
    return torch.where(mask, (x.double() - moments.mean) / scale, 0.0).to(x.dtype)


def first_episode(trajectories: Trajectories) -> Tensor:
    """Return bool ``[U, T, H]``: valid and of the trajectory's first episode; its last action counts."""
    valid_UTH = trajectories.valid & trajectories.exists[..., None]
    done_UN = ((trajectories.terminated | trajectories.truncated) & valid_UTH).flatten(1)
    before_UN = done_UN.cumsum(1) - done_UN.long()
    return valid_UTH & (before_UN == 0).view(valid_UTH.shape)


def scores(reward_UTH: Tensor, episode_UTH: Tensor) -> Tensor:
    """Return float64 ``[U]``: the undiscounted return (reward units) of the actions in ``episode_UTH``."""
    return torch.where(episode_UTH, reward_UTH.double(), 0.0).flatten(1).sum(1)


@dataclass(frozen=True)
class Groups:
    """Statistics of each trajectory's group, over its valid members; 0 where there are none. All ``[U]``."""

    members_U: Tensor
    """int64: m."""
    mean_U: Tensor
    std_U: Tensor
    flat_U: Tensor
    """bool: all scores are equal (so too with one member)."""
    index_U: Tensor
    """int64: number of the group, counted from 0."""


def groups(score_U: Tensor, group_U: Tensor, member_U: Tensor, *, unbiased: bool = True) -> Groups:
    """Take statistics over trajectories with equal ``group`` number, wherever they stand.

    Args:
        score_U: returns; those of trajectories that are not members are never looked at.
        group_U: int64.
        member_U: bool, this trajectory counts.
        unbiased: the variance divides by m - 1.
    """
    score_U = torch.where(member_U, score_U.double(), 0.0)
    _, index_U = torch.unique(group_U, return_inverse=True)
    number = int(index_U.max()) + 1 if len(index_U) else 0
    zeros = score_U.new_zeros(number)
    count = zeros.index_add(0, index_U, member_U.double())
    mean_U = (zeros.index_add(0, index_U, score_U) / count.clamp(min=1))[index_U]
    square_U = torch.where(member_U, score_U - mean_U, 0.0).square()
    variance = zeros.index_add(0, index_U, square_U) / (count - int(unbiased)).clamp(min=1)
    high, low = (
        (zeros + sign * torch.inf).scatter_reduce(0, index_U, torch.where(member_U, score_U, sign * torch.inf), how)[
            index_U
        ]
        for sign, how in ((-1, "amax"), (1, "amin"))
    )
    return Groups(count.long()[index_U], mean_U, variance.sqrt()[index_U], high <= low, index_U)


def group_advantages(score_U: Tensor, member_U: Tensor, stats: Groups, baseline: Baseline, eps: float = 1e-6) -> Tensor:
    """Return float64 ``[U]``: each member's score against its group; exactly 0 for others and for groups that say nothing.

    * ``std``: ``(s - mean) / (sd + eps)``. Shao et al. 2024, arXiv:2402.03300, sec. 4.1.
    * ``mean``: ``s - mean``. Liu et al. 2025, arXiv:2503.20783.
    * ``rloo``: ``s - mean of the other m - 1`` = ``m / (m - 1) * (s - mean)``. Ahmadian et al. 2024, arXiv:2402.14740.

    A group whose scores are all equal gets zeros by comparison: rounding in the mean, divided by eps, is not zero.
    """
    centred_U = score_U.double() - stats.mean_U
    if baseline == "std":
        centred_U = centred_U / (stats.std_U + eps)
    elif baseline == "rloo":
        centred_U = centred_U * stats.members_U / (stats.members_U - 1).clamp(min=1)
    return torch.where(member_U & ~stats.flat_U, centred_U, 0.0)


def reward_to_go(reward_UN: Tensor, valid_UN: Tensor) -> Tensor:
    """Return ``[U, N]``: the undiscounted sum of valid rewards from each valid step on; 0 where not valid."""
    reward_UN = torch.where(valid_UN, reward_UN, 0.0)
    return torch.where(valid_UN, reward_UN.flip(1).cumsum(1).flip(1), 0.0)
