"""Settings, robots and statistics that do not fit a checkpoint, or are damaged, are refused by their words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gr00t_worlds as worlds
import pytest
from gr00t_worlds import described

from rlvla.checks import check
from rlvla.configs import read
from rlvla.errors import CheckpointError, ConfigError
from rlvla.specs import ActionPart, Camera, StatePart
from rlvla.testing.damage import change, put
from rlvla_model_gr00t import tiny


def test_missing_metadata(copy):
    (copy / "experiment_cfg/metadata.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks experiment_cfg/metadata\.json, which holds the statistics"):
        described(copy)


def test_an_unknown_tag_lists_those_there_are(checkpoint):
    for tag in ("no_such_robot", None):
        with pytest.raises(ConfigError, match=r"model\.embodiment_tag: got .*, wanted one of gr1, new_embodiment"):
            described(checkpoint, embodiment_tag=tag)


@pytest.mark.parametrize(
    ("kind", "architecture", "words"),
    [
        ("Gr00tN1d6", "Gr00tN1d6", r"holds GR00T N1\.6 .*, wanted N1\.5"),
        ("Gr00tN1d7", "Gr00tN1d7", r"holds GR00T N1\.7 .*, wanted N1\.5"),
        ("gr00t_n1_6", "GR00T_N1_6", r"holds GR00T N1\.6 .*, wanted N1\.5"),
        ("openvla", "OpenVLA", "holds a 'openvla' model, wanted 'gr00t_n1_5'"),
    ],
)
def test_other_versions_are_named(copy, kind, architecture, words):
    change(copy / "config.json", model_type=kind, architectures=[architecture])
    with pytest.raises(CheckpointError, match=words):
        described(copy)


def test_an_absent_tokenizer_says_what_to_provide(tmp_path):
    place = tiny.write(tmp_path / "bare", action_dim=3, state_dim=4, tags=("gr1",), tokenizer=False)
    with pytest.raises(
        CheckpointError, match=r"(?s)model\.tokenizer_path: got None.*vocab\.json, merges\.txt and added_tok"
    ):
        described(place)
    with pytest.raises(CheckpointError, match=r"nowhere/at/all: no such folder"):
        described(place, tokenizer_path="/nowhere/at/all")
    elsewhere = tiny.write(tmp_path / "whole") / "eagle"
    assert described(place, tokenizer_path=str(elsewhere)).horizon == 2


def test_settings_that_contradict_the_checkpoint_are_all_named(checkpoint):
    options = {
        "horizon": 17,
        "gripper_range": (1.0, 0.0),
        "tune": "lora",
        "keep_features": 3,
        "language": "fp8",
        "lora_targets": (),
        "cameras": ("primary",),
        "state_keys": ("joints", "torso"),
        "normalisation": "q99",
    }
    with pytest.raises(ConfigError) as caught:
        described(checkpoint, **options)
    text = str(caught.value)
    for words in (
        "model.horizon: got 17, the head denoises 16 actions",
        "model.gripper_range: got (1.0, 0.0)",
        "model.keep_features: features change with adapters",
        "model.lora_targets: empty",
        "model.language: 'fp8' is of frozen weights",
        "model.cameras: got ('primary',), wanted a role for each of the 2 pictures that gr1 was trained with, each once: "
        "image, wrist_image",
        "model.state_keys: gr1 has no state torso; it has joints",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tune_vision": True}, r"model\.tune_vision: got True, which changes nothing without model\.tune 'lora'"),
        ({"lora_rank": 8}, r"model\.lora_rank: got 8, which changes nothing without model\.tune 'lora'"),
        ({"lora_alpha": 8.0}, r"model\.lora_alpha: got 8\.0"),
        ({"lora_targets": ("q_proj",)}, r"model\.lora_targets: got \('q_proj',\)"),
        (
            {"noise": "reinflow", "noise_level": 0.3},
            r"model\.noise_level: got 0\.3, .* without model\.noise 'flow_sde'",
        ),
        ({"noise": "reinflow", "noise_level_final": 0.3}, r"model\.noise_level_final: got 0\.3"),
        ({"noise_anneal_steps": 9}, r"model\.noise_anneal_steps: got 9, .* without model\.noise_level_final"),
        ({"noise": "flow_cps", "skip_last": True}, r"model\.skip_last: got True"),
        (
            {"embodiment_table": "nvidia", "embodiment_id": 3},
            r"embodiment_table: got 'nvidia', .* without model\.embodiment_id None",
        ),
        ({"state": "zeros", "state_keys": ("joints",)}, r"model\.state_keys: .* without model\.state 'given'"),
        ({"tune": "lora", "tune_vision": True, "lora_targets": ("gate_proj",)}, r"names no layer of the vision tower"),
    ],
)
def test_options_that_change_nothing_are_refused(checkpoint, options, words):
    with pytest.raises(ConfigError, match=words):
        described(checkpoint, **options)


def test_kept_features_need_a_length(checkpoint):
    with pytest.raises(ConfigError, match=r"model\.keep_features: features are as long as .* give model\.pad_to"):
        described(checkpoint, keep_features=3, padding="masked", pad_to=None)
    described(checkpoint, keep_features=3, padding="masked", pad_to=120)


def test_missing_statistics_are_named(copy):
    file = copy / "experiment_cfg/metadata.json"
    data = json.loads(file.read_text())
    del data["gr1"]["statistics"]["action"]["joints"]["q99"]
    data["gr1"]["statistics"]["state"]["joints"]["max"] = [1.0]
    data["gr1"]["statistics"]["state"]["joints"]["min"] = [0.0]
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"gr1 has no q99 of its action 'joints'; statistics there: max, mean"):
        described(copy, normalisation="q99")
    with pytest.raises(
        ConfigError, match=r"state 'joints' of gr1 has 4 dimensions and statistics of \{'min': 1, 'max': 1\}"
    ):
        described(copy)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"state": (StatePart("arm", 7),)}, r"gr1 has 4 state dimensions, the simulator gives 7 \(arm: 7\)"),
        ({"action": (ActionPart("arm", 5),)}, r"gr1 has 3 action dimensions, the simulator takes 5"),
        ({"cameras": (Camera("front", 32, 32),)}, r"the simulator offers no wrist"),
    ],
)
def test_another_robots_sizes_are_refused(checkpoint, spec, words):
    with pytest.raises(ConfigError, match=words):
        worlds.make(checkpoint, worlds.simulator_spec(**spec))


def test_sizes_are_compared_before_a_simulator_starts(checkpoint, tmp_path):
    model = {"use": "gr00t", "path": str(checkpoint), **worlds.COMMON}
    with pytest.raises(ConfigError, match=r"gr00t gives actions of 3 dimensions, fake takes 2"):
        check(read({"sim": "fake", "model": model, "algo": "ppo", "scheduler": "sync"}))
    five = tiny.write(tmp_path / "five", action_dim=2, state_dim=5, tags=("gr1",))
    with pytest.raises(ConfigError, match=r"gr00t reads states of 5 dimensions, fake gives 2 \(place: 1, goal: 1\)"):
        check(read({"sim": "fake", "model": model | {"path": str(five)}, "algo": "ppo", "scheduler": "sync"}))
    zeros = {**model, "path": str(five), "state": "zeros"}
    assert check(read({"sim": "fake", "model": zeros, "algo": "ppo", "scheduler": "sync"})).model.state_dim is None
    three = tiny.write(tmp_path, action_dim=2, state_dim=2, cameras=3, tags=("gr1",))
    model |= {"path": str(three), "cameras": ("primary", "wrist", "secondary")}
    with pytest.raises(ConfigError, match=r"fake offers primary, wrist: add secondary to the simulator"):
        check(read({"sim": "fake", "model": model, "algo": "ppo", "scheduler": "sync"}))


def test_unknown_adapter_targets_are_named(checkpoint):
    with pytest.raises(ConfigError, match=r"lora_targets: got fc1, wanted some of .*q_proj.* need model\.tune_vision"):
        worlds.make(checkpoint, tune="lora", lora_targets=("q_proj", "fc1"))


# ---- a robot's metadata -------------------------------------------------------------------------------------------------


def edited(copy: Path, *path: str, value) -> None:
    """Put a value into gr1's metadata."""
    put(copy / "experiment_cfg/metadata.json", ".".join(("gr1", *path)), value)


@pytest.mark.parametrize("part", ["state", "action"])
@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("min_max", "max", "most", r"joints\.max: got 'most', wanted a valid tuple"),
        ("min_max", "max", [1.0], r"has \d dimensions and statistics of \{'min': \d, 'max': 1\}"),
        ("min_max", "min", [math.nan, 0.0, 0.0, 0.0], r"joints\.min\.0: got nan, wanted a finite number"),
        ("min_max", "max", [1e39, 0.0, 0.0, 0.0], r"joints\.max\.0: got 1e\+39, wanted a number from -1e"),
        ("q99", "q99", [0.0, math.inf, 0.0, 0.0], r"joints\.q99\.1: got inf, wanted a finite number"),
        ("mean_std", "mean", [0.0, 0.0, None, 0.0], r"joints\.mean\.2: got None, wanted a valid number"),
        ("min_max", "max", [2.0, -2.0, 2.0, -2.0], r"got min above max .* in dimensions 1"),
        ("q99", "q01", [-2.0, 2.0, -2.0, -2.0], r"got q01 above q99 .* in dimensions 1"),
        ("mean_std", "std", [1.0, 1.0, -0.1, 1.0], r"a std below 0\) in dimensions 2"),
    ],
)
def test_damaged_statistics_are_named(copy, part, kind, name, value, words):
    size = {"state": 4, "action": 3}[part]
    edited(copy, "statistics", part, "joints", name, value=value[:size] if isinstance(value, list) else value)
    with pytest.raises((CheckpointError, ConfigError), match=words):
        described(copy, normalisation=kind)
    others = {"min_max", "q99", "mean_std"} - {kind}
    assert [described(copy, normalisation=other).horizon for other in others] == [
        2,
        2,
    ]  # what is not read does not matter


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("statistics",), {"state": []}, r"gr1 is damaged.*\n.*statistics\.state: got \[\], wanted a valid dictionary"),
        (("statistics",), None, r"statistics: got None"),
        (("statistics", "state", "joints"), [1], r"statistics\.state\.joints: got \[1\]"),
        (("modalities", "state"), "all", r"modalities\.state: got 'all'"),
        (("modalities", "video"), ["image"], r"modalities\.video: got \['image'\]"),
        (("modalities", "action", "joints"), 3, r"modalities\.action\.joints: got 3"),
        (
            ("modalities", "action", "joints", "shape"),
            [],
            r"shapes in gr1\.modalities\.action .*\n.*joints\.0: missing",
        ),
        (("modalities", "action", "joints", "shape"), ["three"], r"joints\.0: got 'three', wanted a valid integer"),
        (("modalities", "action", "joints", "shape"), None, r"joints\.0: got None"),
    ],
)
def test_damaged_metadata_is_named(copy, path, value, words):
    edited(copy, *path, value=value)
    with pytest.raises(CheckpointError, match=words):
        described(copy)


def test_a_robot_that_is_no_object(copy):
    change(copy / "experiment_cfg/metadata.json", gr1=7)
    with pytest.raises(CheckpointError, match=r"metadata\.json: gr1 is damaged"):
        described(copy)
    (copy / "experiment_cfg/metadata.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"model\.embodiment_tag: got 'gr1', wanted one of none"):
        described(copy)
