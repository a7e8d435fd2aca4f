"""The conformance suite is worth what it finds: PPO with a fault in it fails the check that is about that fault."""

from __future__ import annotations

import pytest
import torch

from rlvla.testing import AlgorithmConformance, check_algorithm
from rlvla_algo_ppo.algorithm import Ppo


class WrongSign(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.total = -loss.total
        return loss


class MeanOfTheParts(Ppo):
    def loss(self, batch, evaluation, denominators):
        return super().loss(batch, evaluation, self.denominators(batch))


class MaskByProduct(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.total = loss.total + (evaluation.logp * batch["valid"][..., None]).sum() * 0.01
        return loss


class NoMask(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.total = loss.total + evaluation.entropy.sum() * 0.01
        return loss


class DependsOnTheOrder(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.total = loss.total * (1 + batch["sample"][0])
        return loss


class ChangesItsInput(Ppo):
    def prepare(self, trajectories):
        batch = super().prepare(trajectories)
        trajectories.reward += 1.0
        return batch


class DividesByNothing(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.metrics["entropy_mean"] = (loss.metrics["entropy"][0] / loss.metrics["entropy"][1], torch.ones(()))
        return loss


class FractionOutOfBounds(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        total, count = loss.metrics["clip_fraction"]
        loss.metrics["clip_fraction"] = (total * 7, count)
        return loss


class KeepsTheGraph(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.metrics["total"] = (loss.total, torch.ones(()))
        return loss


class DenominatorIsAMean(Ppo):
    def denominators(self, batch):
        return {name: x / len(batch) for name, x in super().denominators(batch).items()}


class LevelsDiffer(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        loss.total = loss.total * (2 if self.spec.ratio_level == "token" else 1)
        return loss


class NotReinforce(Ppo):
    def loss(self, batch, evaluation, denominators):
        loss = super().loss(batch, evaluation, denominators)
        weight = torch.linspace(1, 2, len(batch))[:, None, None] * batch["valid"][..., None]
        loss.total = loss.total + 0.01 * (torch.where(weight > 0, evaluation.logp, 0.0) * weight).sum()
        return loss


class ForgetsItsState(Ppo):
    count = 0

    def prepare(self, trajectories):
        return super().prepare(trajectories)

    def state(self):
        return {"step": self.policy.version}


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        (WrongSign, "positive_advantage_raises_log_prob"),
        (MeanOfTheParts, "micro_batches_add_up"),
        (MaskByProduct, "what_is_not_valid_changes_nothing"),
        (NoMask, "masked_entries_have_no_gradient"),
        (DependsOnTheOrder, "rows_may_be_cut_and_permuted"),
        (ChangesItsInput, "prepare_gives_one_row_a_chunk"),
        (DividesByNothing, "nothing_to_learn_is_no_nan"),
        (FractionOutOfBounds, "metrics_are_sums_and_counts"),
        (KeepsTheGraph, "metrics_are_sums_and_counts"),
        (DenominatorIsAMean, "denominators_add_up"),
        (LevelsDiffer, "levels_agree"),
        (NotReinforce, "ratio_one_gives_reinforce"),
        (ForgetsItsState, "state_survives_json"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_a_fault_fails_its_check(fault: type[Ppo], found_by: str) -> None:
    class Suite(AlgorithmConformance):
        name = "ppo"

        def algorithm(self, config, step=3):
            algorithm = fault(config)
            algorithm.progress(step, 10)
            return algorithm

    with pytest.raises(AssertionError):
        getattr(Suite(), f"test_{found_by}")()


def test_an_option_that_nothing_reads_is_found() -> None:
    class Suite(AlgorithmConformance):
        name = "ppo"

        def exercise(self, config) -> None:
            """As if the plugin were never run."""

    with pytest.raises(AssertionError, match=r"nothing reads .*clip_low"):
        Suite().test_every_option_is_read()


def test_the_notebook_form_lists_what_failed() -> None:
    check_algorithm("ppo", {"passes": 2, "target_kl": 0.1})
    with pytest.raises(
        AssertionError, match=r"checks of 'ppo' failed:\n(.*\n)*  describe_gives_the_spec: algo.ratio_level"
    ):
        check_algorithm("ppo", {"credit_level": "action", "ratio_level": "chunk"})
