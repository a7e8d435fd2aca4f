"""Checkpoints: read strictly, written in the public layout, and every damaged or foreign one refused by its words."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import gr00t_worlds as worlds
import pytest
import torch
from safetensors.torch import load_file, save_file

import rlvla
from rlvla.checks import check
from rlvla.configs import read
from rlvla.errors import CheckpointError, ConfigError
from rlvla.networks.linear import without_adapters
from rlvla.specs import ActionPart, Camera, StatePart
from rlvla_model_gr00t import tiny
from rlvla_model_gr00t.files import LM_HEAD, is_embodied
from rlvla_model_gr00t.header import TOKENIZER, HeadShape, QwenShape, SiglipShape, read_header

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change(file: Path, **values) -> None:
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, **values}))


def rewrite(file: Path, **changes: torch.Tensor | None) -> None:
    weights = {**load_file(file), **changes}
    save_file({name: one for name, one in weights.items() if one is not None}, file)


def described(path: Path, **options):
    plugin = rlvla.find("model", "gr00t")
    return plugin.describe(plugin.config(**worlds.settings(path, **options)))


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: one for file in sorted(folder.glob("model*.safetensors")) for name, one in load_file(file).items()}


# ---- whole checkpoints ------------------------------------------------------------------------------------------------


def test_an_untrained_export_is_the_checkpoint_bit_for_bit(checkpoint, tmp_path):
    worlds.make(checkpoint, dtype="bf16").export(tmp_path / "out")
    before, after = stored(checkpoint), stored(tmp_path / "out")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert described(tmp_path / "out").action_dim == 3
    assert json.loads((tmp_path / "out/config.json").read_text()) == json.loads(
        (checkpoint / "config.json").read_text()
    )


def trained(checkpoint, **options):
    """Return a model whose weights moved by less than bf16 can tell."""
    model = worlds.make(checkpoint, **options)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.0001)
    return model


def widen(folder: Path, prefix: str) -> None:
    """Store some weights in fp32."""
    for file in sorted(folder.glob("model*.safetensors")):
        rewrite(file, **{name: one.float() for name, one in load_file(file).items() if name.startswith(prefix)})


def test_an_export_keeps_the_dtype_of_each_public_weight(copy, tmp_path):
    widen(copy, "action_head.")
    model, seen = trained(copy), worlds.observation(3)
    model.export(tmp_path / "out")
    before, after = stored(copy), stored(tmp_path / "out")
    assert {name: one.dtype for name, one in after.items()} == {name: one.dtype for name, one in before.items()}
    wanted, found = (worlds.act(one, seen) for one in (model, worlds.make(tmp_path / "out")))
    assert torch.equal(found.actions, wanted.actions)
    assert torch.equal(found.logp, wanted.logp)
    assert torch.equal(found.value, wanted.value)


def test_an_export_rounds_nothing_when_fp32_is_asked_for(checkpoint, tmp_path):
    model, seen = trained(checkpoint), worlds.observation(3)
    model.save(tmp_path / "run")
    again = worlds.make(tmp_path / "run")  # its public weights are the base's, not the run's
    for number, one in enumerate((model, again)):
        one.export(tmp_path / f"exact{number}", "fp32")
        one.export(tmp_path / f"kept{number}")
        exact, kept = (worlds.make(tmp_path / f"{name}{number}") for name in ("exact", "kept"))
        assert torch.equal(worlds.act(exact, seen).logp, worlds.act(model, seen).logp)
        assert not torch.equal(worlds.act(kept, seen).logp, worlds.act(model, seen).logp)
        assert {one.dtype for one in stored(tmp_path / f"exact{number}").values()} == {torch.float32}
        assert {one.dtype for one in stored(tmp_path / f"kept{number}").values()} == {torch.bfloat16}


def test_an_export_takes_a_tokenizer_of_the_folder_along(checkpoint, tmp_path):
    copied, out = tmp_path / "own", tmp_path / "out"
    shutil.copytree(checkpoint, copied)
    for name in TOKENIZER:
        if (copied / "eagle" / name).is_file():
            (copied / "eagle" / name).rename(copied / name)
    model, seen = worlds.make(copied, dtype="bf16"), worlds.observation(2)
    model.export(out)
    assert model.header.tokenizer(None) == copied and worlds.make(out).header.tokenizer(None) == out
    again = worlds.make(out, dtype="bf16")
    assert torch.equal(worlds.act(again, seen).actions, worlds.act(model, seen).actions)


def test_training_changes_one_row_of_a_file_and_the_others_stay(checkpoint, tmp_path):
    model, seen = worlds.make(checkpoint), worlds.observation(3)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.5)
    model.save(tmp_path / "run")
    before, after = stored(checkpoint), stored(tmp_path / "run")
    rows = [name for name in after if is_embodied(name)]
    assert len(rows) == 14
    for name in rows:
        others = torch.arange(32) != 24
        assert torch.equal(after[name][others], before[name].float()[others])
        assert not torch.equal(after[name][24], before[name][24].float())
    again = worlds.make(tmp_path / "run")
    assert torch.equal(worlds.act(again, seen).replay["chain"], worlds.act(model, seen).replay["chain"])
    assert torch.equal(worlds.act(again, seen).value, worlds.act(model, seen).value)
    again.save(tmp_path / "further")
    assert json.loads((tmp_path / "further/config.json").read_text())["rlvla_base"] == str(checkpoint)
    assert not [name for name in after if name.startswith("backbone.")]


def test_a_merged_export_acts_alike(checkpoint, tmp_path):
    options = {"tune": "lora", "tune_vision": True, "lora_targets": ("q_proj", "down_proj", "fc1")}
    model, seen = worlds.make(checkpoint, **options), worlds.observation(3)
    model.export(tmp_path / "out")
    merged = worlds.act(worlds.make(tmp_path / "out"), seen)
    adapted = worlds.act(model, seen)
    torch.testing.assert_close(merged.value, adapted.value, rtol=0, atol=0.05)  # weights were rounded to bf16
    with without_adapters():
        plain = worlds.act(model, seen)
    far = (plain.value - adapted.value).abs().mean()
    assert (merged.value - adapted.value).abs().mean() < 0.2 * far


def test_a_saved_adapter_goes_on_where_it_was(checkpoint, tmp_path):
    model, seen = worlds.make(checkpoint, tune="lora"), worlds.observation(3)
    model.save(tmp_path / "run")
    other = worlds.make(checkpoint, tune="lora", seed=5)
    other.load(tmp_path / "run")
    assert torch.equal(worlds.act(other, seen).value, worlds.act(model, seen).value)
    with pytest.raises(ConfigError, match=r"model\.tune: got 'head', but .* holds a LoRA adapter"):
        described(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"model\.lora_rank: got 8, the adapter in .* has rank 4"):
        described(tmp_path / "run", tune="lora", lora_rank=8)
    change(tmp_path / "run/adapter_config.json", lora_alpha=40.0)
    stronger = worlds.make(tmp_path / "run", tune="lora")
    assert not torch.equal(worlds.act(stronger, seen).value, worlds.act(model, seen).value)
    with pytest.raises(ConfigError, match=r"model\.lora_alpha: got 4, the adapter in .* has alpha 40: leave"):
        described(tmp_path / "run", tune="lora", lora_alpha=4.0)
    change(tmp_path / "run/adapter_config.json", use_dora=True)
    with pytest.raises(CheckpointError, match=r"use_dora True .*not plain LoRA"):
        described(tmp_path / "run", tune="lora")
    with pytest.raises(CheckpointError, match="holds no LoRA adapter"):
        worlds.make(checkpoint).save(tmp_path / "plain")
        model.load(tmp_path / "plain")


def test_weights_that_changed_below_a_trained_head_are_refused(copy, checkpoint, tmp_path):
    base = copy.rename(tmp_path / "base")
    model = worlds.make(base)
    model.save(tmp_path / "trained")
    worlds.make(checkpoint).load(tmp_path / "trained")  # the same weights elsewhere
    worlds.make(base, tune="lora").save(tmp_path / "adapter")
    name = "backbone.eagle_model.mlp1.0.bias"
    rewrite(base / SHARD, **{name: torch.ones(32, dtype=torch.bfloat16)})
    words = rf"(?s)trained was trained on other weights than .*base holds now.*{SHARD}: got \d+ bytes, .*, wanted \d+ bytes, "
    with pytest.raises(CheckpointError, match=words):
        worlds.make(tmp_path / "trained")
    with pytest.raises(CheckpointError, match=words):
        worlds.make(base).load(tmp_path / "trained")
    with pytest.raises(CheckpointError, match="adapter was trained on other weights than"):
        worlds.make(tmp_path / "adapter", tune="lora")
    model.load(tmp_path / "trained")  # still holds the old ones
    assert model.manifest()["files"] == json.loads((tmp_path / "trained/config.json").read_text())["rlvla_base_files"]
    model.export(tmp_path / "out")
    assert not [one for one in json.loads((tmp_path / "out/config.json").read_text()) if one.startswith("rlvla_")]


def test_a_base_that_is_gone_itself_or_no_whole_model_is_named(checkpoint, tmp_path):
    for name in ("one", "run"):
        worlds.make(checkpoint).save(tmp_path / name)
    for named, words in (
        (
            "/nowhere/at/all",
            "the base that .*run names, /nowhere/at/all, cannot be had: base of .*run: /nowhere/at/all: no such folder",
        ),
        (str(tmp_path / "run"), "run names itself as its base"),
        (str(tmp_path / "one"), "holds no whole model but an adapter or heads: write the whole of it first"),
    ):
        change(tmp_path / "run/config.json", rlvla_base=named)
        with pytest.raises(CheckpointError, match=words):
            described(tmp_path / "run")


def test_the_embeddings_may_be_stored_twice(tmp_path):
    twice = tiny.write(tmp_path / "twice", action_dim=3, state_dim=4, tags=("gr1",), lm_head=True)
    once = tiny.write(tmp_path / "once", action_dim=3, state_dim=4, tags=("gr1",))
    assert LM_HEAD in stored(twice)
    seen = worlds.observation(2)
    chains = [worlds.act(worlds.make(path, values=None), seen).replay["chain"] for path in (twice, once)]
    assert torch.equal(*chains)


def test_a_value_head_is_taken_where_it_fits_and_fresh_where_it_does_not(checkpoint, tmp_path, caplog):
    assert torch.equal(
        worlds.make(checkpoint).network.action_head.value_head.mlp[0].weight,
        stored(checkpoint)["action_head.value_head.mlp.0.weight"].float(),
    )
    wide = worlds.make(checkpoint, values="action")
    assert "has no value_head of this width: it starts fresh" in caplog.text
    assert wide.network.action_head.value_head.mlp[6].weight.shape == (2, 256)
    bare = tiny.write(tmp_path / "bare", action_dim=3, state_dim=4, tags=("gr1",))
    caplog.clear()
    assert worlds.make(bare).network.layout.values == 1
    assert not caplog.text


def test_learned_noise_is_kept_beside_the_public_files(checkpoint, tmp_path):
    model, seen = worlds.make(checkpoint, noise="reinflow"), worlds.observation(2)
    model.save(tmp_path / "run")
    again = worlds.make(tmp_path / "run", noise="reinflow", seed=9)
    assert torch.equal(worlds.act(again, seen).logp, worlds.act(model, seen).logp)
    with pytest.raises(CheckpointError, match=r"rlvla_heads\.safetensors does not hold .*\n  unexpected \(6\)"):
        worlds.make(checkpoint).load(tmp_path / "run")


def test_eagles_sizes_may_stand_beside_the_config(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "eagle/config.json").write_text(json.dumps(config.pop("eagle_config")))
    (copy / "config.json").write_text(json.dumps(config))
    assert worlds.make(copy).header.qwen.vocab_size == 512


# ---- what is refused --------------------------------------------------------------------------------------------------


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


def test_an_export_of_a_drawn_checkpoint_holds_what_was_trained(tmp_path):
    place = tiny.write(tmp_path / "drawn", action_dim=3, state_dim=4, tags=("gr1",), weights=False)
    model, seen = worlds.make(place), worlds.observation(3)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.5)
    model.weights_changed(1)
    model.export(tmp_path / "out")
    assert "rlvla_random" not in json.loads((tmp_path / "out/config.json").read_text())
    exported = worlds.act(worlds.make(tmp_path / "out"), seen)
    torch.testing.assert_close(exported.value, worlds.act(model, seen).value, rtol=0.02, atol=0.02)


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


def test_damaged_weights_are_reported(copy):
    name = "backbone.eagle_model.mlp1.0.bias"
    rewrite(copy / SHARD, **{name: None, "something.else": torch.zeros(2)})
    with pytest.raises(
        CheckpointError, match=r"(?s)missing \(1 of \d+\): backbone\.eagle_model\.mlp1\.\*\.bias.*unexpected"
    ):
        worlds.make(copy)
    rewrite(copy / SHARD, **{name: torch.full((32,), torch.nan)})
    with pytest.raises(
        CheckpointError, match=r"holds weights that are not finite: backbone\.eagle_model\.mlp1\.\*\.bias"
    ):
        worlds.make(copy)
    (copy / SHARD).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {SHARD}, named in its index: download it again"):
        described(copy)


def test_embodiments_rows_of_another_count_are_reported(copy):
    files = [file for file in copy.glob("model*.safetensors") if "action_head.action_encoder.W1.b" in load_file(file)]
    rewrite(files[0], **{"action_head.action_encoder.W1.b": torch.zeros(16, 24)})
    with pytest.raises(
        CheckpointError, match=r"of another shape \(1\): action_head\.action_encoder\.W1\.b: \(16, 24\) there"
    ):
        worlds.make(copy)


def edited(copy: Path, *path: str, value) -> None:
    """Put a value into gr1's metadata."""
    file = copy / "experiment_cfg/metadata.json"
    data = json.loads(file.read_text())
    place = data["gr1"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(data))


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


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            ("action_head_cfg", "hidden_size"),
            "large",
            r"action_head_cfg\.hidden_size: got 'large', wanted a valid integer",
        ),
        (
            ("action_head_cfg", "action_horizon"),
            0,
            r"action_head_cfg\.action_horizon: got 0, wanted greater than or equal",
        ),
        (("action_head_cfg", "max_state_dim"), 1.5, r"action_head_cfg\.max_state_dim: got 1\.5"),
        (("action_head_cfg", "max_num_embodiments"), [32], r"max_num_embodiments: got \[32\]"),
        (("action_head_cfg", "use_vlln"), False, r"action_head_cfg\.use_vlln: got False, wanted True"),
        (("action_head_cfg", "add_pos_embed"), False, r"action_head_cfg\.add_pos_embed: got False, wanted True"),
        (("action_head_cfg", "diffusion_model_cfg", "num_layers"), 0, r"diffusion_model_cfg\.num_layers: got 0"),
        (("action_head_cfg", "vl_self_attention_cfg"), 4, r"vl_self_attention_cfg: got 4, wanted a dictionary"),
        (("action_head_cfg",), "none", r"action_head_cfg: got 'none', wanted a dictionary"),
        (("backbone_cfg",), [1], r"backbone_cfg: got \[1\]"),
        (("backbone_cfg", "select_layer"), "twelve", r"backbone_cfg\.select_layer: got 'twelve'"),
        (("backbone_cfg", "select_layer"), -1, r"backbone_cfg\.select_layer: got -1"),
        (("eagle_config",), "siglip", r"eagle_config: got 'siglip'"),
        (("eagle_config", "vision_config"), None, r"eagle_config\.vision_config: got None"),
        (("eagle_config", "vision_config", "patch_size"), "14", None),
        (("eagle_config", "vision_config", "image_size"), {}, r"vision_config\.image_size: got \{\}"),
        (("eagle_config", "text_config", "rms_norm_eps"), math.nan, r"text_config\.rms_norm_eps: got nan"),
        (("eagle_config", "text_config", "rope_theta"), "x", r"text_config\.rope_theta: got 'x'"),
        (("eagle_config", "text_config", "head_dim"), 7, r"sizes do not go together, wanted: head_dim is even"),
        (("eagle_config", "text_config", "num_key_value_heads"), 3, r"heads are a multiple of num_key_value_heads"),
        (("eagle_config", "vision_config", "num_attention_heads"), 5, r"hidden_size is a multiple of its heads"),
        (("eagle_config", "image_token_index"), None, r"eagle_config\.image_token_index: got None"),
        (("eagle_config", "image_token_index"), 99999, r"image_token_index is below vocab_size"),
        (("rlvla_base",), 3, r"rlvla_base: got 3, wanted a valid string"),
        (("rlvla_random",), "seed", r"rlvla_random: got 'seed'"),
    ],
)
def test_damaged_sizes_are_named(copy, path, value, words):
    file = copy / "config.json"
    data = json.loads(file.read_text())
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(data))
    if words is None:  # a number in quotes is the number
        assert described(copy).horizon == 2
        return
    with pytest.raises(CheckpointError, match=words):
        described(copy)


PUBLISHED = {
    "model_type": "gr00t_n1_5",
    "architectures": ["GR00T_N1_5"],
    "action_dim": 32,
    "action_horizon": 16,
    "hidden_size": 2048,
    "model_dtype": "float32",
    "torch_dtype": "bfloat16",
    "compute_dtype": "bfloat16",
    "attn_implementation": None,
    "backbone_cfg": {
        "eagle_path": "some/where",
        "load_bf16": False,
        "project_to_dim": None,
        "reproject_vision": False,
        "select_layer": 12,
        "tune_llm": False,
        "tune_visual": True,
        "use_flash_attention": True,
    },
    "action_head_cfg": {
        "action_dim": 32,
        "action_horizon": 16,
        "add_pos_embed": True,
        "backbone_embedding_dim": 2048,
        "diffusion_model_cfg": {
            "attention_head_dim": 48,
            "cross_attention_dim": 2048,
            "dropout": 0.2,
            "final_dropout": True,
            "interleave_self_attention": True,
            "norm_type": "ada_norm",
            "num_attention_heads": 32,
            "num_layers": 16,
            "output_dim": 1024,
            "positional_embeddings": None,
        },
        "hidden_size": 1024,
        "input_embedding_dim": 1536,
        "max_action_dim": 32,
        "max_state_dim": 64,
        "model_dtype": "float32",
        "noise_beta_alpha": 1.5,
        "noise_beta_beta": 1.0,
        "noise_s": 0.999,
        "num_inference_timesteps": 4,
        "num_target_vision_tokens": 32,
        "num_timestep_buckets": 1000,
        "tune_diffusion_model": True,
        "tune_projector": True,
        "use_vlln": True,
        "vl_self_attention_cfg": {
            "attention_head_dim": 64,
            "dropout": 0.2,
            "final_dropout": True,
            "num_attention_heads": 32,
            "num_layers": 4,
            "positional_embeddings": None,
        },
    },
}
"""``config.json`` as published, whose values are this package's defaults."""
EAGLE = {
    "model_type": "eagle_2_5_vl",
    "architectures": ["Eagle2_5_VLForConditionalGeneration"],
    "downsample_ratio": 0.5,
    "force_image_size": 224,
    "image_token_index": 151669,
    "mlp_connector_layers": 1,
    "select_layer": -1,
    "use_pixel_shuffle": False,
    "text_config": {
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151680,
    },
    "vision_config": {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "image_size": 224,
        "intermediate_size": 4304,
        "layer_norm_eps": 1e-6,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}
"""The backbone's, as its package has it."""


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "eagle"])
def test_the_published_config_is_the_network_that_is_here(copy, beside):
    (copy / "config.json").write_text(json.dumps(PUBLISHED))
    if beside:
        (copy / "eagle/config.json").write_text(json.dumps(EAGLE))
    found = read_header(copy)
    assert (found.siglip, found.qwen, found.image_token) == (SiglipShape(), QwenShape(), 151669)
    sizes = asdict(found.head)
    for name, wanted in asdict(HeadShape()).items():
        assert sizes[name] == ({**sizes[name], **wanted} if isinstance(wanted, dict) else wanted)
    assert described(copy).horizon == 2


def put(file: Path, path: str, value) -> None:
    """Put a value into a JSON file."""
    data = json.loads(file.read_text())
    *above, last = path.split(".")
    place = data
    for name in above:
        place = place[name]
    place[last] = value
    file.write_text(json.dumps(data))


DIFFUSION, CONTEXT = "action_head_cfg.diffusion_model_cfg", "action_head_cfg.vl_self_attention_cfg"


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        (f"{DIFFUSION}.activation_fn", "geglu", "'gelu-approximate'"),
        (f"{DIFFUSION}.attention_bias", False, "True"),
        (f"{DIFFUSION}.norm_type", "layer_norm", "'ada_norm'"),
        (f"{DIFFUSION}.norm_elementwise_affine", True, "False"),
        (f"{DIFFUSION}.norm_eps", 1e-6, "1e-05"),
        (f"{DIFFUSION}.positional_embeddings", "sinusoidal", "None"),
        (f"{DIFFUSION}.interleave_self_attention", False, "True"),
        (f"{CONTEXT}.activation_fn", "gelu", "'gelu-approximate'"),
        (f"{CONTEXT}.attention_bias", False, "True"),
        (f"{CONTEXT}.norm_type", "ada_norm", "'layer_norm'"),
        (f"{CONTEXT}.norm_eps", 1e-6, "1e-05"),
        (f"{CONTEXT}.positional_embeddings", "sinusoidal", "None"),
        ("backbone_cfg.project_to_dim", 1536, "None"),
        ("backbone_cfg.reproject_vision", True, "False"),
        ("eagle_config.use_pixel_shuffle", True, "False"),
        ("eagle_config.mlp_connector_layers", 2, "1"),
        ("eagle_config.select_layer", -2, "-1"),
        ("eagle_config.vision_config.model_type", "clip_vision_model", "'siglip_vision_model'"),
        ("eagle_config.vision_config.hidden_act", "gelu", "'gelu_pytorch_tanh'"),
        ("eagle_config.vision_config.num_channels", 4, "3"),
        ("eagle_config.text_config.model_type", "qwen2", "'qwen3'"),
        ("eagle_config.text_config.hidden_act", "gelu", "'silu'"),
        ("eagle_config.text_config.attention_bias", True, "False"),
        ("eagle_config.text_config.rope_scaling", {"factor": 2.0}, "None"),
        ("eagle_config.text_config.rope_parameters", {"rope_type": "yarn"}, "'default'"),
        ("eagle_config.text_config.sliding_window", 4096, "None"),
        ("eagle_config.text_config.use_sliding_window", True, "False"),
    ],
)
def test_fields_that_ask_for_another_network_are_refused(copy, path, value, wanted):
    put(copy / "config.json", path, value)
    words = re.escape(path) + r"[\w.]*: got .*, wanted " + re.escape(wanted)
    with pytest.raises(CheckpointError, match=rf"(?s)config\.json asks for another network .*\n  {words}"):
        described(copy)
    if path.startswith("eagle_config"):  # the same beside the config
        config = json.loads((copy / "config.json").read_text())
        (copy / "eagle/config.json").write_text(json.dumps(config.pop("eagle_config")))
        (copy / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=r"(?s)eagle/config\.json asks for another network"):
            described(copy)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (f"{DIFFUSION}.cross_attention_dim", 64, "cross_attention_dim is backbone_embedding_dim"),
        ("action_dim", 7, "action_dim is action_head_cfg's"),
        ("action_head_cfg.max_action_dim", 24, "max_action_dim is action_dim"),
        ("action_horizon", 8, "action_horizon is action_head_cfg's"),
        ("eagle_config.force_image_size", 56, "force_image_size is vision_config's image_size"),
    ],
)
def test_sizes_that_are_said_twice_agree(copy, path, value, words):
    put(copy / "config.json", path, value)
    with pytest.raises(CheckpointError, match=rf"sizes do not go together, wanted: {words}"):
        described(copy)


def sizes(data, path=""):
    for name, value in data.items():
        if isinstance(value, dict):
            yield from sizes(value, f"{path}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{path}{name}"


def test_sizes_that_nothing_can_have_are_refused_by_name(copy):
    config = (copy / "config.json").read_text()
    others = {"hidden_size", "eagle_config.image_token_index"}  # nothing reads the one, the other is no size
    for path in set(sizes(json.loads(config))) - others:
        put(copy / "config.json", path, 2**62)
        with pytest.raises(CheckpointError, match=rf"config\.json.*\n?.*{path}: got 4611686018427387904"):
            described(copy)
        (copy / "config.json").write_text(config)


def test_denoising_steps_and_norms_are_the_checkpoints(copy, checkpoint):
    seen, before = worlds.observation(2), worlds.act(worlds.make(checkpoint), worlds.observation(2))
    put(copy / "config.json", "action_head_cfg.num_inference_timesteps", 8)
    assert worlds.make(copy).network.layout.steps == 8
    assert worlds.make(copy, denoising_steps=3).network.layout.steps == 3
    assert described(copy, stochastic_steps="all", entries="step").tokens_per_action == 8
    put(copy / "config.json", "action_head_cfg.num_inference_timesteps", 4)
    assert torch.equal(worlds.act(worlds.make(copy), seen).actions, before.actions)
    for path, value in (
        ("eagle_config.vision_config.layer_norm_eps", 0.1),
        ("eagle_config.text_config.rope_parameters", {"rope_theta": 10.0}),
    ):
        put(copy / "config.json", path, value)
        after = worlds.act(worlds.make(copy), seen)
        assert not torch.equal(after.value, before.value)
        before = after


def test_sizes_that_do_not_go_together(copy):
    config = json.loads((copy / "config.json").read_text())
    change(copy / "config.json", action_head_cfg={**config["action_head_cfg"], "backbone_embedding_dim": 64})
    with pytest.raises(CheckpointError, match="backbone_embedding_dim is the language model's hidden_size"):
        described(copy)
    with pytest.raises(ConfigError, match=r"model\.path: missing"):
        plugin = rlvla.find("model", "gr00t")
        plugin.describe(plugin.config())


def test_unknown_adapter_targets_are_named(checkpoint):
    with pytest.raises(ConfigError, match=r"lora_targets: got fc1, wanted some of .*q_proj.* need model\.tune_vision"):
        worlds.make(checkpoint, tune="lora", lora_targets=("q_proj", "fc1"))


def test_a_part_of_a_value_head_is_damage(copy):
    weights = {
        name: one for name, one in stored(copy).items() if ".value_head." not in name or name.endswith("0.weight")
    }
    for file in copy.glob("model*"):
        file.unlink()
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds a part of action_head\.value_head\.\*, and lacks"):
        worlds.make(copy)
