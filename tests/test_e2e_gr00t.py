"""GR00T N1.5 on real LIBERO, end to end on a CPU, from a tiny checkpoint in the public layout."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rlvla
from rlvla import cli, configs
from rlvla.errors import CheckpointError, ConfigError
from rlvla.policy import Policy

pytest.importorskip("rlvla_model_gr00t")
from rlvla_model_gr00t import tiny

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SIM = {"use": "libero", "suite": "libero_spatial", "num_envs": 2, "image_size": 64, "max_episode_steps": 20}
QUIET = {"without": ["tensorboard", "display"], "device": "cpu", "slots": 1}
ALGO = {"use": "ppo", "window": 2, "credit_level": "chunk", "ratio_level": "chunk", "passes": 1, "minibatch_size": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    place = tmp_path_factory.mktemp("gr00t") / "checkpoint"
    return tiny.write(place, tags=("libero_franka", "new_embodiment"))


def model(path: Path, **changes):
    keys = ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
    options = {"embodiment_tag": "libero_franka", "embodiment_table": "rlinf", "state_keys": keys, "action_keys": keys}
    sizes = {"mirrored": True, "horizon": 5, "dtype": "fp32", "pad_to": 128, "keep_features": 16}
    return {"use": "gr00t", "path": str(path), **options, **sizes, **changes}


def observation():
    generator = np.random.default_rng(0)
    pictures = {name: generator.integers(0, 256, (64, 64, 3), np.uint8) for name in ("agentview", "robot0_eye_in_hand")}
    return {"images": pictures, "state": np.zeros(8, np.float32), "instruction": "pick up the black bowl"}


def test_ppo_trains_resumes_is_evaluated_and_its_export_acts(checkpoint, tmp_path, capsys):
    options = {"directory": str(tmp_path), "name": "run", "steps": 1, **QUIET}
    train = {"learning_rate": 1e-3}
    with rlvla.build(sim=SIM, model=model(checkpoint), algo=ALGO, train=train, run=options) as run:
        run.train()
    with rlvla.resume(tmp_path / "run", {"run": {"steps": 2}}) as run:
        run.train()
        results = run.evaluate(episodes=2, tasks=[0])
    assert [(one.task, one.state, one.steps) for one in results.episodes] == [(0, 0, 20), (0, 1, 20)]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "rollout/episodes" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["train/generator_gap"] < 1e-4 for line in steps)
    assert all(line["train/samples"] == 4 for line in steps)
    saved = {file.name for file in (tmp_path / "run/checkpoints/step_000002/model").iterdir()}
    assert {"config.json", "experiment_cfg", "model.safetensors.index.json"} <= saved
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())["model"]
    assert manifest["embodiment"] == {"tag": "libero_franka", "row": 31}

    policy = rlvla.load(tmp_path / "run")
    chunk = policy.act(observation())
    assert chunk.shape == (5, 7)
    assert set(np.unique(chunk[:, 6])) <= {-1.0, 1.0}
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "whole")]) == 0
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "whole")]) == 2
    assert "already there" in capsys.readouterr().err
    exported = configs.read_choice("model", model(tmp_path / "whole"))
    sim = rlvla.find("sim", "libero").describe(run.config.sim.config)
    again = Policy(exported.plugin.load()(exported.config, sim, None, generator=torch.Generator()), sim)
    np.testing.assert_allclose(again.act(observation()), chunk, atol=0.05)  # weights were rounded to bf16


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"embodiment_tag": "so100"}, ConfigError, "wanted one of libero_franka, new_embodiment"),
        ({"embodiment_tag": "new_embodiment", "embodiment_table": None}, ConfigError, "nvidia 31, rlinf 10"),
        ({"cameras": ["primary", "wrist_left"]}, ConfigError, "libero offers primary, wrist: add wrist_left"),
        ({"cameras": ["primary"]}, ConfigError, "a role for each of the 2 pictures"),
        ({"action_keys": ["x", "y", "z"]}, ConfigError, "gives actions of 3 dimensions, libero takes 7"),
        ({"tokenizer_path": "/nowhere/at/all"}, CheckpointError, "no such folder"),
        ({"path": "/nowhere/at/all"}, CheckpointError, "no such folder"),
        ({"horizn": 8}, ConfigError, "Did you mean 'horizon'"),
    ],
)
def test_wrong_settings_end_before_anything_starts(checkpoint, changes, error, words):
    with pytest.raises(error, match=words):
        rlvla.build(sim=SIM, model=model(checkpoint) | changes, algo=ALGO)


def test_another_robots_state_ends_before_a_simulator_starts(tmp_path):
    seven = tiny.write(tmp_path / "arm", state_dim=7, tags=("libero_franka",))
    options = {"directory": str(tmp_path), "name": "run", "steps": 1, **QUIET}
    with (
        pytest.raises(ConfigError, match="libero_franka has 7 state dimensions, the simulator gives 8"),
        rlvla.build(sim=SIM, model=model(seven, state_keys=None), algo=ALGO, run=options) as run,
    ):
        run.train()
    assert not list((tmp_path / "run").glob("workers/*"))
