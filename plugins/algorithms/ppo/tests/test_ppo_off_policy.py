"""What PPO does with chunks of older policies, and with a policy that it is to stay near."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from ppo_worlds import made, world

from rlvla.testing import random_trajectories
from rlvla.testing.algorithm import gradients, run, with_asked
from rlvla.testing.worlds import evaluation_of
from rlvla_algo_ppo import PpoConfig, describe


def stale(seed: int = 0):
    trajectories = world(seed, lag=2, version=3)
    spec = dataclasses.replace(describe(PpoConfig()), proximal="all", reference=True)
    return with_asked(trajectories, spec, seed)


def test_a_proximal_policy_that_is_the_acting_one_changes_nothing() -> None:
    trajectories = stale()
    trajectories.proximal_logp = trajectories.logp.clone()
    results = []
    for how in ("behaviour", "stale", "recompute"):
        evaluation = evaluation_of(trajectories, seed=1)
        total, _ = run(made(proximal=how), trajectories, evaluation)
        results.append((total, gradients(evaluation)["logp"]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    torch.testing.assert_close(results[0], results[2], rtol=0, atol=0)


def test_the_first_visit_is_the_anchor_of_later_ones() -> None:
    trajectories = stale()
    algorithm = made(proximal="first-visit", value_weight=1e-9, normalise_advantages=False)
    batch = algorithm.prepare(trajectories)
    denominators = algorithm.denominators(batch)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    first, second = (evaluation_of(trajectories, seed=seed, scale=0.05) for seed in (1, 2))
    for rows in order.split(5):
        loss = algorithm.loss(batch[rows], first[rows], denominators)
        assert float(loss.metrics["approx_kl"][0]) == 0.0
    order = order.flip(0)
    loss = algorithm.loss(batch[order], second[order], denominators)
    recompute = made(proximal="recompute", value_weight=1e-9, normalise_advantages=False)
    trajectories.proximal_logp = torch.zeros_like(trajectories.logp)
    trajectories.proximal_logp[trajectories.exists] = first.logp.detach()
    known = recompute.prepare(trajectories)
    wanted = recompute.loss(known[order], second[order], recompute.denominators(known))
    assert loss.total.item() == pytest.approx(wanted.total.item(), abs=1e-6)


def test_interpolation_centres_fresh_data_on_the_acting_policy() -> None:
    trajectories = world(lag=0, version=3)
    results = []
    for how in ("behaviour", "interpolate"):
        evaluation = evaluation_of(trajectories, seed=1)
        run(made(proximal=how), trajectories, evaluation)
        results.append(gradients(evaluation)["logp"])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("bound", [1.2, 1.0, 0.9, 1e-6])
def test_elements_above_the_weight_bound_leave_the_bonus_too(bound) -> None:
    """An entropy of 1 an element is worth entropy_weight, however many are left; and nothing if none is."""
    trajectories = stale()
    options = {"ratio_level": "token", "behaviour_weight_over": "mask", "behaviour_weight_max": bound}
    totals = []
    for weight in (0.0, 0.5):
        evaluation = evaluation_of(trajectories, seed=1)
        evaluation.entropy = torch.ones_like(evaluation.entropy)
        algorithm = made(**options, entropy_weight=weight, aggregation="element-mean")
        kept = algorithm.denominators(algorithm.prepare(trajectories))["policy"].item()
        totals.append(float(run(algorithm, trajectories, evaluation)[0]))
    assert totals[1] - totals[0] == pytest.approx(-0.5 if kept else 0.0, abs=1e-6)
    assert (kept == 0) == (bound == 1e-6)


def test_elements_above_the_weight_bound_leave_loss_and_denominator() -> None:
    trajectories = stale()
    options = {"proximal": "recompute", "ratio_level": "token", "behaviour_weight_over": "mask"}
    algorithm = made(**options, behaviour_weight_max=1.0)
    batch = algorithm.prepare(trajectories)
    below = (trajectories.proximal_logp <= trajectories.logp) & trajectories.valid[..., None]
    assert algorithm.denominators(batch)["policy"].item() == below.sum().item()
    evaluation = evaluation_of(trajectories, seed=1)
    run(algorithm, trajectories, evaluation)
    assert not gradients(evaluation)["logp"][~below[trajectories.exists]].any()


def test_old_chunks_weigh_less_and_are_renormalised() -> None:
    trajectories = stale()
    algorithm = made(staleness_decay=0.5, staleness_free=0, max_staleness=2)
    batch = algorithm.prepare(trajectories)
    lag = 3 - trajectories.version.flatten()
    torch.testing.assert_close(batch["staleness_weight"], 0.5 ** lag.float())
    assert algorithm.denominators(batch)["policy"].item() == pytest.approx((0.5 ** lag.float()).sum().item())
    _, metrics = run(algorithm, trajectories, evaluation_of(trajectories))
    assert metrics["staleness"].item() == pytest.approx(lag.float().mean().item())


def test_an_old_chunk_pushes_less_than_a_fresh_one() -> None:
    pushes = []
    for decay in (1.0, 0.5):
        trajectories = world(lag=0, version=3, done_rate=0.0)
        trajectories.version[0] = 1  # two versions old
        evaluation = evaluation_of(trajectories)
        run(made(staleness_decay=decay, max_staleness=2, normalise_advantages=False), trajectories, evaluation)
        pushes.append(gradients(evaluation)["logp"].view(4, -1))
    denominators = 16 / (12 + 4 * 0.25)
    torch.testing.assert_close(pushes[1][0], pushes[0][0] * 0.25 * denominators)
    torch.testing.assert_close(pushes[1][1:], pushes[0][1:] * denominators)


def test_lag_is_never_negative() -> None:
    batch = made(step=0, proximal="interpolate").prepare(world(version=3))
    assert not batch["lag"].any()


def test_missing_log_probs_of_another_policy_are_named() -> None:
    with pytest.raises(ValueError, match="reference_logp is missing"):
        made(kl_weight=0.1).prepare(world())
    with pytest.raises(ValueError, match="proximal_logp is missing"):
        made(proximal="recompute").prepare(world())


# --- KL ---


@pytest.mark.parametrize(("estimator", "slope"), [("k2", 0.4), ("k3", 1 - math.exp(-0.4)), ("abs", 1.0)])
def test_kl_in_the_loss_by_hand(estimator: str, slope: float) -> None:
    # One entry, no advantage: log pi - log ref = 0.4, weight 0.5.
    trajectories = random_trajectories(0, U=1, T=1, H=1, K=1, done_rate=0.0)
    trajectories.reference_logp = trajectories.logp - 0.4
    evaluation = evaluation_of(trajectories)
    run(made(kl_weight=0.5, kl_estimator=estimator), trajectories, evaluation)
    assert gradients(evaluation)["logp"].item() == pytest.approx(0.5 * slope, abs=1e-6)


def test_kl_in_the_reward_by_hand() -> None:
    # One chunk of two actions, k1 = 0.4 an entry at K = 2: return = reward - 0.5 * 0.8 an action.
    trajectories = random_trajectories(0, U=1, T=1, H=2, K=2, V=2, done_rate=0.0)
    trajectories.terminated[0, 0, 1] = True
    trajectories.reference_logp = trajectories.logp - 0.4
    options = {"credit_level": "action", "ratio_level": "token", "gamma": 0.0, "normalise_advantages": False}
    plain = made(**options).prepare(trajectories)
    less = made(**options, kl_weight=0.5, kl_place="reward").prepare(trajectories)
    torch.testing.assert_close(plain["return"] - less["return"], torch.full((1, 2), 0.4))
    evaluation = evaluation_of(trajectories)
    run(made(**options, kl_weight=0.5, kl_place="reward"), trajectories, evaluation)
    chunk = made(kl_weight=0.5, kl_place="reward", gamma=0.0).prepare(
        random_chunk := trajectories_at_chunk(trajectories)
    )
    torch.testing.assert_close(
        made(gamma=0.0).prepare(random_chunk)["return"] - chunk["return"], torch.full((1, 1), 0.8)
    )


def trajectories_at_chunk(trajectories):
    one = trajectories.clone()
    one.value = one.value[..., :1].clone()
    return one
