"""LoRA adapters on disk: rank, scale, layers and base are those that they were trained with, or an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gr00t_worlds as worlds
import pytest
import torch

import rlvla
from rlvla.errors import CheckpointError, ConfigError
from rlvla_model_gr00t import tiny

FEW = ("q_proj", "down_proj")


@pytest.fixture(scope="module")
def trained(checkpoint: Path, tmp_path_factory):
    """A model of rank 3 and alpha 12 in two kinds of layers, and the folder with its adapter."""
    place = tmp_path_factory.mktemp("trained") / "run"
    model = worlds.make(checkpoint, tune="lora", lora_rank=3, lora_alpha=12.0, lora_targets=FEW)
    model.save(place)
    return model, place


@pytest.fixture
def copy(trained, tmp_path: Path) -> Path:
    """An adapter to damage."""
    return Path(shutil.copytree(trained[1], tmp_path / "copy"))


def described(path: Path, **options):
    plugin = rlvla.find("model", "gr00t")
    return plugin.describe(plugin.config(path=str(path), tune="lora", **worlds.COMMON, **options))


def make(path: Path, **options):
    return worlds.make(path, tune="lora", moved=False, **{"lora_rank": None, **options})


def test_rank_scale_and_layers_are_the_adapters_own(trained):
    model, place = trained
    seen, again = worlds.observation(3), make(place)
    assert torch.equal(worlds.act(again, seen).value, worlds.act(model, seen).value)
    assert set(again.trainable()) == set(model.trainable())
    said = make(place, lora_rank=3, lora_alpha=12.0, lora_targets=FEW)
    assert torch.equal(worlds.act(said, seen).value, worlds.act(model, seen).value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lora_rank": 4}, r"model\.lora_rank: got 4, the adapter in .*run has rank 3: leave the option out"),
        ({"lora_alpha": 4.0}, r"model\.lora_alpha: got 4, the adapter in .*run has alpha 12: leave"),
        (
            {"lora_targets": ("q_proj",)},
            r"model\.lora_targets: got q_proj, the adapter in .*run is of down_proj, q_proj: leave the option out",
        ),
        (
            {"lora_targets": ("q_proj", "lm_head")},
            r"model\.lora_targets: got lm_head, wanted some of down_proj, .* need model\.tune_vision",
        ),
        ({"lora_targets": ()}, r"model\.lora_targets: empty; name layers, or set model\.tune to 'head'"),
    ],
)
def test_options_that_say_otherwise_are_refused_before_weights_are_read(trained, options, words):
    with pytest.raises(ConfigError, match=words):
        described(trained[1], **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lora_rank": 17}, r"got 17, wanted at most 16, which is what a layer 'k_proj' has of inputs or outputs"),
        (
            {"lora_rank": 25, "lora_targets": ("fc1",), "tune_vision": True},
            r"got 25, wanted at most 24, .* a layer 'fc1'",
        ),
        ({"lora_targets": ("fc1",)}, r"got fc1, wanted some of .*q_proj.* need model\.tune_vision"),
        ({"lora_targets": ("bias",), "tune_vision": True}, r"got bias, wanted some of 0, .*fc1"),
    ],
)
def test_ranks_and_names_that_no_layer_has(checkpoint, options, words):
    with pytest.raises(ConfigError, match=rf"model\.lora_\w+: {words}"):
        described(checkpoint, **options)


def test_tune_vision_alone_adapts_tower_and_projector(checkpoint):
    names = set(make(checkpoint, tune_vision=True, lora_rank=4).trainable())
    for part in ("vision_model.encoder.layers.0.mlp.fc1", "mlp1.0", "layers.0.self_attn.q_proj", "out_proj"):
        assert [name for name in names if f"{part}.lora_A" in name], part
    assert not [name for name in make(checkpoint, lora_rank=4).trainable() if "vision_model" in name]


def test_an_adapter_of_other_layers_is_not_loaded_into_a_model(trained, checkpoint):
    with pytest.raises(
        CheckpointError, match=r"run is an adapter of 4 layers \(down_proj, q_proj\), here they are 2 layers \(q_proj\)"
    ):
        make(checkpoint, lora_rank=3, lora_alpha=12.0, lora_targets=("q_proj",)).load(trained[1])


def test_a_wrong_base_is_blamed_on_who_names_it(copy, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "openvla"}')
    for named, words in (
        (str(other), r"holds a 'openvla' model, wanted 'gr00t_n1_5'"),
        (str(tmp_path), "holds no config.json"),
        ("/nowhere/at/all", "no such folder"),
    ):
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "rlvla_base": named}))
        with pytest.raises(CheckpointError) as caught:
            described(copy)
        text = str(caught.value)
        assert text.startswith(f"the base that {copy} names, {named}, cannot be had: ")
        assert words in text
        assert "model.path" not in text


def test_an_adapter_without_its_weights_or_of_another_model_is_named(copy, trained):
    (copy / "adapter_model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors cannot be read: its header has \d+ bytes"):
        described(copy, lora_targets=FEW)
    (copy / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks adapter_model\.safetensors, the adapter's weights"):
        make(copy)


def test_the_tokenizers_path_is_not_the_models(tmp_path):
    place = tiny.write(tmp_path / "bare", action_dim=3, state_dim=4, tags=("gr1",), tokenizer=False)
    plugin = rlvla.find("model", "gr00t")
    with pytest.raises(CheckpointError, match=r"^model\.tokenizer_path: /nowhere/at/all: no such folder"):
        plugin.describe(plugin.config(path=str(place), tokenizer_path="/nowhere/at/all", **worlds.COMMON))
