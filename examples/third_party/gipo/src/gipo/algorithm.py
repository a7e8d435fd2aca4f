"""GIPO: ``-A w rho`` with ``w = exp(-(log rho)^2 / (2 width^2))``, which carries no gradient. Source: arXiv:2603.03955.

``w rho`` has its maximum ``exp(width^2 / 2)`` at ``log rho = width^2``, so no ratio dominates; and it is never zero, so no
sample stops teaching, as one beyond PPO's clip does.

Letters: U windows, T chunk steps, S samples (chunks that were played), H actions in a chunk, K log-prob entries an action;
``h, k`` the widths of the ratio level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from torch import Tensor

from gipo import GipoConfig, describe
from rlvla.algorithm import Algorithm
from rlvla.batch import Loss
from rlvla.rl import advantages, reductions
from rlvla.rl.moments import Moments

if TYPE_CHECKING:
    from rlvla.batch import Evaluation, Trajectories


class Gipo(Algorithm):
    """Generalised advantages, a Gaussian-weighted policy term, and a value term."""

    def __init__(self, config: GipoConfig) -> None:
        self.config = config
        self.spec = describe(config)

    @torch.no_grad()
    def prepare(self, trajectories: Trajectories) -> TensorDict:
        """Return advantage, return and mask of each chunk, and its log-probs under the policy that acted."""
        credit = advantages.credit_arrays(trajectories, trajectories.reward, "chunk")
        final_UT, after_U = advantages.end_values(trajectories, "chunk")
        advantage_UT, return_UT = advantages.gae(
            credit,
            trajectories.value.flatten(1),
            final_UT,
            after_U,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        moments = Moments.of(advantage_UT, credit.valid_UN).over_ranks()
        advantage_UT = advantages.normalise(advantage_UT, credit.valid_UN, moments)
        exists_UT = trajectories.exists
        columns = {
            "advantage": advantage_UT[..., None],
            "return": return_UT[..., None],
            "valid": trajectories.valid,
            "logp": trajectories.logp,
        }
        rows = {name: column[exists_UT] for name, column in columns.items()}
        return TensorDict(rows, batch_size=[int(exists_UT.sum())])

    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        """Count the elements of the policy term, and the chunks."""
        return {"elements": self._mask(batch).sum().double(), "chunks": batch["valid"].any(1).sum().double()}

    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        """Return ``sum(policy) / elements + value_weight * sum(value) / chunks`` of this part."""
        valid_SH, level = batch["valid"], self.config.ratio_level
        mask_Shk = self._mask(batch)
        log_ratio_Shk = reductions.reduce_to_level(evaluation.logp, valid_SH, level) - reductions.reduce_to_level(
            batch["logp"], valid_SH, level
        )
        advantage_Shk = reductions.spread_to(batch["advantage"], mask_Shk)
        policy_Shk = gaussian_term(log_ratio_Shk, advantage_Shk, self.config.width)
        policy = torch.where(mask_Shk, policy_Shk, 0.0).double().sum()

        mask_S1 = valid_SH.any(1, keepdim=True)
        error_S1 = torch.where(mask_S1, evaluation.value - batch["return"], 0.0)
        value = error_S1.double().square().sum() / 2

        total = reductions.divide(policy, denominators["elements"])
        total = total + self.config.value_weight * reductions.divide(value, denominators["chunks"])
        with torch.no_grad():
            faded = torch.where(mask_Shk, 1 - weight(log_ratio_Shk, self.config.width), 0.0).double().sum()
            elements, chunks = mask_Shk.sum().double(), mask_S1.sum().double()
        return Loss(
            total.float(),
            metrics={
                "policy_loss": (policy.detach(), elements),
                "value_loss": (value.detach(), chunks),
                "faded_fraction": (faded, elements),
            },
        )

    def _mask(self, batch: TensorDict) -> Tensor:
        return reductions.mask_at_level(batch["valid"], batch["logp"].shape[-1], self.config.ratio_level)


def gaussian_term(log_ratio: Tensor, advantage: Tensor, width: float) -> Tensor:
    """Return ``-A w rho``, element by element."""
    return -advantage * weight(log_ratio, width) * log_ratio.exp()


def weight(log_ratio: Tensor, width: float) -> Tensor:
    """Return ``exp(-(log rho)^2 / (2 width^2))`` without gradient."""
    return (-log_ratio.detach().square() / (2 * width**2)).exp()
