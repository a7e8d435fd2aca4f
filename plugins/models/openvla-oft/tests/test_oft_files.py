"""Checkpoints: read strictly, written in the public layout, and every damaged or foreign one refused by its words."""

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
from rlvla.specs import ActionPart, Camera, StatePart
from rlvla.testing.damage import change, rewrite
from rlvla.weight_files import write_shards
from rlvla_model_openvla_oft import tiny

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def plugin():
    return rlvla.find("model", "openvla-oft")


def described(path: Path, **options):
    return plugin().describe(plugin().config(**{"path": str(path), **worlds.options_of(options)}))


# ---- whole checkpoints ------------------------------------------------------------------------------------------------


def test_merged_export_is_a_public_checkpoint_that_acts_alike(checkpoint, tmp_path):
    model, seen = (
        worlds.make(checkpoint, tune_vision=True),
        worlds.observation(3),
    )
    model.export(tmp_path / "out")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    original = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(original["weight_map"])
    assert all(
        load_file(tmp_path / "out" / one)[key].dtype == torch.bfloat16 for key, one in index["weight_map"].items()
    )
    again = worlds.make(tmp_path / "out", tune="heads")
    merged, adapted = worlds.act(again, seen), worlds.act(model, seen)
    torch.testing.assert_close(merged.value, adapted.value, rtol=0, atol=0.05)  # weights were rounded to bf16
    torch.testing.assert_close(merged.logp.mean(), adapted.logp.mean(), rtol=0, atol=0.3)
    plain = worlds.make(checkpoint, tune="heads")
    replay = adapted.replay.exclude("vision")
    with torch.no_grad():
        gaps = [(one.evaluate(one.preprocess(seen), replay).logp - adapted.logp).abs().mean() for one in (again, plain)]
    assert gaps[0] < 0.1 * gaps[1]


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: one for file in sorted(folder.glob("model*.safetensors")) for name, one in load_file(file).items()}


@pytest.mark.parametrize("tune", ["full", "heads"])
def test_an_export_keeps_the_dtype_of_each_public_weight_or_rounds_nothing(headed, tmp_path, tune):
    source, wide = Path(shutil.copytree(headed, tmp_path / "source")), "language_model.model.layers"
    for file in sorted(source.glob("model*.safetensors")):
        rewrite(file, **{name: one.float() for name, one in load_file(file).items() if name.startswith(wide)})
    model, seen = worlds.make(source, tune=tune, **worlds.HEADED), worlds.observation(3)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.0001)  # less than bf16 can tell
    model.export(tmp_path / "kept")
    model.export(tmp_path / "exact", "fp32")
    kept, exact = stored(tmp_path / "kept"), stored(tmp_path / "exact")
    assert {name: one.dtype for name, one in kept.items()} == {name: one.dtype for name, one in stored(source).items()}
    assert {one.dtype for one in exact.values()} == {torch.float32}
    wanted = worlds.act(model, seen)
    for name in ("exact", *(["kept"] if tune == "heads" else [])):  # heads have files of their own, in fp32
        found = worlds.act(worlds.make(tmp_path / name, tune="heads", **worlds.HEADED), seen)
        assert torch.equal(found.actions, wanted.actions)
        assert torch.equal(found.logp, wanted.logp)


def test_a_saved_adapter_starts_a_model_and_names_its_base(checkpoint, tmp_path):
    model, seen = worlds.make(checkpoint), worlds.observation(3)
    model.save(tmp_path / "adapter")
    files = {file.name for file in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files
    assert not [name for name in files if name.startswith("model-")]
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["base_model_name_or_path"] == str(
        checkpoint
    )
    again = worlds.make(tmp_path / "adapter", seed=9)
    with torch.no_grad():
        for name, parameter in again.trainable().items():  # worlds.make moved them
            parameter.copy_(model.trainable()[name])
    assert torch.equal(worlds.act(again, seen).logp, worlds.act(model, seen).logp)
    assert again.reference() is None


def test_heads_alone_name_the_checkpoint_they_stand_on(headed, tmp_path):
    model, seen = worlds.make(headed, tune="heads", **worlds.HEADED), worlds.observation(2)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.5)
    model.save(tmp_path / "heads")
    assert not list((tmp_path / "heads").glob("model*"))
    again = worlds.make(tmp_path / "heads", tune="heads", **worlds.HEADED, seed=3)
    other = worlds.make(headed, tune="heads", **worlds.HEADED, seed=4)
    other.load(tmp_path / "heads")
    for one in (again, other):
        assert torch.equal(worlds.act(one, seen).logp, worlds.act(model, seen).logp)
        assert torch.equal(worlds.act(one, seen).value, worlds.act(model, seen).value)
    worlds.make(tmp_path / "heads", **worlds.HEADED).save(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter/config.json").read_text())["rlvla_base"] == str(headed)


def test_full_tuning_saves_and_loads_all_weights_exactly(checkpoint, tmp_path):
    model, seen = worlds.make(checkpoint, tune="full", dtype="bf16"), worlds.observation(2)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.0001)  # less than bf16 can tell
    model.save(tmp_path / "whole")
    again = worlds.make(checkpoint, tune="full", dtype="bf16", seed=3)
    again.load(tmp_path / "whole")
    assert torch.equal(worlds.act(again, seen).logp, worlds.act(model, seen).logp)
    assert all(torch.equal(one, again.trainable()[name]) for name, one in model.trainable().items())


def test_exported_heads_are_public_files_and_a_runs_own_hold_no_pickle(headed, tmp_path):
    model, seen = worlds.make(headed, **worlds.HEADED), worlds.observation(2)
    model.export(tmp_path / "out")
    model.save(tmp_path / "own")
    assert not list((tmp_path / "own").glob("*.pt"))
    for kind in ("action_head", "proprio_projector"):
        (file,) = (tmp_path / "out").glob(f"{kind}--*")
        found = torch.load(file, weights_only=True)
        original = torch.load(headed / f"{kind}--7_checkpoint.pt", weights_only=True)
        assert file.name == f"{kind}--latest_checkpoint.pt"
        assert {name: one.shape for name, one in found.items()} == {name: one.shape for name, one in original.items()}
        mine = getattr(model.network, kind).state_dict()
        assert all(torch.equal(one, mine[name]) for name, one in found.items())
    again = worlds.make(tmp_path / "out", tune="heads", **worlds.HEADED)
    torch.testing.assert_close(worlds.act(again, seen).actions, worlds.act(model, seen).actions, rtol=0, atol=0.05)


CODE = ("configuration_prismatic.py", "modeling_prismatic.py", "processing_prismatic.py")
MAPS = {"AutoConfig": f"{CODE[0][:-3]}.OpenVLAConfig", "AutoProcessor": [None, f"{CODE[2][:-3]}.PrismaticProcessor"]}


def test_public_code_goes_through_an_export_as_it_is_and_is_named_only_where_it_lies(checkpoint, copy, tmp_path):
    for file in ("config.json", "preprocessor_config.json"):
        change(copy / file, auto_map=MAPS)
    (copy / "processor_config.json").write_text('{"auto_map": {"AutoProcessor": "someone/code--processing.Processor"}}')
    for name in CODE:
        (copy / name).write_text("raise SystemExit('never run')\n")
    model = worlds.make(copy)
    model.export(tmp_path / "with")
    model.save(tmp_path / "adapter")
    (copy / CODE[2]).unlink()
    model.export(tmp_path / "without")

    def auto_map(folder, file="config.json"):
        return json.loads((tmp_path / folder / file).read_text()).get("auto_map")

    assert auto_map("with") == auto_map("with", "preprocessor_config.json") == MAPS
    assert all((tmp_path / "with" / name).read_text() == "raise SystemExit('never run')\n" for name in CODE)
    assert auto_map("with", "processor_config.json") is not None
    assert auto_map("without") is auto_map("without", "preprocessor_config.json") is auto_map("adapter") is None
    assert not list((tmp_path / "adapter").glob("*.py"))


@pytest.mark.parametrize("tune", ["lora", "full"])
def test_what_started_from_drawn_weights_holds_its_trained_ones(tmp_path, tune):
    place = tiny.write(tmp_path / "random", action_dim=3, state_dim=4, data_sets=("reach",), weights=False, seed=5)
    model, seen = worlds.make(place, tune=tune), worlds.observation(2)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.5)
    model.save(tmp_path / "saved")
    model.export(tmp_path / "export")
    wanted = worlds.act(model, seen, greedy=True)
    saved = worlds.make(tmp_path / "saved", tune=tune, moved=False, seed=2)
    assert torch.equal(worlds.act(saved, seen, greedy=True).logp, wanted.logp)
    export = worlds.make(tmp_path / "export", tune="heads", seed=2)
    assert export.header.random_seed is None
    torch.testing.assert_close(worlds.act(export, seen).value, worlds.act(model, seen).value, rtol=0, atol=0.05)


def test_names_that_lora_training_left_are_understood(checkpoint, copy):
    weights = load_file(copy / SHARD)
    renamed = {
        f"base_model.model.{name.replace('proj.weight', 'proj.base_layer.weight')}": weights[name] for name in weights
    }
    save_file(renamed, copy / SHARD)
    seen = worlds.observation(2)
    assert torch.equal(worlds.act(worlds.make(copy), seen).logp, worlds.act(worlds.make(checkpoint), seen).logp)


def test_a_value_head_in_the_shards_is_taken(checkpoint, copy):
    model = worlds.make(checkpoint)
    head = {f"value_head.{name}": one for name, one in model.network.value_head.state_dict().items()}
    rewrite(copy / SHARD, **head)
    again = worlds.make(copy, seed=4)
    assert all(torch.equal(one, again.network.state_dict()[name]) for name, one in head.items())


def test_shards_are_cut_by_size(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvla.weight_files.SHARD_BYTES", 100)
    weights = {name: torch.full((12,), float(number)) for number, name in enumerate("abcde")}
    write_shards(tmp_path, weights)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 240
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert all(torch.equal(load_file(tmp_path / index["weight_map"][name])[name], weights[name]) for name in weights)


def test_statistics_of_the_data_set_are_found_with_or_without_no_noops(checkpoint):
    for key in ("reach", "reach_no_noops"):
        assert worlds.make(checkpoint, unnorm_key=key).manifest()["statistics"] == "reach_no_noops"


def test_the_manifest_tells_weights_apart(checkpoint, copy):
    before = worlds.make(copy).manifest()
    assert before["files"] == worlds.make(checkpoint).manifest()["files"]
    weights = load_file(copy / SHARD)
    rewrite(copy / SHARD, **{name: one * 2 for name, one in weights.items()})
    after = worlds.make(copy).manifest()
    assert {name for name in before["files"] if before["files"][name] != after["files"][name]} == {SHARD}


def test_pictures_are_normalised_as_the_checkpoint_says(checkpoint, copy):
    seen, file = worlds.observation(2), copy / "preprocessor_config.json"
    before = worlds.act(worlds.make(checkpoint), seen).logp
    file.unlink()
    assert torch.equal(worlds.act(worlds.make(copy), seen).logp, before)
    file.write_text(json.dumps({"means": [[0.4, 0.4, 0.4], [0.5, 0.5, 0.5]]}))
    assert not torch.equal(worlds.act(worlds.make(copy), seen).logp, before)


# ---- bad input --------------------------------------------------------------------------------------------------------


def test_no_path_and_no_such_folder():
    with pytest.raises(ConfigError, match=r"model\.path: missing"):
        plugin().describe(plugin().config())
    with pytest.raises(CheckpointError, match="no such folder; wanted one, or 'org/name@revision'"):
        described(Path("/nowhere/at/all"))


def test_missing_shard_is_named(copy):
    (copy / SHARD).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {SHARD}"):
        described(copy)


def test_damaged_shard_is_named(copy):
    (copy / SHARD).write_bytes((copy / SHARD).read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=rf"{SHARD} cannot be read"):
        worlds.make(copy)


def test_missing_unexpected_and_misshapen_weights_are_all_reported(copy):
    name = "language_model.model.layers.{}.mlp.up_proj.weight"
    two = "model-00002-of-00002.safetensors"
    held = {key for file in (SHARD, two) for key in load_file(copy / file)}
    assert name.format(0) in held
    for file in (SHARD, two):
        gone = {name.format(layer): None for layer in (0, 1)}
        rewrite(
            copy / file,
            **gone,
            **({"something.else": torch.zeros(1), "projector.fc1.bias": torch.zeros(3)} if file == two else {}),
        )
    rewrite(copy / SHARD, **{"projector.fc1.bias": None})
    with pytest.raises(CheckpointError) as caught:
        worlds.make(copy)
    text = str(caught.value)
    assert "missing (2 of " in text
    assert "language_model.model.layers.*.mlp.up_proj.weight (2x)" in text
    assert "unexpected (1): something.else" in text
    assert "projector.fc1.bias: (3,) there, (160,) here" in text


def test_wrong_statistics_key_lists_those_there_are(checkpoint):
    for key in ("libero", None):
        with pytest.raises(ConfigError, match=r"model\.unnorm_key: got .* wanted one of other, reach_no_noops"):
            described(checkpoint, unnorm_key=key)


def test_statistics_of_another_action_dimension(checkpoint):
    assert described(checkpoint).action_dim == 3
    six = worlds.simulator_spec(action=(ActionPart("move", 6),))
    with pytest.raises(ConfigError, match=r"reach_no_noops have 3 action dimensions, the simulator takes 6"):
        worlds.make(checkpoint, six)


def test_statistics_of_another_state_dimension(headed):
    with pytest.raises(
        ConfigError, match=r"have 4 state dimensions, the simulator gives 9.*set model\.proprio to False"
    ):
        worlds.make(headed, worlds.simulator_spec(state=(StatePart("joints", 9),)), **worlds.HEADED)


def test_statistics_without_the_asked_percentiles(copy):
    statistics = json.loads((copy / "dataset_statistics.json").read_text())
    del statistics["reach_no_noops"]["action"]["q99"]
    (copy / "dataset_statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(ConfigError, match=r"model\.normalisation: reach_no_noops has no 'q99' of its actions"):
        described(copy)
    assert described(copy, normalisation="bounds").action_dim == 3


def test_another_model_is_named(copy):
    change(copy / "config.json", model_type="gr00t_n1_5")
    with pytest.raises(CheckpointError, match="holds a 'gr00t_n1_5' model, wanted 'openvla'"):
        described(copy)


def test_wrong_image_size(copy):
    change(copy / "config.json", image_sizes=[28, 224])
    with pytest.raises(CheckpointError, match=r"image_sizes is \[28, 224\], wanted two equal multiples of 14"):
        described(copy)
    change(copy / "config.json", image_sizes=[42, 42])
    with pytest.raises(CheckpointError, match=r"pos_embed: \(1, 4, 16\) there, \(1, 9, 16\) here"):
        worlds.make(copy)


def test_cameras_that_the_simulator_does_not_have(checkpoint):
    with pytest.raises(ConfigError, match=r"the simulator offers no wrist"):
        worlds.make(checkpoint, worlds.simulator_spec(cameras=(Camera("front", 32, 32),)), cameras=("primary", "wrist"))
    with pytest.raises(ConfigError, match=r"model\.cameras: got .* wanted one to three roles"):
        described(checkpoint, cameras=())


def test_weights_that_are_not_finite(copy):
    weights = load_file(copy / SHARD)
    name = next(name for name, one in weights.items() if one.ndim == 2)
    weights[name][0, 0] = float("nan")
    save_file(weights, copy / SHARD)
    with pytest.raises(CheckpointError, match="weights that are not finite: "):
        worlds.make(copy)


def test_tokenizer_without_the_expected_ids(copy):
    data = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    other = next(token for token, number in vocabulary.items() if number == 29870)
    vocabulary["▁"], vocabulary[other] = vocabulary[other], vocabulary["▁"]
    (copy / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="not the tokenizer of these weights: '▁' is 29870, wanted 29871"):
        worlds.make(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no tokenizer\.json"):
        worlds.make(copy)


def test_adapter_of_another_rank(checkpoint, tmp_path):
    worlds.make(checkpoint).save(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"model\.lora_rank: got 8, the adapter in .* has rank 4"):
        described(tmp_path / "adapter", lora_rank=8)
    with pytest.raises(CheckpointError, match=r"has rank 4; model\.lora_rank makes it 8 here"):
        worlds.make(checkpoint, lora_rank=8).load(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"model\.tune: got 'full'"):
        described(tmp_path / "adapter", tune="full")


def test_layers_that_are_not_there(checkpoint):
    with pytest.raises(ConfigError, match=r"model\.lora_targets: got qkv, wanted some of .* need model\.tune_vision"):
        worlds.make(checkpoint, lora_targets=("qkv",))


def test_settings_that_contradict_each_other(checkpoint):
    with pytest.raises(ConfigError, match=r"set model\.horizon to 1 \(got 2\)"):
        described(checkpoint, decoding="autoregressive")
    with pytest.raises(ConfigError, match=r"model\.gripper_range"):
        described(checkpoint, gripper_range=(1.0, 0.0))
    with pytest.raises(ConfigError, match=r"model\.lora_targets: empty"):
        described(checkpoint, lora_targets=())


def test_a_head_that_is_not_there(checkpoint, tmp_path):
    tiny.write(tmp_path / "plain", action_dim=3, state_dim=4, data_sets=("reach",))
    for options, kind in (({"head": "l1"}, "action_head"), ({"proprio": True}, "proprio_projector")):
        with pytest.raises(CheckpointError, match=rf"holds no {kind}--"):
            worlds.make(tmp_path / "plain", **options)


def test_a_head_file_that_holds_objects_is_not_unpickled(copy):
    torch.save({"fc1.weight": Path("/")}, copy / "action_head--9_checkpoint.pt")
    with pytest.raises(CheckpointError, match="cannot be read safely"):
        worlds.make(copy, head="l1")


@pytest.mark.parametrize("value", [{"weight": torch.zeros(2)}, 7], ids=["nested", "number"])
def test_a_head_file_that_holds_no_state_dict(copy, value):
    torch.save({"state": value}, copy / "action_head--9_checkpoint.pt")
    with pytest.raises(
        CheckpointError, match=rf"9_checkpoint\.pt: 'state' is a {type(value).__name__}, wanted tensors alone"
    ):
        worlds.make(copy, head="l1")


def test_weights_that_are_drawn_are_the_same_again(tmp_path):
    place = tiny.write(tmp_path / "random", action_dim=3, state_dim=4, data_sets=("reach",), weights=False, seed=5)
    assert not list(place.glob("*.safetensors"))
    seen, one, other = worlds.observation(2), worlds.make(place), worlds.make(place)
    assert torch.equal(worlds.act(one, seen).logp, worlds.act(other, seen).logp)
    one.save(tmp_path / "adapter")
    other.load(tmp_path / "adapter")


def test_what_a_tokenizers_file_says_of_cutting_and_padding_is_not_for_prompts(checkpoint, copy):
    whole = worlds.make(checkpoint)
    bounds = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 48}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    change(copy / "tokenizer.json", truncation=bounds, padding={**padding, "pad_type_id": 0, "pad_token": "<PAD>"})
    for text in worlds.TEXTS:
        assert worlds.make(copy).prompts.ids(text) == whole.prompts.ids(text)


def test_states_that_the_mask_leaves_out_are_as_they_are(headed, tmp_path):
    place = Path(shutil.copytree(headed, tmp_path / "masked"))
    statistics = json.loads((place / "dataset_statistics.json").read_text())
    part = next(iter(statistics.values()))["proprio"]
    change(
        place / "dataset_statistics.json",
        **{key: {**one, "proprio": {**part, "mask": [True, False, True, False]}} for key, one in statistics.items()},
    )
    options = {**worlds.HEADED, "tune": "heads"}
    scaled, masked = (worlds.make(path, **options) for path in (headed, place))
    seen = worlds.observation(2)
    before, after = (one.preprocess(seen)["state"] for one in (scaled, masked))
    assert torch.equal(after[:, ::2], before[:, ::2])
    assert torch.equal(after[:, 1::2], seen.state[:, 1::2].clamp(-1, 1))
    assert not torch.equal(after[:, 1::2], before[:, 1::2])
