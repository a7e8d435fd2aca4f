"""PPO for action chunks. Source: Schulman et al. 2017, arXiv:1707.06347; chunk and action levels: arXiv:2510.06710.

Letters: U windows, T chunk steps, S samples (chunks), H actions in a chunk; c values a chunk (1, or H at credit level
action), N = T * c steps of a window's time axis.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla.algorithm import Algorithm
from rlvla.batch import Evaluation, Loss, Trajectories
from rlvla.rl import advantages, losses, objective, reductions
from rlvla.rl.moments import Moments
from rlvla_algo_ppo import PpoConfig, describe


class Ppo(Algorithm):
    """Generalised advantages of windows, a clipped policy term and a value term."""

    def __init__(self, config: PpoConfig) -> None:
        self.spec = describe(config)
        self.config = config
        self.policy = objective.PolicyObjective(config)
        self._warming_up = config.critic_warmup > 0

    @torch.no_grad()
    def prepare(self, trajectories: Trajectories) -> TensorDict:
        """Estimate advantages and returns. Statistics are of the whole batch, over all ranks, taken once."""
        config = self.config
        objective.check(trajectories)
        shape_UTc = self._value_shape(trajectories)
        credit = advantages.credit_arrays(trajectories, objective.rewards(trajectories, config), config.credit_level)
        value_UN = reductions.at_least_fp32(trajectories.value).flatten(1)
        final_UN, after_U = advantages.end_values(trajectories, config.credit_level)
        advantage_UN, return_UN = advantages.gae(
            credit,
            value_UN,
            final_UN,
            after_U,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            bootstrap=config.bootstrap,
        )
        stats = {
            "advantage": Moments.of(advantage_UN, credit.valid_UN).over_ranks(),
            "return": Moments.of(return_UN, credit.valid_UN).over_ranks(),
            "value_error": Moments.of(return_UN - value_UN, credit.valid_UN).over_ranks(),
        }
        if config.normalise_advantages:
            advantage_UN = advantages.normalise(advantage_UN, credit.valid_UN, stats["advantage"])
        valid_UTH = trajectories.valid & trajectories.exists[..., None]
        columns = self.policy.columns(trajectories, advantage_UN.view(shape_UTc), valid_UTH)
        columns["return"] = return_UN.view(shape_UTc)
        columns["old_value"] = value_UN.view(shape_UTc)
        columns["return_mean"], columns["value_error_mean"] = (
            stats[name].mean.float().expand(trajectories.exists.shape) for name in ("return", "value_error")
        )
        report = {
            f"{name}_{what}": objective.constant(number, trajectories.exists)
            for name in ("advantage", "return")
            for what, number in (("mean", stats[name].mean), ("std", stats[name].std()))
        }
        return objective.rows(trajectories, columns, report)

    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        """Count the elements of the policy term and the entries of the value term."""
        value_count = reductions.credit_mask(batch["valid"], self.config.credit_level).sum().double()
        return {**self.policy.denominators(batch), "value": value_count}

    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        """Return ``policy + value_weight * value``, each a sum over its denominator; the value alone in warm-up."""
        config = self.config
        loss = self.policy.loss(batch, evaluation, denominators)
        mask_Sc = reductions.credit_mask(batch["valid"], config.credit_level)
        value_Sc = torch.where(mask_Sc, reductions.at_least_fp32(evaluation.value), 0.0)
        old_Sc, target_Sc = (torch.where(mask_Sc, batch[name], 0.0) for name in ("old_value", "return"))
        term_Sc = losses.value_term(value_Sc, old_Sc, target_Sc, clip=config.value_clip, huber_delta=config.huber_delta)
        value_sum = torch.where(mask_Sc, term_Sc, 0.0).double().sum()
        value_loss = config.value_weight * reductions.divide(value_sum, denominators["value"]).float()
        loss.total = value_loss if self._warming_up else loss.total + value_loss
        with torch.no_grad():
            count = mask_Sc.sum().double()
            loss.metrics["value_loss"] = (value_sum.detach(), count)
            if config.value_clip is not None:
                loss.metrics["value_clip_fraction"] = objective.masked(
                    (value_Sc - old_Sc).abs() > config.value_clip, mask_Sc
                )
            loss.metrics["explained_variance"] = self._explained_variance(batch, target_Sc, value_Sc, mask_Sc)
        return loss

    def stop(self, metrics: Mapping[str, float]) -> bool:
        """Stop once the pass just done moved the policy further than ``target_kl``."""
        return self.config.target_kl is not None and metrics.get("approx_kl", 0.0) > self.config.target_kl

    def progress(self, step: int, steps: int) -> None:
        """Note the version of the weights, and whether the policy learns yet."""
        self.policy.version = step
        self._warming_up = step < self.config.critic_warmup

    def _value_shape(self, trajectories: Trajectories) -> tuple[int, int, int]:
        *batch_UT, actions = trajectories.valid.shape
        wanted = (*batch_UT, 1 if self.config.credit_level == "chunk" else actions)
        if tuple(trajectories.value.shape) != wanted:
            raise ValueError(
                f"trajectories.value: got {tuple(trajectories.value.shape)}, wanted {wanted}: credit level "
                f"{self.config.credit_level!r} needs a value head of width {wanted[-1]}"
            )
        return wanted  # type: ignore[return-value]

    @staticmethod
    def _explained_variance(
        batch: TensorDict, target_Sc: Tensor, value_Sc: Tensor, mask_Sc: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return sums whose quotient is ``1 - Var(R - V) / Var(R)``.

        Deviations are from the collected batch's means, so that the sums add up over parts; once values have moved, the
        mean of R - V has too, and the quotient is lower by the square of that shift over Var(R).
        """
        return_dev = (target_Sc - batch["return_mean"][:, None]).double().square()
        error_dev = (target_Sc - value_Sc - batch["value_error_mean"][:, None]).double().square()
        return tuple(torch.where(mask_Sc, x, 0.0).sum() for x in (return_dev - error_dev, return_dev))  # type: ignore[return-value]
