"""``config.json``: the published one is the network that is here, and sizes that are damaged or of another network are refused."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict

import gr00t_worlds as worlds
import pytest
import torch
from gr00t_worlds import described

import rlvla
from rlvla.errors import CheckpointError, ConfigError
from rlvla.testing.damage import change, put
from rlvla_model_gr00t.header import HeadShape, QwenShape, SiglipShape, read_header

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
    put(copy / "config.json", ".".join(path), value)
    if words is None:  # a number in quotes is the number
        assert described(copy).horizon == 2
        return
    with pytest.raises(CheckpointError, match=words):
        described(copy)
