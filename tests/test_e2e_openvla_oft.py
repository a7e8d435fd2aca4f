"""OpenVLA-OFT on real LIBERO, end to end on a CPU, from a tiny checkpoint in the public layout."""

from pathlib import Path

import pytest
import torch
from libero_rounds import Round, sim, weights

import rlvla
from rlvla.errors import CheckpointError, ConfigError

pytest.importorskip("rlvla_model_openvla_oft")
from rlvla_model_openvla_oft import tiny

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LIMIT = 8
ALGO = {"use": "grpo", "ratio_level": "token", "group_size": 2, "groups_per_step": 1, "entropy_weight": 0.1}
"""A random policy solves nothing: all rewards of a group are equal, and entropy alone moves weights."""


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


def test_grpo_trains_resumes_is_evaluated_and_its_merged_export_acts(checkpoint, tmp_path, capsys):
    done = Round(tmp_path, LIMIT)
    done.play(model(checkpoint), ALGO)
    assert all(line["train/generator_gap"] < 1e-5 for line in done.steps)
    assert all(line["train/grad_norm"] > 0 for line in done.steps)
    assert done.learnt("lora_B") > 1e-5
    assert not [name for name in done.saved() if name.startswith("model")]
    assert done.manifest()["statistics"] == "libero_spatial_no_noops"
    acted = done.acts()
    assert acted.shape == (4, 7)
    merged = done.export(capsys)
    assert done.acts_as(model(merged)).shape == (4, 7)
    assert weights(merged).keys() == weights(checkpoint).keys()
    changed = [name for name, value in weights(merged).items() if not torch.equal(value, weights(checkpoint)[name])]
    assert changed and all("language_model" in name for name in changed)


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
        rlvla.build(sim=sim(LIMIT), model=model(checkpoint) | changes, algo=ALGO)


def test_statistics_of_another_robot_end_before_anything_starts(tmp_path):
    two_arms = tiny.write(tmp_path / "aloha", action_dim=14, state_dim=14, data_sets=("aloha",))
    with pytest.raises(ConfigError, match="openvla-oft gives actions of 14 dimensions, libero takes 7"):
        rlvla.build(sim=sim(LIMIT), model=model(two_arms, unnorm_key="aloha"), algo=ALGO)
