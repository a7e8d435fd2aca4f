"""Whole runs on a fake simulator: ways to tune and schedule, from a checkpoint to a loaded policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rlvla
from rlvla import cli
from rlvla.errors import ConfigError
from rlvla_model_gr00t import tiny
from rlvla_model_gr00t.__main__ import main as command

PPO = {"use": "ppo", "window": 2, "passes": 1, "ratio_level": "chunk", "minibatch_size": 4}
QUIET = {"without": ["tensorboard", "display"], "device": "cpu", "threads": 1, "slots": 1, "sim_in_process": True}


@pytest.fixture(scope="module")
def line(tmp_path_factory) -> Path:
    """A checkpoint for the fake simulator: two action and two state dimensions."""
    return tiny.write(tmp_path_factory.mktemp("line"), action_dim=2, state_dim=2, tags=("gr1",))


def build(checkpoint: Path, place: Path, scheduler="sync", algo=PPO, train=None, run=None, **options):
    model = {"use": "gr00t", "path": str(checkpoint), "horizon": 2, "dtype": "fp32", "pad_to": 96}
    return rlvla.build(
        sim={"use": "fake", "num_envs": 2, "max_episode_steps": 6},
        model={**model, **options},
        algo=algo,
        scheduler=scheduler,
        train={"learning_rate": 1e-2, **(train or {})},
        run={"directory": str(place), "name": "run", "steps": 2, **QUIET, **(run or {})},
    )


def weights_of(run: rlvla.Run) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in run._engine.trainer.actor.model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {"keep_features": 64, "dtype": "bf16"},
        {
            "tune": "lora",
            "lora_rank": 4,
            "noise": "reinflow",
            "algo": {**PPO, "ratio_level": "action", "entropy_weight": 0.01},
        },
        {"stochastic_steps": "all", "entries": "step", "algo": {**PPO, "ratio_level": "token"}},
    ],
    ids=["head", "lora", "all-steps"],
)
def test_training_changes_what_is_tuned_and_nothing_else(line, tmp_path, options):
    with build(line, tmp_path, **options) as run:
        run.plan()
        model = run._engine.trainer.actor.model
        before, trained = weights_of(run), set(model.trainable())
        run.train()
        after = weights_of(run)
        acting = run._engine.generators[0].actor.model
    held = {one.dtype for name, one in acting.named_parameters() if "to_q.weight" in name}
    assert held == {model.network.dtype}  # beside the trainer's fp32
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed <= trained
    assert len(changed) > 0.9 * len(trained)
    shared = [name for name, one in acting.named_parameters() if one is dict(model.named_parameters())[name]]
    assert set(shared) == set(before) - trained
    policy = rlvla.load(tmp_path / "run")
    loaded = dict(policy.model.named_parameters())
    assert all(torch.equal(after[name], loaded[name]) for name in trained)
    picture = np.zeros((8, 8, 3), np.uint8)
    seen = {"images": {"front": picture, "wrist": picture}, "state": np.zeros(2), "instruction": "reach the left"}
    assert policy.act(seen).shape == (2, 2)


def test_kept_features_are_found_by_the_trainer(line, tmp_path, monkeypatch):
    from rlvla_model_gr00t.features import FeatureBank

    found: list[bool] = []
    get = FeatureBank.get

    def counted(self, handles):
        features = get(self, handles)
        found.append(features is not None)
        return features

    monkeypatch.setattr(FeatureBank, "get", counted)
    with build(line, tmp_path, scheduler="full-async", keep_features=64) as run:
        run.train()
    assert found
    assert all(found)


def test_deterministic_schedulers_give_the_same_bits(line, tmp_path):
    found = []
    for scheduler in ("sync", "async-rollout"):
        with build(line, tmp_path / scheduler, scheduler=scheduler, run={"deterministic": True}) as run:
            run.train()
            found.append(weights_of(run))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_resumed_run_is_the_uninterrupted_one(line, tmp_path):
    found = []
    options = {"noise_level": 0.7, "noise_level_final": 0.2, "noise_anneal_steps": 2}
    for first in (2, 1):
        with build(line, tmp_path / str(first), run={"deterministic": True}, **options) as run:
            run.train(steps=first)
            found.append(weights_of(run))
    with rlvla.resume(tmp_path / "1/run") as run:
        run.train()
        found.append(weights_of(run))
    assert all(torch.equal(found[0][name], found[2][name]) for name in found[0])
    assert not all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_too_narrow_sequences_are_refused_before_a_simulator_starts(line, tmp_path):
    with (
        build(line, tmp_path, pad_to=40, run={"sim_in_process": False}) as run,
        pytest.raises(ConfigError, match=r"model\.pad_to: got 40, wanted \d+ or more: .* 'reach the left'"),
    ):
        run.train()
    assert not (tmp_path / "run/workers").exists()


def test_an_entropy_bonus_without_a_learned_deviation_is_refused(line, tmp_path):
    with pytest.raises(ConfigError, match="an entropy bonus changes nothing for gr00t"):
        build(line, tmp_path, algo={**PPO, "entropy_weight": 0.01})


GRPO = {"use": "grpo", "group_size": 2, "groups_per_step": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"algo": GRPO, "detach_critic": True},
            r"detach_critic: got True, .* without a value head \(grpo asks for none\)",
        ),
        (
            {"gripper_binary": False},
            r"gripper_binary: got False, which changes nothing without a gripper \(fake has none\)",
        ),
        ({"gripper_closes_at": "high"}, "gripper_closes_at: got 'high', .* without a gripper"),
        ({"gripper_range": (-1.0, 1.0)}, r"gripper_range: got \(-1\.0, 1\.0\), .* without a gripper"),
        (
            {"rotation": "euler_xyz"},
            "rotation: got 'euler_xyz', which changes nothing without a rotation delta",
        ),
    ],
)
def test_options_for_what_algorithm_or_robot_have_not_are_refused(line, tmp_path, options, words):
    with pytest.raises(ConfigError, match=rf"model\.{words}"):
        build(line, tmp_path, **options)


def test_a_saved_model_without_its_config_is_not_evaluated(line, tmp_path, capsys):
    with build(line, tmp_path, run={"steps": 1}, tune="lora", lora_rank=4) as run:
        run.train()
    (folder,) = (tmp_path / "run/checkpoints").glob("step_*/model")
    (folder / "config.json").unlink()
    assert cli.main(["eval", str(tmp_path / "run"), "--eval.episodes", "2"]) == 2
    assert "model holds no config.json" in capsys.readouterr().err


def test_commands(line, tmp_path, capsys):
    assert command(["tiny", str(tmp_path / "small")]) == 0
    assert (tmp_path / "small/model.safetensors.index.json").is_file()
    for words in (["tiny", str(tmp_path / "small")], ["tiny", "/dev/null/x"]):
        assert command(words) == 2
    said = capsys.readouterr().err
    assert "small: already there" in said
    assert "/dev/null/x cannot be written: " in said


def test_an_export_of_a_run_is_a_whole_checkpoint(line, tmp_path, monkeypatch):
    monkeypatch.chdir(line.parent)
    with build(Path(line.name), tmp_path, run={"steps": 1}) as run:
        run.train()
    monkeypatch.chdir(tmp_path)  # where the checkpoint's relative path is no folder
    assert cli.main(["export", "run", "out"]) == 0
    assert (tmp_path / "out/model.safetensors.index.json").is_file()
    assert rlvla.find("model", "gr00t").describe(run.config.model.plugin.config(path="out", horizon=2)).action_dim == 2
