"""Writes small random checkpoints in the public on-disk format, for tests, tutorials and trials on a CPU.

    from rlvla_model_gr00t import tiny
    tiny.write(Path("tiny-gr00t"))

Sizes, vocabulary and picture are small; names, files, 32 embodiments and 64 state dimensions are the public ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from torch import Tensor

from rlvla.checkpoint_header import INDEX
from rlvla.networks.initial import randomise_
from rlvla.weight_files import write_tensors
from rlvla_model_gr00t import files
from rlvla_model_gr00t.header import METADATA, AttentionShape, HeadShape, QwenShape, SiglipShape, read_header
from rlvla_model_gr00t.network import Layout, Network
from rlvla_model_gr00t.prompts import PIECE

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", PIECE, "<img>", "</img>")
_WORDS = (
    *(
        "user",
        "system",
        "You",
        "Ġare",
        "Ġa",
        "Ġhelpful",
        "assistant",
        "image",
        "Ġpick",
        "Ġup",
        "Ġthe",
        "Ġbowl",
        "Ġblack",
    ),
    *("Ġbetween", "Ġplate", "Ġand", "Ġramekin", "Ġplace", "Ġit", "Ġon", "Ġto", "Ġnext", "Ġfrom", "Ġtable", "Ġcenter"),
    *("Ġcookie", "Ġbox", "Ġtop", "Ġdrawer", "Ġof", "Ġwooden", "Ġcabinet", "Ġin", "Ġstove", "pick"),
)
"""LIBERO's among others, so that its instructions become about as many tokens as by the real tokenizer."""
_POSE = ("x", "y", "z", "roll", "pitch", "yaw")
_TWO_ARMS = {"left_arm": 6, "left_gripper": 1, "right_arm": 6, "right_gripper": 1}
_SIGLIP = SiglipShape(24, 40, 2, 2, image_size=28)
_QWEN = QwenShape(32, 48, 2, 4, 2, head_dim=8, vocab_size=512)
_HEAD = HeadShape(
    AttentionShape(4, 6, 4, 16),
    AttentionShape(4, 8, 2),
    backbone_embedding_dim=32,
    hidden_size=16,
    input_embedding_dim=24,
    max_seq_len=16,
    num_target_vision_tokens=4,
)


def write(
    folder: Path,
    *,
    tags: Sequence[str] = ("new_embodiment",),
    action_dim: int = 7,
    state_dim: int = 8,
    cameras: int = 2,
    siglip: SiglipShape = _SIGLIP,
    qwen: QwenShape = _QWEN,
    head: HeadShape = _HEAD,
    values: int = 0,
    lm_head: bool = False,
    tokenizer: bool = True,
    seed: int = 0,
    weights: bool = True,
) -> Path:
    """Write a checkpoint of some 100 thousand parameters; returns its folder.

    Args:
        folder: made where it is not there.
        tags: of the robots in its metadata.
        action_dim: of each; seven are a pose and a gripper, fourteen the joints and grippers of two arms.
        state_dim: of each; eight are a pose and two fingers, fourteen as actions.
        cameras: of each.
        siglip: sizes of the vision tower.
        qwen: of the language model.
        head: of the action head.
        values: of a value head, as published RL checkpoints have it; 0: none.
        lm_head: the embeddings once more, as some files have them.
        tokenizer: False: none, as in the public checkpoints.
        seed: of the weights.
        weights: False: none are written; the model draws them itself, on its GPU. With ``siglip=SiglipShape()``,
            ``qwen=QwenShape()`` and ``head=HeadShape()`` that is the full size.
    """
    (folder / METADATA).parent.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    added = {text: len(vocabulary) + place for place, text in enumerate(_SPECIAL)}
    config = _config(siglip, qwen, head, added[PIECE])
    _write_json(folder / "config.json", config if weights else {**config, "rlvla_random": seed})
    robot = _robot(action_dim, state_dim, cameras)
    _write_json(folder / METADATA, {tag: {**robot, "embodiment_tag": tag} for tag in tags})
    if tokenizer:
        _write_tokenizer(folder / "eagle", vocabulary, added)
    if weights:
        _write_weights(folder, values, lm_head, seed)
    return folder


def _write_weights(folder: Path, values: int, lm_head: bool, seed: int) -> None:
    header = read_header(folder)
    network = Network(header, Layout(values=values), torch.arange(0), 0)
    randomise_(network, torch.Generator().manual_seed(seed))
    made = {name: one.bfloat16() for name, one in network.state_dict().items()}
    made = all_rows(made, header.head.max_num_embodiments, torch.Generator().manual_seed(seed + 1))
    if lm_head:
        made[files.LM_HEAD] = made["backbone.eagle_model.language_model.model.embed_tokens.weight"].clone()
    names = list(made)
    weight_map: dict[str, str] = {}
    for number, half in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_tensors({name: made[name] for name in half}, folder / file)
        weight_map |= dict.fromkeys(half, file)
    _write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})


def all_rows(weights: Mapping[str, Tensor], embodiments: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return weights with a row for each embodiment, all of them different."""

    def rows(one: Tensor) -> Tensor:
        scale = 0.3 * (len(one) ** -0.5 if one.ndim > 1 else 0.1)
        return one + scale * torch.randn(embodiments, *one.shape, generator=generator).to(one.dtype)

    return {name: rows(one) if files.is_embodied(name) else one for name, one in weights.items()}


def _config(siglip: SiglipShape, qwen: QwenShape, head: HeadShape, image_token: int) -> dict[str, Any]:
    sizes = {name: one for name, one in asdict(head).items() if name not in ("diffusion", "context")}
    attention = {"dropout": 0.2, "final_dropout": True, "positional_embeddings": None}
    crossing = {"interleave_self_attention": True, "norm_type": "ada_norm"}
    tower = {"model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh", "num_channels": 3}
    language = {"model_type": "qwen3", "hidden_act": "silu", "attention_bias": False, "rope_scaling": None}
    eagle = {
        "model_type": "eagle_2_5_vl",
        "vision_config": {**asdict(siglip), **tower},
        "text_config": {**asdict(qwen), **language, "sliding_window": None, "use_sliding_window": False},
        "image_token_index": image_token,
        "force_image_size": siglip.image_size,
        "select_layer": -1,
        "mlp_connector_layers": 1,
        "use_pixel_shuffle": False,
    }
    return {
        "model_type": "gr00t_n1_5",
        "architectures": ["GR00T_N1_5"],
        "action_dim": head.action_dim,
        "action_horizon": head.action_horizon,
        "hidden_size": head.backbone_embedding_dim,
        "model_dtype": "float32",
        "torch_dtype": "bfloat16",
        "backbone_cfg": {
            "select_layer": qwen.num_hidden_layers,
            "project_to_dim": None,
            "reproject_vision": False,
            "tune_llm": False,
        },
        "action_head_cfg": {
            **sizes,
            "use_vlln": True,
            "add_pos_embed": True,
            "max_action_dim": head.action_dim,
            "diffusion_model_cfg": {
                **asdict(head.diffusion),
                **attention,
                **crossing,
                "cross_attention_dim": head.backbone_embedding_dim,
            },
            "vl_self_attention_cfg": {**asdict(head.context), **attention},
        },
        "eagle_config": eagle,
    }


def _robot(action_dim: int, state_dim: int, cameras: int) -> dict[str, Any]:
    """Return a robot's statistics and modalities, in parts as published data sets name them."""
    pose = dict.fromkeys(_POSE, 1)
    known = {("action", 7): {**pose, "gripper": 1}, ("state", 8): {**pose, "gripper": 2}}
    known |= {(kind, 14): _TWO_ARMS for kind in ("action", "state")}
    wanted = (("action", action_dim), ("state", state_dim))
    sizes = {kind: known.get((kind, size), {"joints": size}) for kind, size in wanted}
    modalities: dict[str, Any] = {
        "video": {
            name: {"resolution": [256, 256], "channels": 3, "fps": 20}
            for name in ("image", "wrist_image", "third_image")[:cameras]
        }
    }
    statistics: dict[str, Any] = {}
    for kind, parts in sizes.items():
        modalities[kind] = {
            name: {"absolute": kind == "state", "rotation_type": None, "shape": [size], "continuous": True}
            for name, size in parts.items()
        }
        statistics[kind] = {name: _ranges(kind, name, size, place) for place, (name, size) in enumerate(parts.items())}
    return {"statistics": statistics, "modalities": modalities}


def _ranges(kind: str, name: str, size: int, place: int) -> dict[str, list[float]]:
    low, high = (
        (0.0, 1.0) if kind == "action" and name.endswith("gripper") else (-0.9 + 0.05 * place, 0.8 - 0.03 * place)
    )
    numbers = {
        "min": low,
        "max": high,
        "mean": (low + high) / 2,
        "std": (high - low) / 4,
        "q01": 0.98 * low,
        "q99": 0.98 * high,
    }
    return {which: [number] * size for which, number in numbers.items()}


def _vocabulary() -> dict[str, int]:
    """Return all bytes, and the words' pieces from their beginnings on."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            vocabulary.setdefault(word[:end], len(vocabulary))
    return vocabulary


def _write_tokenizer(folder: Path, vocabulary: Mapping[str, int], added: Mapping[str, int]) -> None:
    """Write a byte-pair tokenizer in Qwen's files."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "vocab.json", vocabulary)
    merges = list(
        dict.fromkeys(f"{word[: end - 1]} {word[end - 1]}" for word in _WORDS for end in range(2, len(word) + 1))
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    _write_json(folder / "added_tokens.json", added)
    decoder = {
        str(number): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for text, number in added.items()
    }
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    _write_json(folder / "tokenizer_config.json", {**settings, "bos_token": None, "added_tokens_decoder": decoder})


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=1))
