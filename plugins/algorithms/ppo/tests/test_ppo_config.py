"""PPO's options: what does not go together, what they need, and that each has an effect."""

from __future__ import annotations

import dataclasses

import pytest
from ppo_worlds import made

from rlvla import configs
from rlvla.checks import check
from rlvla.errors import ConfigError
from rlvla.testing import random_trajectories
from rlvla.testing.algorithm import gradients, run, width, with_asked
from rlvla.testing.worlds import evaluation_of
from rlvla_algo_ppo import PpoConfig, describe


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
