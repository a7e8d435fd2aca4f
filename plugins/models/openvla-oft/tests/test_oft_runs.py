"""Whole runs on a fake simulator: every way to tune, decode and schedule, from a checkpoint to a loaded policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import rlvla
from rlvla import cli
from rlvla.errors import CheckpointError, ConfigError
from rlvla_model_openvla_oft import tiny
from rlvla_model_openvla_oft.__main__ import main as command

PPO = {"use": "ppo", "window": 2, "passes": 1, "ratio_level": "token", "minibatch_size": 4}
QUIET = {"without": ["tensorboard", "display"], "device": "cpu", "threads": 1, "slots": 1, "sim_in_process": True}


@pytest.fixture(scope="module")
def line(tmp_path_factory) -> Path:
    """A checkpoint for the fake simulator: two action and two state dimensions."""
    return tiny.write(tmp_path_factory.mktemp("line"), action_dim=2, state_dim=2)


@pytest.fixture(scope="module")
def headed_line(tmp_path_factory) -> Path:
    """The same with heads."""
    return tiny.write(tmp_path_factory.mktemp("headed"), action_dim=2, state_dim=2, heads=True)


def build(checkpoint: Path, place: Path, scheduler="sync", algo=PPO, train=None, run=None, **options):
    lora = {"lora_rank": 4} if options.get("tune", "lora") == "lora" else {}
    model = {"use": "openvla-oft", "path": str(checkpoint), "horizon": 2, "dtype": "fp32", **lora, **options}
    return rlvla.build(
        sim={"use": "fake", "num_envs": 2, "max_episode_steps": 6},
        model=model,
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
        {"keep_vision": True},
        {"tune_vision": True, "lora_targets": ("q_proj", "lm_head", "qkv", "proj"), "dtype": "bf16"},
        {"tune": "full", "dtype": "bf16"},
        {"head": "l1", "gaussian": "learned", "proprio": True},
        {"decoding": "autoregressive", "horizon": 1, "top_k": 9},
    ],
    ids=["lora", "vision", "full", "l1", "autoregressive"],
)
def test_training_changes_what_is_tuned_and_nothing_else(line, headed_line, tmp_path, options):
    with build(headed_line if "head" in options else line, tmp_path, **options) as run:
        run.plan()
        model = run._engine.trainer.actor.model
        before, trained = weights_of(run), set(model.trainable())
        run.train()
        after = weights_of(run)
        acting = run._engine.generators[0].actor.model
    held = {one.dtype for name, one in acting.named_parameters() if "q_proj.weight" in name}
    assert held <= {model.network.dtype}  # bf16 beside the trainer's fp32
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
    assert policy.act(seen).shape == (options.get("horizon", 2), 2)


def test_deterministic_schedulers_give_the_same_bits(line, tmp_path):
    found = []
    for scheduler in ("sync", "async-rollout"):
        fixed = {"deterministic": True}
        with build(line, tmp_path / scheduler, scheduler=scheduler, run=fixed, prompt_tokens=48) as run:
            run.train()
            found.append(weights_of(run))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_resumed_run_is_the_uninterrupted_one(line, tmp_path):
    found = []
    for first in (2, 1):
        with build(line, tmp_path / str(first), run={"deterministic": True}, prompt_tokens=48) as run:
            run.train(steps=first)
            found.append(weights_of(run))
    with rlvla.resume(tmp_path / "1/run") as run:
        run.train()
        found.append(weights_of(run))
    assert all(torch.equal(found[0][name], found[2][name]) for name in found[0])
    assert not all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_acting_by_other_products_wants_log_probs_evaluated_again(line, tmp_path):
    """Ratios at equal weights are 1 then; else they are what FP8 makes of them."""
    with pytest.raises(
        ConfigError, match=r"algo\.proximal: got 'stale'.*openvla-oft acts by other products.*'recompute'"
    ):
        build(line, tmp_path, rollout="fp8")
    with build(line, tmp_path, algo={**PPO, "proximal": "recompute"}, rollout="fp8") as run:
        run.train(steps=1)
    (step,) = [json.loads(text) for text in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][:1]
    assert step["train/ratio"] == pytest.approx(1.0, abs=1e-6)


def test_a_run_without_anything_to_train_says_so(line, tmp_path):
    grpo = {"use": "grpo", "group_size": 2, "groups_per_step": 1}
    with (
        build(line, tmp_path, algo=grpo, tune="heads") as run,
        pytest.raises(ConfigError, match=r"model\.tune: 'heads' trains nothing here"),
    ):
        run.train()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"gripper_binary": False},
            r"gripper_binary: got False, which changes nothing without a gripper \(fake has none\)",
        ),
        (
            {"rotation": "euler_xyz"},
            "rotation: got 'euler_xyz', which changes nothing without a rotation delta",
        ),
    ],
)
def test_options_for_what_the_robot_has_not_are_refused(line, tmp_path, options, words):
    with pytest.raises(ConfigError, match=rf"model\.{words}"):
        build(line, tmp_path, **options)


def test_a_saved_model_without_its_config_is_not_evaluated(line, tmp_path, capsys):
    with build(line, tmp_path, run={"steps": 1}) as run:
        run.train()
    (folder,) = (tmp_path / "run/checkpoints").glob("step_*/model")
    (folder / "config.json").unlink()
    assert cli.main(["eval", str(tmp_path / "run"), "--eval.episodes", "2"]) == 2
    assert "model lacks config.json" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=r"model lacks config\.json, which was written with rlvla_heads"):
        build(folder, tmp_path / "on")


def test_commands(line, tmp_path, capsys):
    assert command(["tiny", str(tmp_path / "small")]) == 0
    assert (tmp_path / "small/model.safetensors.index.json").is_file()
    for words in (["tiny", str(tmp_path / "small")], ["tiny", "/dev/null/x"]):
        assert command(words) == 2
    said = capsys.readouterr().err
    assert "small: already there" in said
    assert "/dev/null/x cannot be written: " in said


def test_an_export_of_a_run_is_a_whole_checkpoint(line, tmp_path):
    with build(line, tmp_path, run={"steps": 1}) as run:
        run.train()
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "merged")]) == 0
    assert (tmp_path / "merged/model.safetensors.index.json").is_file()


def test_a_resumed_run_keeps_scale_cameras_and_base_weights(line, tmp_path, monkeypatch):
    base = Path(shutil.copytree(line, tmp_path / "base"))
    monkeypatch.chdir(tmp_path)
    with build(Path("base"), Path("runs"), run={"steps": 1}) as run:
        run.train()
        trained = weights_of(run)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where "base" is no folder
    place = tmp_path / "runs/run"
    loaded = dict(rlvla.load(place).model.named_parameters())
    assert all(torch.equal(loaded[name], one) for name, one in trained.items())
    for change, words in (
        ({"lora_alpha": 64}, r"has alpha 4; model\.lora_alpha makes it 64 here: leave it as it was trained"),
        ({"lora_rank": 8}, r"has rank 4; model\.lora_rank makes it 8 here"),
        ({"cameras": ["primary", "wrist"]}, r"was trained with 1 in this order: primary"),
    ):
        with (
            rlvla.resume(place, {"model": change, "run": {"steps": 2}}) as run,
            pytest.raises(CheckpointError, match=words),
        ):
            run.train()
    shard = base / "model-00002-of-00002.safetensors"
    save_file({name: one * 1.5 for name, one in load_file(shard).items()}, shard)
    with (
        rlvla.resume(place) as run,
        pytest.raises(CheckpointError, match=rf"(?s)was trained on other weights than .*{shard.name}: got .*, wanted "),
    ):
        run.evaluate()
