"""GR00T N1.5 on real LIBERO, end to end on a CPU, from a tiny checkpoint in the public layout."""

from pathlib import Path

import numpy as np
import pytest
from libero_rounds import QUIET, Round, sim

import rlvla
from rlvla.errors import CheckpointError, ConfigError

pytest.importorskip("rlvla_model_gr00t")
from rlvla_model_gr00t import tiny

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LIMIT = 20
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


def test_ppo_trains_resumes_is_evaluated_and_its_export_acts(checkpoint, tmp_path, capsys):
    done = Round(tmp_path, LIMIT)
    done.play(model(checkpoint), ALGO)
    assert all(line["train/generator_gap"] < 1e-4 for line in done.steps)
    assert all(line["train/samples"] == 4 for line in done.steps)
    assert {"config.json", "experiment_cfg", "model.safetensors.index.json"} <= done.saved()
    assert done.manifest()["embodiment"] == {"tag": "libero_franka", "row": 31}
    chunk = done.acts()
    assert chunk.shape == (5, 7)
    exported = done.acts_as(model(done.export(capsys)))
    np.testing.assert_allclose(exported, chunk, atol=0.05)  # weights were rounded to bf16


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
        rlvla.build(sim=sim(LIMIT), model=model(checkpoint) | changes, algo=ALGO)


def test_another_robots_state_ends_before_a_simulator_starts(tmp_path):
    seven = tiny.write(tmp_path / "arm", state_dim=7, tags=("libero_franka",))
    options = {"directory": str(tmp_path), "name": "run", "steps": 1, **QUIET}
    with pytest.raises(ConfigError, match="gr00t reads states of 7 dimensions, libero gives 8"):
        rlvla.build(sim=sim(LIMIT), model=model(seven, state_keys=None), algo=ALGO, run=options)
    assert not (tmp_path / "run").exists()
