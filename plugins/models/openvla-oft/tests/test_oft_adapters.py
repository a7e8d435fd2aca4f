"""LoRA adapters on disk: rank, scale, kind, layers and base are those that they were trained with, or an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import oft_worlds as worlds
import pytest
import torch
from safetensors.torch import load_file, save_file

import rlvla
from rlvla.errors import CheckpointError, ConfigError

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def trained(checkpoint: Path, tmp_path_factory):
    """A model of rank 4 and alpha 16, and the folder with its adapter."""
    model, place = worlds.make(checkpoint, lora_alpha=16.0), tmp_path_factory.mktemp("trained") / "adapter"
    model.save(place)
    return model, place


@pytest.fixture
def copy(trained, tmp_path: Path) -> Path:
    """An adapter to damage."""
    return Path(shutil.copytree(trained[1], tmp_path / "copy"))


def change(file: Path, **values) -> None:
    data = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({name: one for name, one in data.items() if one != "gone"}))


def read(path: Path | str, **options):
    """Return a model as its checkpoint says, adapters untouched."""
    return worlds.make(path, moved=False, **{"lora_rank": None, "seed": 9, **options})


def logp_of(model, replay) -> torch.Tensor:
    with torch.no_grad():
        return model.evaluate(model.preprocess(worlds.observation(3)), replay).logp


def replay_of(model):
    return worlds.act(model, worlds.observation(3)).replay


def test_rank_and_scale_are_the_adapters_own(trained, checkpoint):
    model, place = trained
    replay = replay_of(model)
    wanted = logp_of(model, replay)
    assert torch.equal(logp_of(read(place), replay), wanted)
    assert torch.equal(logp_of(read(place, lora_rank=4, lora_alpha=16.0), replay), wanted)
    other = worlds.make(checkpoint, moved=False)
    assert (logp_of(other, replay) - wanted).abs().max() > 0.5  # the adapter matters


def test_another_rank_or_scale_than_the_adapters_is_refused(trained, checkpoint):
    _, place = trained
    for option, got, there in (("lora_alpha", 4.0, "alpha 16"), ("lora_rank", 8, "rank 4")):
        with pytest.raises(
            ConfigError, match=rf"model\.{option}: got {got:g}, the adapter in .*adapter has {there}: leave"
        ):
            read(place, **{option: got})
    with pytest.raises(CheckpointError, match=r"has alpha 16; model\.lora_alpha makes it 4 here"):
        worlds.make(checkpoint).load(place)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"use_rslora": True}, r"got use_rslora True \(wanted None\): this is not plain LoRA.*merge it into its base"),
        ({"use_dora": True}, "got use_dora True"),
        ({"fan_in_fan_out": True}, "got fan_in_fan_out True"),
        ({"bias": "all"}, r"got bias 'all' \(wanted 'none'\)"),
        ({"peft_type": "LOHA"}, r"got peft_type 'LOHA' \(wanted 'LORA'\)"),
        ({"rank_pattern": {"q_proj": 2}}, r"got rank_pattern \{'q_proj': 2\}"),
        ({"alpha_pattern": {"q_proj": 64}}, r"got alpha_pattern \{'q_proj': 64\}"),
        ({"modules_to_save": ["lm_head"]}, r"got modules_to_save \['lm_head'\]"),
        ({"r": "four"}, "r: got 'four', wanted a valid integer"),
        ({"r": "gone"}, "r: missing"),
        ({"lora_alpha": 0}, "lora_alpha: got 0, wanted greater than 0"),
        ({"lora_alpha": "gone"}, "lora_alpha: missing"),
    ],
)
def test_adapters_of_other_kinds_are_refused_by_what_they_are(copy, values, words):
    change(copy / "adapter_config.json", **values)
    with pytest.raises(CheckpointError, match=rf"(?s)adapter_config\.json.*{words}"):
        read(copy)


def test_a_folder_of_peft_alone_is_read_on_the_base_that_it_names(trained, checkpoint, copy):
    for file in ("config.json", "dataset_statistics.json", "rlvla_heads.safetensors"):
        (copy / file).unlink()
    model, _ = trained
    replay = replay_of(model)
    assert json.loads((copy / "adapter_config.json").read_text())["base_model_name_or_path"] == str(checkpoint)
    again = read(copy)
    assert torch.equal(logp_of(again, replay), logp_of(model, replay))
    again.save(copy.with_name("further"))
    assert torch.equal(logp_of(read(copy.with_name("further")), replay), logp_of(model, replay))
    change(copy / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match=r"names no base_model_name_or_path: put the folder"):
        read(copy)


def test_a_base_that_is_gone_itself_or_no_whole_model_is_named(trained, copy):
    for named, words in (
        (
            "/nowhere/at/all",
            "the base that .*copy names, /nowhere/at/all, cannot be had: base of .*copy: /nowhere/at/all: no such",
        ),
        (str(copy), "copy names itself as its base"),
        (str(trained[1]), "holds no whole model but an adapter or heads: write the whole of it first"),
    ):
        change(copy / "config.json", rlvla_base=named)
        with pytest.raises(CheckpointError, match=words):
            read(copy)


def test_an_adapter_of_all_layers_is_taken_with_its_layers(checkpoint, tmp_path):
    names = (*worlds.LLM, "qkv", "fc1", "fc3", "lm_head")
    model = worlds.make(checkpoint, tune_vision=True, lora_targets=names)
    model.save(tmp_path / "lora_adapter")
    public = tmp_path / "public"  # as public training leaves it: the model's config, and the adapter below
    public.mkdir()
    for file in ("config.json", "dataset_statistics.json"):
        shutil.copy(checkpoint / file, public / file)
    shutil.copytree(tmp_path / "lora_adapter", public / "lora_adapter")
    replay = replay_of(model)
    assert torch.equal(logp_of(read(public, tune_vision=True), replay), logp_of(model, replay))
    with pytest.raises(ConfigError, match=r"model\.tune_vision: got False, but the adapter in .* layers of the vision"):
        read(public)
    (public / "config.json").unlink()  # which only merging writes
    assert torch.equal(logp_of(read(public, tune_vision=True), replay), logp_of(model, replay))
    weights = load_file(public / "lora_adapter/adapter_model.safetensors")
    renamed = {name.replace("lm_head", "other_head"): one for name, one in weights.items()}
    save_file(renamed, public / "lora_adapter/adapter_model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"of another model: it has 1 layers that get none in this one, .*other_head"
    ):
        read(public, tune_vision=True)


def test_the_published_list_of_targets_is_taken_as_it_is(checkpoint, tmp_path):
    published = ("proj", "qkv", "fc1", "fc2", "q", "kv", "fc3", "out_proj", *worlds.LLM, "lm_head")
    model = worlds.make(checkpoint, tune_vision=True, lora_targets=published)
    model.save(tmp_path / "adapter")
    again = read(tmp_path / "adapter", tune_vision=True, lora_targets=published)
    replay = replay_of(model)
    assert torch.equal(logp_of(again, replay), logp_of(model, replay))
    for names, words in (
        (("q", "kv"), r"got q, kv, wanted some of down_proj, fc1"),
        (
            ("all-linear",),
            r"got all-linear, wanted some of .*; without lora_targets, and with model.tune_vision, all linear",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            worlds.make(checkpoint, tune_vision=True, lora_targets=names)


def test_weights_that_changed_below_an_adapter_are_refused(checkpoint, tmp_path):
    base = Path(shutil.copytree(checkpoint, tmp_path / "base"))
    model = worlds.make(base)
    model.save(tmp_path / "adapter")
    worlds.make(checkpoint).load(tmp_path / "adapter")  # the same weights elsewhere
    weights = load_file(base / SHARD)
    save_file({name: one * 1.5 for name, one in weights.items()}, base / SHARD)
    words = rf"(?s)was trained on other weights than .*base holds now.*{SHARD}: got \d+ bytes, .*, wanted \d+ bytes, "
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=words):
        worlds.make(base).load(tmp_path / "adapter")
    model.load(tmp_path / "adapter")  # still holds the old ones
    model.save(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["rlvla_base_files"] == model.base_weights


def test_tune_vision_alone_adapts_towers_and_projector(checkpoint):
    names = set(worlds.make(checkpoint, tune_vision=True).trainable())
    for part in (
        "featurizer.blocks.0.attn.qkv",
        "fused_featurizer.blocks.0.mlp.fc1",
        "projector.fc3",
        "self_attn.q_proj",
    ):
        assert [name for name in names if f"{part}.lora_A" in name], part
    assert not [name for name in worlds.make(checkpoint).trainable() if "vision" in name or "projector" in name]
    plugin = rlvla.find("model", "openvla-oft")
    options = worlds.options_of({"tune_vision": True, "lora_targets": ("q_proj",)})
    with pytest.raises(
        ConfigError, match=r"model\.tune_vision: got True, but model\.lora_targets .* names no layer of the"
    ):
        plugin.describe(plugin.config(path=str(checkpoint), **options))
