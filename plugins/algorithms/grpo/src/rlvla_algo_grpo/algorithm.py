"""GRPO for action chunks. Source: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.

A group is the rollouts of one task from one initial state; only a rollout's first episode counts. The episode's score is
the undiscounted sum of its rewards, and every step of it has the same advantage.

Letters: U rollouts, T chunk steps, S samples (chunks), H actions in a chunk; c is 1 at ratio level chunk, else H.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla.algorithm import Algorithm
from rlvla.batch import Evaluation, Loss, Trajectories
from rlvla.receipts import UnitReport
from rlvla.rl import advantages, objective, reductions
from rlvla.rl.moments import Moments
from rlvla_algo_grpo import GrpoConfig, describe


class Grpo(Algorithm):
    """Scores against the group, and a clipped policy term."""

    def __init__(self, config: GrpoConfig) -> None:
        self.spec = describe(config)
        self.config = config
        self.policy = objective.PolicyObjective(config)

    @torch.no_grad()
    def prepare(self, trajectories: Trajectories) -> TensorDict:
        """Score each rollout against its group, whose members are all on this rank.

        Rollouts without a finite score take part in nothing.
        """
        config = self.config
        objective.check(trajectories)
        exists_UT = trajectories.exists
        episode_UTH = advantages.first_episode(trajectories)
        reward_UTH = objective.rewards(trajectories, config)
        score_U = advantages.scores(reward_UTH, episode_UTH)
        member_U = score_U.isfinite() & episode_UTH.flatten(1).any(1)
        group_U = trajectories.group[:, 0]
        stats = advantages.groups(score_U, group_U, member_U, unbiased=config.unbiased_std)
        success_U = (trajectories.success & episode_UTH.any(-1)).any(1)
        rate_U = advantages.groups(success_U.double(), group_U, member_U).mean_U
        kept_U = self._wanted(rate_U)
        valid_UTH = episode_UTH & member_U[:, None, None]
        if config.filter != "mask":
            valid_UTH = valid_UTH & kept_U[:, None, None]
        advantage_UTc = self._advantage(score_U, reward_UTH, valid_UTH, member_U, stats)
        columns = self.policy.columns(trajectories, advantage_UTc, valid_UTH)
        columns["element_weight"] = columns["element_weight"] * kept_U[:, None]
        moments = Moments.of(advantage_UTc, self._steps(valid_UTH)).over_ranks()
        report = {
            "advantage_mean": objective.constant(moments.mean, exists_UT),
            "advantage_std": objective.constant(moments.std(), exists_UT),
            "score": objective.per_trajectory(torch.where(member_U, score_U, 0.0), exists_UT),
            "invalid_members": objective.per_trajectory(~member_U, exists_UT),
            "group_success": objective.per_trajectory(rate_U, exists_UT, stats.index_U),
            "group_zero_spread": objective.per_trajectory(stats.flat_U, exists_UT, stats.index_U),
            "group_filtered": objective.per_trajectory(~kept_U, exists_UT, stats.index_U),
        }
        return objective.rows(trajectories, columns, report)

    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        """Count elements or trajectories, by ``aggregation``."""
        return self.policy.denominators(batch)

    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        """Return the policy part, which is all there is."""
        return self.policy.loss(batch, evaluation, denominators)

    def keep(self, report: UnitReport) -> bool:
        """Refuse a group whose success rate is out of bounds, so that another one takes its place."""
        if self.config.filter != "refill" or not report.members:
            return True
        rate = sum(member.success for member in report.members) / len(report.members)
        return self.config.success_low <= rate <= self.config.success_high

    def stop(self, metrics: Mapping[str, float]) -> bool:
        """Stop once the pass just done moved the policy further than ``target_kl``."""
        return self.config.target_kl is not None and metrics.get("approx_kl", 0.0) > self.config.target_kl

    def progress(self, step: int, steps: int) -> None:
        """Note the version of the weights."""
        self.policy.version = step

    def _wanted(self, rate_U: Tensor) -> Tensor:
        return (rate_U >= self.config.success_low) & (rate_U <= self.config.success_high)

    def _steps(self, valid_UTH: Tensor) -> Tensor:
        """Return bool ``[U, T, c]``: the steps that have an advantage."""
        return reductions.credit_mask(valid_UTH, "chunk" if self.config.ratio_level == "chunk" else "action")

    def _advantage(
        self, score_U: Tensor, reward_UTH: Tensor, valid_UTH: Tensor, member_U: Tensor, stats: advantages.Groups
    ) -> Tensor:
        """Return fp32 ``[U, T, c]``, 0 where not valid."""
        how, steps_UTc = self.config.advantage, self._steps(valid_UTH)
        if how in ("std", "mean", "rloo"):
            advantage_U = advantages.group_advantages(score_U, member_U, stats, how)
            return torch.where(steps_UTc, advantage_U[:, None, None], 0.0).float()
        if how == "reinforce++-baseline":
            gain_UTc = advantages.group_advantages(score_U, member_U, stats, "mean")[:, None, None].expand(
                steps_UTc.shape
            )
        elif self.config.kl_weight > 0 and self.config.kl_place == "reward":
            reward_UTc = torch.where(valid_UTH, reward_UTH.double(), 0.0)
            if steps_UTc.shape != valid_UTH.shape:
                reward_UTc = reward_UTc.sum(-1, keepdim=True)
            gain_UTc = advantages.reward_to_go(reward_UTc.flatten(1), steps_UTc.flatten(1)).view(steps_UTc.shape)
        else:
            gain_UTc = score_U[:, None, None].expand(steps_UTc.shape)
        moments = Moments.of(gain_UTc, steps_UTc).over_ranks()
        return advantages.normalise(gain_UTc, steps_UTc, moments, unbiased=False, eps=1e-8).float()
