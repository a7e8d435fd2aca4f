"""GRPO as a whole: groups, filters, aggregation, and option by option."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.errors import ConfigError
from rlvla.receipts import Member, UnitReport
from rlvla.testing import random_trajectories
from rlvla.testing.algorithm import gradients, run, with_asked
from rlvla.testing.worlds import evaluation_of
from rlvla_algo_grpo import GrpoConfig, describe
from rlvla_algo_grpo.algorithm import Grpo


def made(step: int = 3, **options) -> Grpo:
    algorithm = Grpo(GrpoConfig(**options))
    algorithm.progress(step, 10)
    return algorithm


def rollouts(scores, lengths=None, *, group_size: int | None = None, H: int = 2, K: int = 1):
    """Return rollouts of given returns (paid at the end) and lengths in actions; positive ones are successes."""
    lengths = lengths or [3] * len(scores)
    T = -(-max(lengths) // H)
    trajectories = random_trajectories(0, U=len(scores), T=T, H=H, K=K, V=0, done_rate=0.0)
    place = torch.arange(T * H).view(T, H)
    for u, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        trajectories.valid[u] = place < length
        trajectories.exists[u] = trajectories.valid[u].any(-1)
        trajectories.reward[u] = (place == length - 1) * score
        trajectories.terminated[u] = place == length - 1
        trajectories.success[u] = (trajectories.reward[u] > 0).any(-1)
    size = group_size or len(scores)
    trajectories.group = (torch.arange(len(scores)) // size)[:, None].expand(len(scores), T).clone()
    return trajectories


def advantages_of(trajectories, **options) -> list[float]:
    """Return one advantage a rollout, after checking that it is the same at all its steps."""
    batch = made(**options).prepare(trajectories)
    found = []
    owner = torch.arange(len(trajectories))[:, None].expand(trajectories.exists.shape)[trajectories.exists]
    for u in range(len(trajectories)):
        chosen = batch["advantage"][owner == u].expand(-1, batch["valid"].shape[1])[batch["valid"][owner == u]]
        assert len(set(chosen.tolist())) <= 1
        found.append(chosen[0].item() if len(chosen) else 0.0)
    return found


def test_advantages_by_hand() -> None:
    group = rollouts([5, 0, 0, 0])
    assert advantages_of(group) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert advantages_of(group, unbiased_std=False) == pytest.approx([1.732051, *[-0.57735] * 3], abs=1e-5)
    assert advantages_of(group, advantage="mean") == pytest.approx([3.75, *[-1.25] * 3])
    assert advantages_of(group, advantage="rloo") == pytest.approx([5, *[-5 / 3] * 3])


@pytest.mark.parametrize("ratio", ["action", "token"])
def test_batch_statistics_by_hand(ratio: str) -> None:
    batch = rollouts([1, 0, 0, 1], [2, 4, 4, 2])
    wanted = [1.414214, -0.707107, -0.707107, 1.414214]
    assert advantages_of(batch, advantage="reinforce++", ratio_level=ratio) == pytest.approx(wanted, abs=1e-6)
    two = rollouts([1, 0, 3, 0], [2, 2, 2, 2], group_size=2)
    assert advantages_of(two, advantage="reinforce++-baseline") == pytest.approx(
        [x / math.sqrt(1.25) for x in (0.5, -0.5, 1.5, -1.5)], abs=1e-5
    )


@pytest.mark.parametrize("how", ["std", "mean", "rloo", "reinforce++-baseline"])
def test_a_group_whose_scores_are_equal_teaches_nothing(how: str) -> None:
    trajectories = rollouts([0.7] * 7)
    evaluation = evaluation_of(trajectories)
    total, metrics = run(made(advantage=how), trajectories, evaluation)
    assert total.item() == 0.0
    assert not gradients(evaluation)["logp"].any()
    assert metrics["group_zero_spread"].item() == 1.0


@pytest.mark.parametrize("how", ["std", "mean", "rloo"])
def test_a_constant_on_all_returns_changes_nothing(how: str) -> None:
    shifted = rollouts([5, 0, 0, 2])
    shifted.reward[:, 0, 0] += 3.0
    assert advantages_of(shifted, advantage=how) == pytest.approx(
        advantages_of(rollouts([5, 0, 0, 2]), advantage=how), abs=1e-5
    )


def test_a_batch_of_truncated_episodes_only_teaches_nothing() -> None:
    """No rollout solved its task: every score is 0, and success bounds filter every group."""
    trajectories = rollouts([0, 0, 0, 0], [4, 4, 4, 4], group_size=2)
    trajectories.truncated, trajectories.terminated = trajectories.terminated, trajectories.truncated
    for options, filtered in (({}, 0.0), ({"success_low": 0.1, "filter": "drop"}, 1.0)):
        evaluation = evaluation_of(trajectories, seed=1)
        total, metrics = run(made(**options), trajectories, evaluation)
        assert total.item() == 0.0
        assert not gradients(evaluation)["logp"].any()
        assert metrics["group_success"].item() == 0.0
        assert metrics["group_zero_spread"].item() == 1.0
        assert metrics["group_filtered"].item() == filtered


def test_only_the_first_episode_counts() -> None:
    trajectories = rollouts([1, 0], [2, 2])
    longer = random_trajectories(0, U=2, T=3, H=2, K=1, V=0, done_rate=0.0)
    longer.reward.zero_()
    longer.reward[0, 0, 1], longer.reward[1, 1, 0], longer.reward[1, 2, 1] = 1.0, 7.0, 7.0
    longer.terminated[:, 0, 1] = True
    longer.success[1, 2] = True
    longer.group.zero_()
    assert advantages_of(longer) == advantages_of(trajectories)
    batch = made().prepare(longer)
    assert batch["valid"].sum().item() == 4  # two actions each
    assert batch["report"]["group_success"][:, 0].sum().item() == 0.0


def test_a_group_with_fewer_members() -> None:
    trajectories = rollouts([1, 0, 0, 1, 0], [3, 4, 2, 2, 4], group_size=3)  # three and two
    assert advantages_of(trajectories)[3:] == pytest.approx([0.5 / math.sqrt(0.5), -0.5 / math.sqrt(0.5)], abs=1e-5)
    alone = rollouts([1, 0, 1], group_size=2)
    assert advantages_of(alone)[2] == 0.0


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_member_is_left_out_and_counted(broken: float) -> None:
    seven = rollouts([1, 0, 0, 1, 1, 0, 2])
    eight = rollouts([1, 0, 0, broken, 1, 1, 0, 2])
    evaluation = evaluation_of(eight)
    total, metrics = run(made(), eight, evaluation)
    got = advantages_of(eight)
    assert got[:3] + got[4:] == pytest.approx(advantages_of(seven))
    assert metrics["invalid_members"].item() == pytest.approx(1 / 8)
    gradient = gradients(evaluation)["logp"]
    assert not gradient[6:8].any()  # two chunks a rollout
    known = evaluation_of(seven)
    wanted, _ = run(made(), seven, known)
    assert total.item() == pytest.approx(wanted.item(), abs=1e-6)
    torch.testing.assert_close(torch.cat([gradient[:6], gradient[8:]]), gradients(known)["logp"])  # as of seven


def test_a_lost_member_is_left_out_and_counted() -> None:
    """A rollout of which nothing is valid (its simulator died) is no failure."""
    three, two = rollouts([1, 1, 0]), rollouts([1, 0])
    for flag in (three.valid, three.terminated, three.success):
        flag[1] = False
    _, metrics = run(made(), three, evaluation_of(three))
    assert metrics["invalid_members"].item() == pytest.approx(1 / 3)
    assert metrics["group_success"].item() == pytest.approx(0.5)
    got = advantages_of(three)
    assert [got[0], got[2]] == pytest.approx(advantages_of(two))


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("element-mean", [1 / 110, 1 / 110]),
        ("trajectory-mean", [1 / 20, 1 / 200]),
        ("trajectory-sum", [1 / 2, 1 / 2]),
        ("constant", [1 / 400, 1 / 400]),
    ],
)
def test_what_an_action_of_a_short_and_a_long_rollout_weighs(aggregation: str, weights: list[float]) -> None:
    """10 and 100 actions, advantages +1 and -1 (two rollouts, RLOO)."""
    trajectories = rollouts([1, 0], [10, 100])
    evaluation = evaluation_of(trajectories)
    length = {"constant_length": 200} if aggregation == "constant" else {}
    run(made(aggregation=aggregation, advantage="rloo", ratio_level="action", **length), trajectories, evaluation)
    gradient = gradients(evaluation)["logp"]
    assert gradient[0, 0, 0].item() == pytest.approx(-weights[0], rel=1e-5)
    assert gradient[-1, 0, 0].item() == pytest.approx(weights[1], rel=1e-5)


def test_denominators_of_minibatches_add_up_to_the_number_of_rollouts() -> None:
    algorithm = made()
    batch = algorithm.prepare(rollouts([1, 0, 0, 1], [2, 8, 5, 3]))
    parts = [algorithm.denominators(part)["policy"].item() for part in batch.split(3)]
    assert sum(parts) == pytest.approx(4.0)


def test_the_tokens_of_an_action_share_its_weight() -> None:
    trajectories = rollouts([1, 0], [2, 4], K=3)
    for ratio, entries in (("action", 1), ("token", 3)):
        evaluation = evaluation_of(trajectories)
        run(made(ratio_level=ratio, advantage="rloo"), trajectories, evaluation)
        gradient = gradients(evaluation)["logp"]
        assert gradient[0, 0, 0].item() == pytest.approx(-1 / (2 * 2 * entries), rel=1e-5)
        assert gradient[-1, 0, 0].item() == pytest.approx(1 / (2 * 4 * entries), rel=1e-5)


# --- filter ---


def report(successes: int, of: int = 8) -> UnitReport:
    return UnitReport(0, "group", tuple(Member(5.0 * (i < successes), i < successes, 9) for i in range(of)), 0, 0)


def test_bounds_are_success_rates() -> None:
    algorithm = made(success_low=0.1, success_high=0.9)
    assert [k for k in range(9) if algorithm.keep(report(k))] == [1, 2, 3, 4, 5, 6, 7]
    assert all(made().keep(report(k)) for k in range(9))
    assert made(success_low=0.5).keep(report(4))


@pytest.mark.parametrize("how", ["drop", "mask"])
def test_other_filters_keep_every_ticket(how: str) -> None:
    assert all(made(success_low=0.1, success_high=0.9, filter=how).keep(report(k)) for k in range(9))


@pytest.mark.parametrize(("how", "counted"), [("refill", 2), ("drop", 2), ("mask", 4)])
def test_filtered_groups_leave_the_loss_and_maybe_the_denominator(how: str, counted: int) -> None:
    trajectories = rollouts([1, 0, 3, 2], group_size=2)  # half and all succeed
    options = {"advantage": "rloo", "ratio_level": "action", "success_high": 0.9, "filter": how}
    evaluation = evaluation_of(trajectories)
    _, metrics = run(made(**options), trajectories, evaluation)
    gradient = gradients(evaluation)["logp"]
    assert gradient[0, 0, 0].item() == pytest.approx(-1 / (3 * counted), rel=1e-5)
    assert not gradient[4:].any()
    assert metrics["group_filtered"].item() == pytest.approx(0.5)
    assert metrics["group_success"].item() == pytest.approx(0.75)


def test_a_batch_of_filtered_groups_is_harmless() -> None:
    trajectories = rollouts([1, 1, 3, 2], group_size=2)
    for how in ("refill", "drop", "mask"):
        evaluation = evaluation_of(trajectories)
        total, _ = run(made(success_high=0.9, filter=how), trajectories, evaluation)
        assert total.item() == 0.0
        assert not gradients(evaluation)["logp"].any()


# --- metrics ---


def test_group_metrics_count_groups_and_not_their_chunks() -> None:
    trajectories = rollouts([1, 1, 1, 0], [2, 2, 20, 2], group_size=2)
    _, metrics = run(made(), trajectories, evaluation_of(trajectories), parts=5)
    assert metrics["group_zero_spread"].item() == pytest.approx(0.5)
    assert metrics["group_success"].item() == pytest.approx(0.75)
    assert metrics["score"].item() == pytest.approx(0.75)
    assert metrics["invalid_members"].item() == 0.0


# --- KL ---


def test_kl_still_moves_a_group_without_spread() -> None:
    trajectories = rollouts([1, 1])
    trajectories.reference_logp = trajectories.logp - 0.4
    evaluation = evaluation_of(trajectories)
    run(made(kl_weight=0.1, aggregation="element-mean"), trajectories, evaluation)
    gradient = gradients(evaluation)["logp"]
    valid = trajectories.valid[trajectories.exists]
    torch.testing.assert_close(gradient[valid], torch.full_like(gradient[valid], 0.1 * 0.4 / 6))


def test_kl_in_the_reward_lowers_the_score() -> None:
    trajectories = rollouts([1, 0], [2, 2])
    trajectories.reference_logp = trajectories.logp.clone()
    trajectories.reference_logp[0] -= 0.5  # 2 actions of k1 = 0.5, weight 1: the better rollout loses its lead
    assert advantages_of(trajectories, kl_weight=1.0, kl_place="reward", advantage="rloo") == pytest.approx([0.0, 0.0])


def test_kl_in_the_reward_is_credited_step_by_step() -> None:
    trajectories = rollouts([1, 0], [2, 2])
    trajectories.reference_logp = trajectories.logp.clone()
    trajectories.reference_logp[0, 0, 0] -= 0.5
    batch = made(kl_weight=1.0, kl_place="reward", advantage="reinforce++", ratio_level="action").prepare(trajectories)
    to_go = torch.tensor([[0.5, 1.0], [0.0, 0.0]])
    wanted = (to_go - to_go.mean()) / to_go.std(correction=0)
    torch.testing.assert_close(batch["advantage"], wanted)


# --- config ---


def test_bounds_that_no_group_can_meet_are_refused():
    with pytest.raises(
        ConfigError, match=r"success_low: got 0\.45 to success_high 0\.49, but groups of 8 .* steps of 1/8"
    ):
        describe(GrpoConfig(group_size=8, success_low=0.45, success_high=0.49))
    describe(GrpoConfig(group_size=8, success_low=0.45, success_high=0.5))


def test_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        describe(GrpoConfig(group_size=1, success_low=0.9, success_high=0.1, refill_budget=0.5))
    named = [problem.split(":")[0] for problem in caught.value.problems]
    assert named == ["algo.group_size", "algo.refill_budget", "algo.success_low"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"refill_budget": 5.0},
            r"refill_budget: got 5, but no group is replaced \(filter 'refill', success rates from 0 to 1",
        ),
        ({"refill_budget": 5.0, "success_low": 0.1, "filter": "mask"}, r"no group is replaced \(filter 'mask'"),
        ({"refill_budget": 5.0, "success_low": 0.1, "filter": "drop"}, r"no group is replaced \(filter 'drop'"),
        (
            {"unbiased_std": False, "advantage": "mean"},
            "unbiased_std: got False, but advantage 'mean' divides by no group's",
        ),
        ({"unbiased_std": False, "advantage": "reinforce++"}, "unbiased_std"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe(GrpoConfig(**settings))


def test_the_spec_says_what_is_needed() -> None:
    spec = describe(GrpoConfig(group_size=4, groups_per_step=3))
    assert (spec.unit, spec.values, spec.group_size, spec.units_per_step) == ("group", False, 4, 3)
    assert spec.refill_budget is None
    assert describe(GrpoConfig(success_low=0.1)).refill_budget == 3.0


OTHERS = {
    "advantage": ({}, "rloo"),
    "aggregation": ({}, "element-mean"),
    "behaviour_weight_max": ({"proximal": "recompute"}, 1.0),
    "behaviour_weight_over": ({"proximal": "recompute", "behaviour_weight_max": 1.0}, "mask"),
    "clip_high": ({}, 0.01),
    "clip_low": ({}, 0.01),
    "constant_length": ({"aggregation": "constant", "constant_length": 3}, 4),
    "dual_clip": ({}, 1.01),
    "entropy_weight": ({}, 0.1),
    "filter": ({"success_high": 0.6}, "mask"),
    "gaussian_width": ({}, 0.5),
    "group_size": ({}, 4),
    "groups_per_step": ({}, 4),
    "kl_estimator": ({"kl_weight": 0.1}, "k3"),
    "kl_place": ({"kl_weight": 0.1}, "reward"),
    "kl_weight": ({}, 0.1),
    "log_ratio_clamp": ({}, 0.01),
    "max_staleness": ({}, 2),
    "minibatch_size": ({}, 7),
    "passes": ({}, 5),
    "proximal": ({}, "behaviour"),
    "ratio_level": ({}, "chunk"),
    "refill_budget": ({"success_high": 0.6}, 5.0),
    "staleness_decay": ({"max_staleness": 2}, 0.5),
    "staleness_free": ({"staleness_decay": 0.5, "max_staleness": 2}, 1),
    "success_high": ({}, 0.6),
    "success_low": ({}, 0.6),
    "target_kl": ({"passes": 2}, 1e-3),
    "unbiased_std": ({}, False),
}


def test_every_option_has_an_effect() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(GrpoConfig)}
    without = [name for name, (base, other) in OTHERS.items() if effect(base) == effect({**base, name: other})]
    assert not without


def effect(options) -> tuple:
    spec = describe(GrpoConfig(**options))
    trajectories = random_trajectories(3, U=8, T=4, H=3, K=2, V=0, lag=2, done_rate=0.3, group_size=2, stops=True)
    trajectories.success[:] = False
    trajectories.success[:3, 0] = True
    with_asked(trajectories, spec, 1)
    evaluation = evaluation_of(trajectories, seed=2)
    algorithm = made(**options)
    total, _ = run(algorithm, trajectories, evaluation)
    numbers = [x.tolist() for x in gradients(evaluation).values()]
    return spec, total.item(), numbers, algorithm.stop({"approx_kl": 0.01}), algorithm.keep(report(8))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), how=st.sampled_from(["std", "mean", "rloo", "reinforce++", "reinforce++-baseline"]))
def test_permuting_rollouts_permutes_gradients(seed: int, how: str) -> None:
    trajectories = random_trajectories(seed, U=6, T=3, H=2, K=2, V=0, group_size=3, stops=True, done_rate=0.3)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    rows = torch.zeros(trajectories.exists.shape, dtype=torch.int64)
    rows[trajectories.exists] = torch.arange(int(trajectories.exists.sum()))
    mixed_rows = rows[order][trajectories.exists[order]]
    plain, mixed = evaluation_of(trajectories, seed=1), evaluation_of(trajectories, seed=1)
    total, _ = run(made(advantage=how), trajectories, plain)
    again = mixed[mixed_rows]
    batch_total, _ = run(made(advantage=how), trajectories[order], again)
    assert batch_total.item() == pytest.approx(total.item(), abs=1e-5)
    torch.testing.assert_close(gradients(mixed)["logp"], gradients(plain)["logp"], rtol=1e-5, atol=1e-6)
