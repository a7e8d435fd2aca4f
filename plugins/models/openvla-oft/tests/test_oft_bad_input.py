"""Damaged or foreign files and settings that do nothing: refused by path, got and wanted, before weights are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import oft_worlds as worlds
import pytest

import rlvla
from rlvla.errors import CheckpointError, ConfigError
from rlvla.testing.damage import put
from rlvla_model_openvla_oft.header import LlamaShape

INDEX = "model.safetensors.index.json"
STATISTICS = "dataset_statistics.json"
NAN = float("nan")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint's JSON files, to damage; its weights are not looked at."""
    files = [file for file in checkpoint.iterdir() if file.suffix == ".json" and file.name != "tokenizer.json"]
    place = tmp_path / "copy"
    place.mkdir()
    for file in files:
        shutil.copy(file, place / file.name)
    for name in set(json.loads((place / INDEX).read_text())["weight_map"].values()):
        (place / name).touch()
    (place / "tokenizer.json").touch()
    return place


def described(path: Path, **options):
    plugin = rlvla.find("model", "openvla-oft")
    return plugin.describe(plugin.config(**{"path": str(path), **worlds.options_of(options)}))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("image_sizes", 28, "image_sizes: got 28, wanted a valid tuple"),
        ("image_sizes", [0, 0], r"image_sizes\.0: got 0, wanted greater than or equal to 1"),
        ("image_sizes", [28, 28, 28], "image_sizes: got .*, wanted"),
        ("text_config", None, "text_config: got None, wanted a dictionary"),
        ("text_config.num_attention_heads", 5, "text_config.hidden_size: got 32, wanted a multiple of 10"),
        ("text_config.hidden_size", "wide", "text_config.hidden_size: got 'wide', wanted a valid integer"),
        ("text_config.rms_norm_eps", NAN, "text_config.rms_norm_eps: got nan, wanted a finite number"),
        ("text_config.rope_parameters", {"rope_theta": "far"}, "rope_theta.*got 'far', wanted a valid number"),
        ("rlvla_towers.featurizer.heads", 3, "rlvla_towers.featurizer.width: got 16, wanted a multiple of 3"),
        ("rlvla_towers.featurizer.depth", 1, "rlvla_towers.featurizer.depth: got 1, wanted greater than or equal to 2"),
        ("n_action_bins", 128, "n_action_bins: got 128, wanted 256"),
        (
            "arch_specifier",
            "no-align+gelu-mlp",
            "arch_specifier: got 'no-align.gelu-mlp', wanted 'no-align.fused-gelu-mlp'",
        ),
        ("vision_backbone_id", "siglip-vit-so400m", "vision_backbone_id: got 'siglip-vit-so400m', wanted"),
        ("use_fused_vision_backbone", False, "use_fused_vision_backbone: got False, wanted True"),
        ("pad_token_id", "pad", "pad_token_id: got 'pad', wanted a valid integer"),
        ("pad_token_id", 40000, "pad_token_id: got 40000, wanted less than text_config.vocab_size, 32064"),
        ("pad_to_multiple_of", 31900, "pad_to_multiple_of: got 31900, which leaves 164 of text_config.vocab_size"),
        ("timm_model_ids", ["vit_base"], r"timm_model_ids: got \['vit_base'\], wanted \['vit_large"),
        ("timm_override_act_layers", [None, "quick_gelu"], r"timm_override_act_layers: got \[None, 'quick_gelu'\]"),
        ("image_resize_strategy", "letterbox", "image_resize_strategy: got 'letterbox', wanted 'resize-naive'"),
        ("llm_backbone_id", "vicuna-v15-7b", "llm_backbone_id: got 'vicuna-v15-7b', wanted 'llama2-7b-pure'"),
        ("text_config.model_type", "mistral", "text_config.model_type: got 'mistral', wanted 'llama'"),
        ("text_config.hidden_act", "gelu", "text_config.hidden_act: got 'gelu', wanted 'silu'"),
        ("text_config.attention_bias", True, "text_config.attention_bias: got True, wanted False"),
        ("text_config.mlp_bias", True, "text_config.mlp_bias: got True, wanted False"),
        ("text_config.tie_word_embeddings", True, "text_config.tie_word_embeddings: got True, wanted False"),
        (
            "text_config.rope_scaling",
            {"type": "linear"},
            "text_config.rope_scaling: got {'type': 'linear'}, wanted None",
        ),
        (
            "text_config.rope_parameters",
            {"rope_type": "yarn"},
            "rope_parameters.rope_type: got 'yarn', wanted 'default'",
        ),
        ("text_config.num_key_value_heads", 2, "num_key_value_heads: got 2, wanted as many as heads, 4"),
        ("text_config.head_dim", 16, "text_config.head_dim: got 16, wanted 8"),
    ],
)
def test_config_fields_that_no_openvla_has(copy, path, value, words):
    put(copy / "config.json", path, value)
    with pytest.raises(CheckpointError, match=rf"(?s)config\.json.*{words}"):
        described(copy)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            "action.mask",
            [True] * 5,
            r"action: got lengths \{'q01': 3, 'q99': 3, 'mask': 5\}, wanted one number for each",
        ),
        ("action.q99", [1.0], r"action: got lengths \{'q01': 3, 'q99': 1, 'mask': 3\}"),
        ("action.q01", ["a", "b", "c"], r"q01\.0: got 'a', wanted a valid number"),
        ("action.q01", [NAN, 0.0, 0.0], r"q01\.0: got nan, wanted a finite number"),
        ("action.q01", [-1e39, 0.0, 0.0], r"q01\.0: got -1e\+39, wanted a number from -1e"),
        ("action.q01", [0.0, 5.0, 0.0], "action: got q01 above q99 in dimensions 1, wanted it below"),
        ("action", [1, 2], r"got \[1, 2\], wanted a dictionary"),
        ("action", {}, "has no 'q01' and no 'q99' of its actions"),
    ],
)
def test_statistics_that_no_training_wrote(copy, path, value, words):
    put(copy / STATISTICS, f"reach_no_noops.{path}", value)
    with pytest.raises((CheckpointError, ConfigError), match=rf"(?s)dataset_statistics\.json.*{words}|{words}.*json"):
        described(copy)


def test_sizes_that_nothing_can_have_are_refused_by_name(copy):
    config = (copy / "config.json").read_text()
    data = json.loads(config)
    paths = ["pad_token_id", "pad_to_multiple_of", *(f"text_config.{name}" for name in vars(LlamaShape()))]
    paths += [f"rlvla_towers.{name}.{size}" for name, tower in data["rlvla_towers"].items() for size in tower]
    for path in {*paths} - {"text_config.rms_norm_eps", "text_config.rope_theta"}:
        put(copy / "config.json", path, 2**62)
        with pytest.raises(CheckpointError, match=rf"(?s)config\.json.*{path}: got 4611686018427387904"):
            described(copy)
        (copy / "config.json").write_text(config)
    for side in (4200, 2**62):
        put(copy / "config.json", "image_sizes", [side, side])
        with pytest.raises(CheckpointError, match=rf"image_sizes\.0: got {side}, wanted less than or equal to 4096"):
            described(copy)


def test_no_tokenizer_is_seen_before_weights_are_read(copy):
    (copy / "tokenizer.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"copy holds no tokenizer\.json: add the one that lay beside the weights"
    ):
        described(copy)


def test_a_data_set_that_is_a_list(copy):
    (copy / STATISTICS).write_text('{"reach": [1, 2]}')
    with pytest.raises(CheckpointError, match=r"(?s)reach is damaged.*got \[1, 2\], wanted a valid dictionary"):
        described(copy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "weight_map: missing"),
        ('{"weight_map": ["a"]}', r"weight_map: got \['a'\], wanted a valid dictionary"),
        ('{"weight_map": {"a": 3, "b": "x.safetensors"}}', r"weight_map\.a: got 3, wanted a valid string"),
        ('{"weight_map": {"a": "../x.safetensors"}}', r"names '\.\./x\.safetensors', wanted names of files beside it"),
        ('{"weight_map": ', "cannot be read: .*; download it again"),
    ],
)
def test_an_index_that_is_damaged(copy, text, words):
    (copy / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=rf"(?s)index\.json.*{words}"):
        described(copy)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"means": [1, 2]}, r"means\.0: got 1, wanted a valid tuple"),
        ({"stds": [[1.0], [1.0]]}, r"stds\.0\.1: missing"),
        ({"stds": [[0, 0, 0], [1, 1, 1]]}, r"stds\.0\.0: got 0, wanted greater than 0"),
        ({"means": [[NAN] * 3, [1, 1, 1]]}, r"means\.0\.0: got nan, wanted a finite number"),
        ({"stds": [[1e-46] * 3, [1, 1, 1]]}, r"stds\.0\.0: got 1e-46, wanted greater than 0, in fp32 too"),
        ({"tvf_do_letterbox": True}, "tvf_do_letterbox: got True, wanted False"),
        ({"image_resize_strategy": "resize-crop"}, "image_resize_strategy: got 'resize-crop', wanted 'resize-naive'"),
    ],
)
def test_means_and_deviations_of_pictures(copy, values, words):
    (copy / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=rf"(?s)preprocessor_config\.json.*{words}"):
        described(copy)


@pytest.mark.parametrize("content", ["{}", '{"version": "1.0", "model": {"type": "BPE", "vocab": {'])
def test_a_tokenizer_that_is_damaged(checkpoint, tmp_path, content):
    place = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (place / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read as a tokenizer: .*download it again"):
        worlds.make(place)


def test_a_tokenizer_without_the_lone_blank(checkpoint, tmp_path):
    place = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    data = json.loads((place / "tokenizer.json").read_text())
    data["model"]["vocab"]["▁?"] = data["model"]["vocab"].pop("▁")
    for merges, words in (
        (data["model"]["merges"], r"cannot be read as a tokenizer: .*`▁` out of vocabulary"),
        (
            [],
            r"not the tokenizer of these weights: '▁' is None, wanted 29871.*take the tokenizer\.json that lay beside",
        ),
    ):
        data["model"]["merges"] = merges
        (place / "tokenizer.json").write_text(json.dumps(data))
        with pytest.raises(CheckpointError, match=words):
            worlds.make(place)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {**worlds.HEADED, "temperature": 2.0},
            "temperature: got 2.0, which changes nothing without model.head 'tokens'",
        ),
        ({**worlds.HEADED, "top_k": 4}, "top_k: got 4, which changes nothing without model.head 'tokens'"),
        ({"gaussian": "learned"}, "gaussian: got 'learned', which changes nothing without model.head 'l1'"),
        ({"gaussian_std": 0.5}, "gaussian_std: got 0.5, which changes nothing without model.head 'l1'"),
        ({"tune": "full", "lora_rank": 8}, "lora_rank: got 8, which changes nothing without model.tune 'lora'"),
        ({"tune": "heads", "lora_alpha": 8.0}, "lora_alpha: got 8.0, which changes nothing without model.tune 'lora'"),
        (
            {"tune": "full", "lora_targets": ("q_proj",)},
            "lora_targets: got .*, which changes nothing without model.tune",
        ),
        (
            {"tune": "heads", "tune_vision": True},
            "tune_vision: got True, which changes nothing without model.tune 'lora' or",
        ),
        ({"tune": "heads", "recompute": True}, "recompute: got True, which changes nothing without"),
        ({"tune_vision": True, "keep_vision": True}, "keep_vision: got True, which changes nothing without"),
        (
            {"decoding": "autoregressive", "horizon": 1, "stop_token": True},
            "stop_token: got True, which changes nothing without model.decoding 'parallel'",
        ),
    ],
)
def test_an_option_that_changes_nothing_beside_the_others(checkpoint, headed, options, words):
    with pytest.raises(ConfigError, match=rf"model\.{words}"):
        described(headed if "proprio" in options else checkpoint, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gripper_range": [NAN, 1.0]}, r"model\.gripper_range\.0: got nan"),
        ({"temperature": float("inf")}, r"model\.temperature: got inf"),
        ({"lora_alpha": float("inf")}, r"model\.lora_alpha: got inf"),
    ],
)
def test_numbers_that_are_none(checkpoint, options, words):
    with pytest.raises(ConfigError, match=words):
        rlvla.build(
            sim="fake", model={"use": "openvla-oft", "path": str(checkpoint), **options}, algo="grpo", scheduler="sync"
        )


def test_a_checkpoint_with_heads_that_the_options_ignore_is_refused_with_the_reason(headed):
    with pytest.raises(ConfigError) as caught:
        described(headed)
    text = str(caught.value)
    assert "model.head: got 'tokens', but " in text
    assert "action_head--7_checkpoint.pt shows that this checkpoint acts by an L1 head" in text
    assert "proprio_projector--7_checkpoint.pt shows that this checkpoint reads the robot's state" in text
    assert described(headed, **worlds.HEADED).state


@pytest.mark.parametrize(("kind", "words"), [("vision_backbone", "FiLM"), ("noisy_action_projector", "diffusion")])
def test_a_checkpoint_that_acts_by_what_is_not_here_is_refused(copy, kind, words):
    (copy / f"{kind}--50000_checkpoint.pt").touch()
    with pytest.raises(ConfigError, match=rf"model\.path: .*{kind}--50000_checkpoint\.pt shows that .*{words}"):
        described(copy)


def test_the_cameras_that_it_was_trained_with_are_stored_and_asked_for(checkpoint, tmp_path):
    both = ("primary", "wrist")
    model = worlds.make(checkpoint, cameras=both)
    model.save(tmp_path / "adapter")
    model.export(tmp_path / "whole")
    for folder in ("adapter", "whole"):
        for cameras in (("primary",), ("wrist", "primary")):
            words = rf"model\.cameras: got {', '.join(cameras)}, but .*{folder} was trained with 2 in this order: primary, wrist"
            with pytest.raises(ConfigError, match=words):
                described(tmp_path / folder, cameras=cameras)
        assert described(tmp_path / folder, cameras=both).cameras == both
    assert (
        described(tmp_path / "whole", cameras=("primary", "wrist_left")).action_dim == 3
    )  # another robot's name for it
    with pytest.raises(CheckpointError, match=r"model\.cameras: got primary, but .* was trained with 2"):
        worlds.make(checkpoint).load(tmp_path / "adapter")


def test_a_statistics_file_without_data_sets_hides_nothing(copy):
    (copy / STATISTICS).write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"dataset_statistics\.json holds no data set: take the file .*, or remove it where"
    ):
        described(copy)


def test_the_statistics_in_use_are_said_at_the_start(checkpoint, caplog):
    with caplog.at_level("INFO", logger="rlvla_model_openvla_oft"):
        worlds.make(checkpoint)
    wanted = "actions are scaled by the statistics of reach_no_noops in "
    assert [one.message for one in caplog.records if one.message.startswith(wanted)]
    assert "from -1 to 1 to -0.9 to 0.8, -0.85 to 0.77, itself" in caplog.text
