"""PPO as a whole: against a slow second computation, in small worlds, and on two ranks."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_worlds import made, world

from rlvla.rl import quantiles
from rlvla.testing import random_trajectories
from rlvla.testing.algorithm import LEVELS, gradients, run
from rlvla.testing.worlds import evaluation_of
from rlvla_algo_ppo import PpoConfig
from rlvla_algo_ppo.algorithm import Ppo

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
