"""PPO as a whole: against a slow second computation, in small worlds, and option by option."""

from __future__ import annotations

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla import configs
from rlvla.checks import check
from rlvla.errors import ConfigError
from rlvla.rl import quantiles
from rlvla.testing import random_trajectories
from rlvla.testing.algorithm import LEVELS, gradients, run, width, with_asked
from rlvla.testing.worlds import evaluation_of
from rlvla_algo_ppo import PpoConfig, describe
from rlvla_algo_ppo.algorithm import Ppo


def made(step: int = 3, **options) -> Ppo:
    algorithm = Ppo(PpoConfig(**options))
    algorithm.progress(step, 10)
    return algorithm


def world(seed: int = 0, H: int = 3, K: int = 2, credit: str = "chunk", **kwargs):
    return random_trajectories(seed, U=4, T=4, H=H, K=K, V=H if credit == "action" else 1, **kwargs)


# --- a slow second computation of the whole loss ---


def slow_loss(config: PpoConfig, trajectories, batch, evaluation) -> float:
    """Loop over trajectories, chunks, actions and entries; advantages and returns are taken from ``batch``."""
    exists, valid = trajectories.exists, trajectories.valid
    action_level = config.ratio_level != "chunk"
    entries = trajectories.logp.shape[-1] if config.ratio_level == "token" else 1
    policy, elements, value, values, counted = 0.0, 0, 0.0, 0, 0
    row = -1
    for u in range(len(trajectories)):
        chunks = [t for t in range(trajectories.shape[1]) if exists[u, t] and valid[u, t].any()]
        n = int(sum(valid[u, t].sum() for t in chunks)) if action_level else len(chunks)
        counted += n > 0
        weight = 1 / (n * entries) if config.aggregation == "trajectory-mean" and n else 1.0
        for t in range(trajectories.shape[1]):
            if not exists[u, t]:
                continue
            row += 1
            on = [h for h in range(valid.shape[2]) if valid[u, t, h]]
            if not on:
                continue
            new, old = evaluation.logp[row].tolist(), trajectories.logp[u, t].tolist()
            if config.ratio_level == "token":
                parts = [(h, new[h][k] - old[h][k]) for h in on for k in range(entries)]
            elif config.ratio_level == "action":
                parts = [(h, sum(new[h]) - sum(old[h])) for h in on]
            else:
                parts = [(0, sum(sum(new[h]) - sum(old[h]) for h in on))]
            for h, log_ratio in parts:
                advantage = float(batch["advantage"][row, h if batch["advantage"].shape[1] > 1 else 0])
                ratio = math.exp(log_ratio)
                clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
                policy += weight * max(-advantage * ratio, -advantage * clipped)
                elements += 1
            for c in on if config.credit_level == "action" else [0]:
                value += (float(batch["return"][row, c]) - evaluation.value[row, c].item()) ** 2 / 2
                values += 1
    by = {
        "element-mean": elements,
        "trajectory-mean": counted,
        "trajectory-sum": counted,
        "constant": counted * (config.constant_length or 0) * entries,
    }[config.aggregation]
    return policy / by + config.value_weight * value / values


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    levels=st.sampled_from(LEVELS),
    aggregation=st.sampled_from(["element-mean", "trajectory-mean", "trajectory-sum", "constant"]),
    executed=st.sampled_from([None, 2]),
    stops=st.booleans(),
)
def test_the_loss_equals_a_loop(seed, levels, aggregation, executed, stops) -> None:
    credit, ratio = levels
    config = PpoConfig(
        credit_level=credit,
        ratio_level=ratio,
        aggregation=aggregation,
        constant_length=7 if aggregation == "constant" else None,
        huber_delta=None,
    )
    trajectories = world(seed, credit=credit, executed=executed, stops=stops, done_rate=0.3)
    evaluation = evaluation_of(trajectories, seed=seed)
    algorithm = Ppo(config)
    batch = algorithm.prepare(trajectories)
    total = algorithm.loss(batch, evaluation, algorithm.denominators(batch)).total
    assert total.item() == pytest.approx(slow_loss(config, trajectories, batch, evaluation), rel=1e-4, abs=1e-5)


# --- advantages ---


def test_advantages_are_normalised_over_the_batch() -> None:
    trajectories = world(done_rate=0.3)
    batch = made().prepare(trajectories)
    chosen = batch["advantage"][batch["valid"].any(1)]
    assert chosen.mean().item() == pytest.approx(0, abs=1e-6)
    assert chosen.std().item() == pytest.approx(1, abs=1e-3)
    raw = made(normalise_advantages=False).prepare(trajectories)
    assert raw["advantage"].std().item() != pytest.approx(1, abs=1e-2)
    torch.testing.assert_close(batch["return"], raw["return"])  # targets of the value are never normalised


def test_permuting_windows_permutes_rows() -> None:
    trajectories = world(done_rate=0.3)
    order = torch.tensor([2, 0, 3, 1])
    rows = torch.arange(16).view(4, 4)[order].flatten()
    plain, mixed = made().prepare(trajectories), made().prepare(trajectories[order])
    for name in ("advantage", "return", "old_value", "valid", "logp", "element_weight"):
        torch.testing.assert_close(mixed[name], plain[name][rows])


@pytest.mark.parametrize(
    ("flag", "bootstrap", "target"),
    [
        ("truncated", "truncation", 0.99),
        ("terminated", "truncation", 0.0),
        ("terminated", "always", 0.99),
        ("truncated", "never", 0.0),
        (None, "never", 0.99),
    ],
)
@pytest.mark.parametrize("credit", ["chunk", "action"])
def test_one_step_world(flag, bootstrap: str, target: float, credit: str) -> None:
    """Reward 0, V 1: the target says whether the end is followed by a value; a window's end always is."""
    trajectories = random_trajectories(0, U=1, T=1, H=1, K=1, V=1, done_rate=0.0)
    trajectories.reward.zero_()
    trajectories.value.fill_(1.0)
    trajectories.final_value.fill_(1.0)
    if flag is not None:
        getattr(trajectories, flag).fill_(True)
    batch = made(bootstrap=bootstrap, credit_level=credit, ratio_level="action").prepare(trajectories)
    assert batch["return"].item() == pytest.approx(target)


def test_a_value_head_of_the_wrong_width_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"got \(4, 4, 1\), wanted \(4, 4, 3\).*'action' needs a value head of width 3"
    ):
        made(credit_level="action", ratio_level="token").prepare(world())


def test_a_missing_mask_is_an_error() -> None:
    trajectories = world()
    trajectories.valid = trajectories.valid.float()
    with pytest.raises(ValueError, match=r"trajectories.valid: got torch.float32"):
        made().prepare(trajectories)


def test_padding_in_the_middle_is_an_error() -> None:
    trajectories = world()
    trajectories.exists[1, 2] = False
    with pytest.raises(ValueError, match="padding belongs at the end"):
        made().prepare(trajectories)


def test_a_batch_of_truncated_episodes_only_is_followed_by_values() -> None:
    trajectories = random_trajectories(0, U=3, T=1, H=2, K=1, V=1, done_rate=0.0)
    trajectories.truncated[:, 0, 1] = True
    trajectories.reward.zero_()
    trajectories.final_value.fill_(0.5)
    for bootstrap, target in (("truncation", 0.45), ("always", 0.45), ("never", 0.0)):
        batch = made(bootstrap=bootstrap, gamma=0.9).prepare(trajectories)
        torch.testing.assert_close(batch["return"], torch.full((3, 1), target))
    total, _ = run(made(gamma=0.9), trajectories, evaluation_of(trajectories, seed=1))
    assert math.isfinite(total)


# --- value, entropy, metrics ---


def test_explained_variance_is_that_of_the_whole_batch() -> None:
    trajectories = world(done_rate=0.3, credit="action")
    algorithm = made(credit_level="action", ratio_level="action")
    evaluation = evaluation_of(trajectories)
    batch = algorithm.prepare(trajectories)
    _, metrics = run(algorithm, trajectories, evaluation, parts=3)
    on = batch["valid"]
    returns, errors = batch["return"][on], (batch["return"] - batch["old_value"])[on]
    wanted = 1 - errors.var() / returns.var()
    assert metrics["explained_variance"].item() == pytest.approx(wanted.item(), abs=1e-5)


def test_the_value_clip_fraction_counts_values_that_moved() -> None:
    trajectories = world(done_rate=0.0)
    evaluation = evaluation_of(trajectories)
    with torch.no_grad():
        evaluation.value[:4] += 0.3
    _, metrics = run(made(value_clip=0.2), trajectories, evaluation)
    assert metrics["value_clip_fraction"].item() == pytest.approx(4 / 16)


def test_entropy_bonus_weighs_elements_once() -> None:
    # 2 nats an entry, 3 actions of 2 entries: 12 a chunk, 4 an action, 2 a token; never times the batch.
    trajectories = world(done_rate=0.0)
    trajectories.reward.zero_()
    for ratio, nats in (("chunk", 12.0), ("action", 4.0), ("token", 2.0)):
        totals = []
        for weight in (0.0, 0.5):
            evaluation = evaluation_of(trajectories)
            with torch.no_grad():
                evaluation.entropy.fill_(2.0)
            total, metrics = run(made(ratio_level=ratio, entropy_weight=weight), trajectories, evaluation)
            totals.append(total.item())
        assert totals[0] - totals[1] == pytest.approx(0.5 * nats, abs=1e-5)
        assert metrics["entropy"].item() == pytest.approx(2.0)


def test_metrics_of_known_ratios() -> None:
    trajectories = world(done_rate=0.0, H=1, K=1)
    evaluation = evaluation_of(trajectories)
    with torch.no_grad():
        evaluation.logp[:4] += math.log(1.5)
        evaluation.logp[4:8] += 25.0
    _, metrics = run(made(), trajectories, evaluation)
    assert metrics["clip_fraction"].item() == pytest.approx(8 / 16)
    assert metrics["log_ratio_clamped"].item() == pytest.approx(4 / 16)
    assert metrics["ratio_max"].item() == pytest.approx(math.exp(20), rel=1e-5)
    assert metrics["logprob_gap"].item() == pytest.approx((math.log(1.5) + 25) / 4, rel=1e-5)
    assert metrics["approx_kl_k1"].item() == pytest.approx(-(math.log(1.5) + 20) / 4, rel=1e-5)
    k3 = (1.5 - 1 - math.log(1.5) + math.exp(20) - 1 - 20) / 4
    assert metrics["approx_kl"].item() == pytest.approx(k3, rel=1e-5)
    counts = metrics["ratio_counts"]
    assert counts.sum().item() == 16
    shares = [quantiles.quantile(counts, share) for share in (0.5, 0.7, 0.75, 0.95)]
    assert shares == [
        1.0,
        pytest.approx(1.5, rel=0.01),
        pytest.approx(1.5, rel=0.01),
        pytest.approx(math.exp(20), rel=0.4),
    ]


def test_a_policy_that_did_not_move_has_no_divergence() -> None:
    for credit, ratio in LEVELS:
        trajectories = world(credit=credit)
        _, metrics = run(made(credit_level=credit, ratio_level=ratio), trajectories, evaluation_of(trajectories))
        assert [metrics[name].item() for name in ("approx_kl", "clip_fraction", "logprob_gap")] == [0.0] * 3
        assert metrics["ratio_max"].item() == 1.0


def test_warm_up_trains_the_value_alone() -> None:
    trajectories = world()
    for step, moves in ((0, False), (1, False), (2, True)):
        evaluation = evaluation_of(trajectories, seed=1)
        run(made(step=step, critic_warmup=2, entropy_weight=0.1), trajectories, evaluation)
        made_gradients = gradients(evaluation)
        assert made_gradients["value"].any()
        assert bool(made_gradients["logp"].any()) is moves
        assert bool(made_gradients["entropy"].any()) is moves


def test_passes_stop_once_the_policy_moved_too_far() -> None:
    algorithm = made(target_kl=0.1)
    assert not algorithm.stop({"approx_kl": 0.1})
    assert algorithm.stop({"approx_kl": 0.11})
    assert not algorithm.stop({})  # nothing was valid
    assert not made().stop({"approx_kl": 1e9})


# --- off-policy ---


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


# --- config ---


def test_every_problem_is_named_at_once() -> None:
    config = PpoConfig(
        credit_level="action",
        ratio_level="chunk",
        proximal="behaviour",
        clip_low=-1.0,
        gamma=1.5,
        aggregation="constant",
        kl_weight=0.1,
        kl_estimator="k1",
        behaviour_weight_max=2.0,
        staleness_decay=0.5,
        staleness_free=1,
        gaussian_width=0.5,
        dual_clip=3.0,
        passes=1,
        target_kl=0.1,
    )
    with pytest.raises(ConfigError) as caught:
        describe(config)
    named = {problem.split(":")[0] for problem in caught.value.problems}
    assert named == {
        f"algo.{name}"
        for name in (
            "ratio_level",
            "clip_low",
            "gamma",
            "constant_length",
            "gaussian_width",
            "kl_estimator",
            "behaviour_weight_max",
            "staleness_decay",
            "target_kl",
        )
    }


def test_action_credit_with_chunk_ratio_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"got 'chunk' with credit level 'action', wanted 'action' or 'token'"):
        describe(PpoConfig(credit_level="action"))


def test_the_spec_says_what_is_needed() -> None:
    spec = describe(PpoConfig(kl_weight=0.1, proximal="recompute", entropy_weight=0.1, value_learning_rate_scale=5.0))
    assert (spec.unit, spec.values, spec.reference, spec.proximal, spec.entropy_bonus) == (
        "window",
        True,
        True,
        "all",
        True,
    )
    assert spec.value_learning_rate_scale == 5.0
    assert not describe(PpoConfig()).reference
    anchors = [describe(PpoConfig(**how)).proximal for how in ({}, {"proximal": "behaviour"}, {"gaussian_width": 0.5})]
    assert anchors == ["stale", "none", "none"]


OTHERS = {
    "aggregation": ({"ratio_level": "action"}, "trajectory-mean"),
    "behaviour_weight_max": ({"proximal": "recompute"}, 1.0),
    "behaviour_weight_over": ({"proximal": "recompute", "behaviour_weight_max": 1.0}, "mask"),
    "bootstrap": ({}, "always"),
    "clip_high": ({}, 0.01),
    "clip_low": ({}, 0.01),
    "constant_length": ({"aggregation": "constant", "constant_length": 3}, 4),
    "credit_level": ({"ratio_level": "action"}, "action"),
    "critic_warmup": ({}, 9),
    "dual_clip": ({}, 1.01),
    "entropy_weight": ({}, 0.1),
    "gae_lambda": ({}, 0.5),
    "gamma": ({}, 0.5),
    "gaussian_width": ({}, 0.5),
    "huber_delta": ({}, 0.1),
    "kl_estimator": ({"kl_weight": 0.1}, "k3"),
    "kl_place": ({"kl_weight": 0.1}, "reward"),
    "kl_weight": ({}, 0.1),
    "log_ratio_clamp": ({}, 0.01),
    "max_staleness": ({}, 2),
    "minibatch_size": ({}, 7),
    "normalise_advantages": ({}, False),
    "partial_reset": ({}, False),
    "passes": ({}, 5),
    "proximal": ({}, "behaviour"),
    "ratio_level": ({}, "token"),
    "staleness_decay": ({"max_staleness": 2}, 0.5),
    "staleness_free": ({"staleness_decay": 0.5, "max_staleness": 2}, 1),
    "target_kl": ({}, 1e-3),
    "value_clip": ({}, 0.01),
    "value_learning_rate_scale": ({}, 2.0),
    "value_weight": ({}, 0.5),
    "window": ({}, 4),
    "windows_per_step": ({}, 4),
}


def test_every_option_has_an_effect() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(PpoConfig)}
    without = [name for name, (base, other) in OTHERS.items() if effect(base) == effect({**base, name: other})]
    assert not without


def effect(options) -> tuple:
    config = PpoConfig(**options)
    spec = describe(config)
    trajectories = random_trajectories(3, U=6, T=4, H=3, K=2, V=width(spec, 3), lag=2, done_rate=0.3)
    with_asked(trajectories, spec, 1)
    evaluation = evaluation_of(trajectories, seed=2)
    algorithm = made(**options)
    total, _ = run(algorithm, trajectories, evaluation)
    numbers = [x.tolist() for x in gradients(evaluation).values()]
    return spec, total.item(), numbers, algorithm.stop({"approx_kl": 0.01})


# --- two ranks ---


class Ranks:
    """Threads in place of processes: ``gather`` gives every rank's tensor to each."""

    def __init__(self, count: int) -> None:
        self.slots: list[torch.Tensor] = [torch.empty(0)] * count
        self.barrier = threading.Barrier(count, timeout=60)
        self.here = threading.local()

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self.slots[self.here.rank] = x
        self.barrier.wait()
        every = torch.stack(self.slots)
        self.barrier.wait()
        return every

    def run(self, work, parts) -> list:
        def one(rank: int):
            self.here.rank = rank
            return work(parts[rank])

        with ThreadPoolExecutor(len(parts)) as pool:
            return list(pool.map(one, range(len(parts))))


@pytest.mark.parametrize("aggregation", ["element-mean", "trajectory-mean"])
def test_two_ranks_prepare_what_one_does(aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(trajectories):
        algorithm = made(aggregation=aggregation)
        batch = algorithm.prepare(trajectories)
        return batch, algorithm.denominators(batch)

    trajectories = random_trajectories(0, U=5, T=4, done_rate=0.3, stops=True)
    whole, by = prepare(trajectories)
    ranks = Ranks(2)
    monkeypatch.setattr("rlvla.rl.moments.gather", ranks.gather)
    parts = ranks.run(prepare, [trajectories[:2], trajectories[2:]])
    for name in ("advantage", "return", "share", "element_weight", "return_mean"):
        torch.testing.assert_close(torch.cat([batch[name] for batch, _ in parts]), whole[name])
    for name, x in by.items():
        torch.testing.assert_close(sum(one[name] for _, one in parts), x)


def test_a_warmup_of_the_whole_run_is_refused() -> None:
    def run_of(steps: int) -> configs.RunConfig:
        algo = {"use": "ppo", "critic_warmup": 3}
        return configs.read(
            {"sim": "fake", "model": "fake", "algo": algo, "scheduler": "sync", "run": {"steps": steps}}
        )

    check(run_of(4))
    with pytest.raises(
        ConfigError, match=r"algo\.critic_warmup: got 3, wanted fewer than run\.steps \(3\): the policy would"
    ):
        check(run_of(3))
