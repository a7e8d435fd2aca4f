"""Behaviour cloning: the mean of ``-log prob`` of demonstrated actions (Pomerleau 1991).

Letters: S samples (chunks), H actions in a chunk, K log-prob entries an action.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla.algorithm import Algorithm
from rlvla.batch import Evaluation, Loss, Trajectories
from rlvla.rl import reductions
from rlvla.rl.objective import masked
from rlvla_algo_bc import BcConfig, describe


class BehaviourCloning(Algorithm):
    """Every valid log-prob entry counts the same, whatever chunk it is of."""

    def __init__(self, config: BcConfig) -> None:
        self.spec = describe(config)
        self.config = config

    def prepare(self, trajectories: Trajectories) -> TensorDict:
        """Keep which actions the demonstration still had, and how many log-prob entries each has."""
        valid_SH = trajectories.valid[trajectories.exists]
        entries_S = torch.full((len(valid_SH),), trajectories.logp.shape[-1])
        return TensorDict({"valid": valid_SH, "entries": entries_S}, batch_size=[len(valid_SH)])

    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        """Count valid log-prob entries."""
        return {"entries": (batch["valid"].sum(1) * batch["entries"]).sum().double()}

    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        """Return ``sum(-log prob - entropy_weight * entropy) / entries`` over valid entries."""
        mask_SHK = reductions.mask_at_level(batch["valid"], evaluation.logp.shape[-1], "token")
        nll_SHK = -reductions.at_least_fp32(evaluation.logp)
        term_SHK = nll_SHK - self.config.entropy_weight * evaluation.entropy if self.config.entropy_weight else nll_SHK
        total = torch.where(mask_SHK, term_SHK, 0.0).double().sum()
        return Loss(
            reductions.divide(total, denominators["entries"]).float(),
            metrics={"nll": masked(nll_SHK, mask_SHK), "entropy": masked(evaluation.entropy, mask_SHK)},
        )
