"""Writes small random checkpoints in the public on-disk format, for tests, tutorials and trials on a CPU.

    from rlvla_model_openvla_oft import tiny
    tiny.write(Path("tiny-oft"))

The vocabulary keeps its public size, so the ids of prompt, padding and action tokens are the real ones; the tokenizer
knows the prompt's words and spells others in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from rlvla.checkpoint_header import INDEX
from rlvla.networks.initial import randomise_
from rlvla.weight_files import write_tensors
from rlvla_model_openvla_oft.header import MEANS, STDS, LlamaShape, TowerShape, read_header
from rlvla_model_openvla_oft.network import Layout, Network

_WORDS = "In: What action should the robot take to Out: pick up the black bowl and place it on the plate"
_VOCABULARY, _BLANK = 32000, 29871


def write(
    folder: Path,
    *,
    action_dim: int = 7,
    state_dim: int = 8,
    image_size: int = 28,
    llama: LlamaShape | None = None,
    dino: TowerShape | None = None,
    siglip: TowerShape | None = None,
    data_sets: Sequence[str] = ("tiny",),
    heads: bool = False,
    seed: int = 0,
    weights: bool = True,
) -> Path:
    """Write a checkpoint of some 4 million parameters, nearly all of them the vocabulary's; returns its folder.

    Args:
        folder: made where it is not there.
        action_dim: the last dimension is a gripper, which is not scaled; 14: the 7th too.
        state_dim: of the statistics and of the proprio projector.
        image_size: what the towers see, a multiple of 14.
        llama: sizes of the language model.
        dino: of the first tower.
        siglip: of the second.
        data_sets: names in the statistics.
        heads: L1 action head and proprio projector too.
        seed: of the weights.
        weights: False: none are written; the model draws them itself, on its GPU. With ``llama=LlamaShape(vocab_size=32064),
            dino=DINO, siglip=SIGLIP, image_size=224`` that is the full size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    llama = llama or LlamaShape(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    towers = {"featurizer": dino or TowerShape(16, 2, 2, 32), "fused_featurizer": siglip or TowerShape(24, 2, 2, 40)}
    _write_json(folder / "config.json", _config(llama, towers, image_size))
    statistics = {name: _statistics(action_dim, state_dim) for name in data_sets}
    _write_json(folder / "dataset_statistics.json", statistics)
    pictures = {"input_sizes": [[3, image_size, image_size]] * 2, "means": MEANS, "stds": STDS}
    _write_json(folder / "preprocessor_config.json", pictures)
    _write_tokenizer(folder)
    if not weights:
        config = json.loads((folder / "config.json").read_text())
        _write_json(folder / "config.json", {**config, "rlvla_random": seed})
        return folder
    layout = Layout(action_dim, 1, l1=heads, state_dim=state_dim if heads else 0)
    network = Network(read_header(folder), layout)
    randomise_(network, torch.Generator().manual_seed(seed))
    made = {name: one.bfloat16() for name, one in network.state_dict().items()}
    for kind in ("action_head", "proprio_projector"):
        part = {name: made.pop(name) for name in list(made) if name.startswith(f"{kind}.")}
        if part:
            torch.save(
                {name.removeprefix(f"{kind}."): one for name, one in part.items()}, folder / f"{kind}--7_checkpoint.pt"
            )
    names = list(made)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_tensors({name: made[name] for name in half}, folder / file)
        weight_map |= dict.fromkeys(half, file)
    _write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})
    return folder


def _config(llama: LlamaShape, towers: dict[str, TowerShape], image_size: int) -> dict[str, Any]:
    text = {**asdict(llama), "vocab_size": _VOCABULARY + 64, "model_type": "llama", "pad_token_id": _VOCABULARY}
    return {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "llm_backbone_id": "llama2-7b-pure",
        "arch_specifier": "no-align+fused-gelu-mlp",
        "use_fused_vision_backbone": True,
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_override_act_layers": [None, None],
        "image_resize_strategy": "resize-naive",
        "image_sizes": [image_size, image_size],
        "pad_token_id": _VOCABULARY,
        "pad_to_multiple_of": 64,
        "n_action_bins": 256,
        "torch_dtype": "bfloat16",
        "text_config": text,
        "rlvla_towers": {name: asdict(shape) for name, shape in towers.items()},
    }


def _statistics(action_dim: int, state_dim: int) -> dict[str, Any]:
    gripper = [(action_dim == 14 and place == 6) or place == action_dim - 1 for place in range(action_dim)]
    low = [0.0 if one else -0.9 + 0.05 * place for place, one in enumerate(gripper)]
    high = [1.0 if one else 0.8 - 0.03 * place for place, one in enumerate(gripper)]
    action = {"q01": low, "q99": high, "min": low, "max": high, "mask": [not one for one in gripper]}
    state = [-1.0] * state_dim, [1.0] * state_dim
    return {"action": action, "proprio": {"q01": state[0], "q99": state[1], "min": state[0], "max": state[1]}}


def _write_tokenizer(folder: Path) -> None:
    """Write a byte-pair tokenizer with Llama's special ids, byte fallback, and fillers up to the vocabulary's size."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}, "▁": _BLANK}
    merges: list[tuple[str, str]] = []
    free = (number for number in range(259, _VOCABULARY) if number != _BLANK)

    def put(piece: str) -> None:
        if piece not in vocabulary:
            vocabulary[piece] = next(free)

    for code in range(33, 127):
        put(chr(code))
    for word in _WORDS.split():
        piece = "▁"
        for letter in word:
            if (piece, letter) not in merges:
                merges.append((piece, letter))
            piece += letter
            put(piece)
    for number in free:
        vocabulary[f"<fill_{number}>"] = number
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(one, normalized=False) for one in ("<unk>", "<s>", "</s>", "<PAD>")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<PAD>"}
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", {**special, "tokenizer_class": "LlamaTokenizer", "legacy": False})


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=1))
