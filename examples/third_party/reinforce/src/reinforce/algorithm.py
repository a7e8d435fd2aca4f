"""Discounted returns of windows, and the log-probability of each chunk weighted by them.

Letters: U trajectories, T chunk steps, S samples (chunks that were played), H actions in a chunk, K log-prob entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from torch import Tensor

from reinforce import ReinforceConfig, describe
from rlvla.algorithm import Algorithm
from rlvla.batch import Loss

if TYPE_CHECKING:
    from rlvla.batch import Evaluation, Trajectories


class Reinforce(Algorithm):
    """Minimises ``-(return - mean return) * log-probability - weight * entropy``, a sum over chunks by their number."""

    def __init__(self, config: ReinforceConfig) -> None:
        self.config = config
        self.spec = describe(config)

    def prepare(self, trajectories: Trajectories) -> TensorDict:
        exists_UT = trajectories.exists
        return_UT = returns(
            (trajectories.reward * trajectories.valid).sum(-1),
            (trajectories.terminated | trajectories.truncated).any(-1),
            self.config.discount,
        )
        return_S = return_UT[exists_UT]
        columns = {"advantage": return_S - return_S.mean(), "valid": trajectories.valid[exists_UT]}
        return TensorDict(columns, batch_size=return_S.shape)

    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        return {"chunks": torch.tensor(float(len(batch)), device=batch["advantage"].device)}

    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        valid_SH1 = batch["valid"][..., None]  # actions after the end do not count
        logp_S = (evaluation.logp * valid_SH1).sum((-2, -1))
        entropy_S = (evaluation.entropy * valid_SH1).sum((-2, -1))
        gain_S = batch["advantage"] * logp_S + self.config.entropy_weight * entropy_S
        metrics = {"logp": logp_S, "entropy": entropy_S}
        return Loss(
            -gain_S.sum() / denominators["chunks"],
            metrics={name: (value.detach().sum(), denominators["chunks"]) for name, value in metrics.items()},
        )


def returns(reward_UT: Tensor, ended_UT: Tensor, discount: float) -> Tensor:
    """Return the discounted sum of the rewards from each chunk to the end of its episode or window."""
    return_UT = torch.zeros_like(reward_UT)
    ahead_U = torch.zeros_like(reward_UT[:, 0])
    for step in reversed(range(reward_UT.shape[1])):
        ahead_U = reward_UT[:, step] + discount * torch.where(ended_UT[:, step], 0.0, ahead_U)
        return_UT[:, step] = ahead_U
    return return_UT
