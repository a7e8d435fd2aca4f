"""OpenVLA-OFT on real LIBERO, end to end on a CPU, from a tiny checkpoint in the public layout."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rlvla
from rlvla import cli, configs
from rlvla.errors import CheckpointError, ConfigError
from rlvla.policy import Policy

pytest.importorskip("rlvla_model_openvla_oft")
from rlvla_model_openvla_oft import tiny

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SIM = {"use": "libero", "suite": "libero_spatial", "num_envs": 2, "image_size": 64, "max_episode_steps": 8}
QUIET = {"without": ["tensorboard", "display"], "device": "cpu", "slots": 1}
ALGO = {"use": "grpo", "ratio_level": "token", "group_size": 2, "groups_per_step": 1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    place = tmp_path_factory.mktemp("oft") / "checkpoint"
    return tiny.write(place, data_sets=("libero_spatial_no_noops", "libero_goal_no_noops"))


def model(path: Path, **changes):
    options = {"preset": "rlinf", "mirrored": True, "cameras": ["primary", "wrist"], "horizon": 4, "dtype": "fp32"}
    return {
        "use": "openvla-oft",
        "path": str(path),
        "unnorm_key": "libero_spatial",
        "lora_rank": 4,
        **options,
        **changes,
    }


def observation():
    generator = np.random.default_rng(0)
    pictures = {name: generator.integers(0, 256, (64, 64, 3), np.uint8) for name in ("agentview", "robot0_eye_in_hand")}
    return {"images": pictures, "state": np.zeros(8, np.float32), "instruction": "pick up the black bowl"}


def test_grpo_trains_resumes_is_evaluated_and_its_merged_export_acts(checkpoint, tmp_path, capsys):
    options = {"directory": str(tmp_path), "name": "run", "steps": 1, **QUIET}
    train = {"learning_rate": 1e-3}
    with rlvla.build(sim=SIM, model=model(checkpoint), algo=ALGO, train=train, run=options) as run:
        run.train()
    with rlvla.resume(tmp_path / "run", {"run": {"steps": 2}}) as run:
        run.train()
        results = run.evaluate(episodes=2, tasks=[0])
    assert [(one.task, one.state, one.steps) for one in results.episodes] == [(0, 0, 8), (0, 1, 8)]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "rollout/episodes" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["train/generator_gap"] < 1e-5 for line in steps)
    saved = {file.name for file in (tmp_path / "run/checkpoints/step_000002/model").iterdir()}
    assert "adapter_model.safetensors" in saved
    assert not [name for name in saved if name.startswith("model")]
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())["model"]
    assert manifest["statistics"] == "libero_spatial_no_noops"

    policy = rlvla.load(tmp_path / "run")
    chunk = policy.act(observation())
    assert chunk.shape == (4, 7)
    assert set(np.unique(chunk[:, 6])) <= {-1.0, 1.0}
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "merged")]) == 0
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "merged")]) == 2
    assert "already there" in capsys.readouterr().err
    exported = configs.read_choice("model", model(tmp_path / "merged"))
    sim = rlvla.find("sim", "libero").describe(run.config.sim.config)
    again = Policy(exported.plugin.load()(exported.config, sim, None, generator=torch.Generator()), sim)
    assert again.act(observation()).shape == (4, 7)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"unnorm_key": "bridge_orig"}, ConfigError, "wanted one of libero_goal_no_noops, libero_spatial_no_noops"),
        ({"cameras": ["primary", "wrist_left"]}, ConfigError, "libero offers primary, wrist: add wrist_left"),
        ({"path": "/nowhere/at/all"}, CheckpointError, "no such folder"),
        ({"horizn": 8}, ConfigError, "Did you mean 'horizon'"),
    ],
)
def test_wrong_settings_end_before_anything_starts(checkpoint, changes, error, words):
    with pytest.raises(error, match=words):
        rlvla.build(sim=SIM, model=model(checkpoint) | changes, algo=ALGO)


def test_statistics_of_another_robot_end_before_anything_starts(tmp_path):
    two_arms = tiny.write(tmp_path / "aloha", action_dim=14, state_dim=14, data_sets=("aloha",))
    with pytest.raises(ConfigError, match="openvla-oft gives actions of 14 dimensions, libero takes 7"):
        rlvla.build(sim=SIM, model=model(two_arms, unnorm_key="aloha"), algo=ALGO)
