"""Checkpoints are read as they are, and written in the public layout; damaged weights are refused by their words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gr00t_worlds as worlds
import pytest
import torch
from gr00t_worlds import SHARD, described, stored, trained
from safetensors.torch import load_file, save_file

from rlvla.errors import CheckpointError, ConfigError
from rlvla.networks.linear import without_adapters
from rlvla.testing.damage import change, rewrite
from rlvla_model_gr00t import tiny
from rlvla_model_gr00t.files import LM_HEAD, is_embodied
from rlvla_model_gr00t.header import TOKENIZER


def test_an_untrained_export_is_the_checkpoint_bit_for_bit(checkpoint, tmp_path):
    worlds.make(checkpoint, dtype="bf16").export(tmp_path / "out")
    before, after = stored(checkpoint), stored(tmp_path / "out")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert described(tmp_path / "out").action_dim == 3
    assert json.loads((tmp_path / "out/config.json").read_text()) == json.loads(
        (checkpoint / "config.json").read_text()
    )


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
        # Actions: log-probs of the recorded step are of the noise alone, but for rounding.
        assert torch.equal(worlds.act(exact, seen).actions, worlds.act(model, seen).actions)
        assert not torch.equal(worlds.act(kept, seen).actions, worlds.act(model, seen).actions)
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


def test_a_part_of_a_value_head_is_damage(copy):
    weights = {
        name: one for name, one in stored(copy).items() if ".value_head." not in name or name.endswith("0.weight")
    }
    for file in copy.glob("model*"):
        file.unlink()
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds a part of action_head\.value_head\.\*, and lacks"):
        worlds.make(copy)
