"""Weights on disk: the public folders, read strictly and written again.

A folder holds the model's shards and their index, or a LoRA adapter alone that names its base. Beside them: L1 head and
proprio projector in files of their own (the public ``.pt`` are read without unpickling objects; rlvla's checkpoints hold
safetensors, exports ``.pt`` of tensors alone), and ``rlvla_heads.safetensors`` with what only training with rlvla adds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvla.checkpoint_header import read_json
from rlvla.errors import CheckpointError
from rlvla.weight_files import read_tensors, write_tensors
from rlvla_model_openvla_oft.header import HEADS, Header

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_NOTES = ("rlvla_base", "rlvla_base_files", "rlvla_cameras", "rlvla_random")
"""What rlvla writes in ``config.json`` and copies nowhere: weights that were drawn are written, or their folder is named."""
_BESIDE = (*_TOKENIZER, "preprocessor_config.json", "processor_config.json", "generation_config.json")


def read_head(header: Header, kind: str) -> dict[str, Tensor]:
    """Return the weights of ``action_head`` or ``proprio_projector``, from the newest file with them.

    Raises:
        CheckpointError: there is no such file.
    """
    if found := [file for file in header.beside(f"{kind}--*_checkpoint.*") if file.suffix in (".pt", ".safetensors")]:
        return read_tensors(max(found, key=_step))
    option = {"action_head": "model.head 'l1'", "proprio_projector": "model.proprio True"}[kind]
    raise CheckpointError(
        f"{header.folder} holds no {kind}--*_checkpoint.pt (or .safetensors), which {option} needs: add the file that "
        "training wrote beside the weights, or leave the option out"
    )


def _step(file: Path) -> float:
    step = file.name.partition("--")[2].partition("_")[0]
    return float(step) if step.isdigit() else float("inf")


def write_head(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights of ``action_head`` or ``proprio_projector``."""
    write_tensors(tensors, folder / f"{kind}--latest_checkpoint.safetensors")


def export_head(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights of ``action_head`` or ``proprio_projector`` as the public code reads them."""
    torch.save(
        {name: one.detach().cpu().clone() for name, one in tensors.items()}, folder / f"{kind}--latest_checkpoint.pt"
    )


def write_heads(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what only training with rlvla adds."""
    if tensors:
        write_tensors(tensors, folder / HEADS)


def write_headers(folder: Path, header: Header, notes: Mapping[str, Any], *, whole: bool) -> None:
    """Write config and statistics of the checkpoint that training started from.

    Args:
        folder: made where it is not there.
        header: of that checkpoint.
        notes: what rlvla adds to ``config.json``; its notes in the old one are left out.
        whole: the folder is to hold all weights: tokenizer, preprocessor and the public code too, which is copied as it is
            and never run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = header.base or header
    for file in sorted(source.folder.glob("*.py")) if whole else ():
        shutil.copyfile(file, folder / file.name)
    own = {name: one for name, one in source.config.items() if name not in _NOTES}
    _write_json(folder / "config.json", {**own, **notes})
    _write_json(folder / "dataset_statistics.json", header.data_sets)
    for name in _BESIDE if whole else ():
        if not (source.folder / name).is_file():
            continue
        if name.endswith("_config.json"):
            _write_json(folder / name, read_json(source.folder / name))
        else:
            shutil.copyfile(source.folder / name, folder / name)


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    """Write an object; without ``auto_map``, where that names code that does not lie beside it."""
    named = data.get("auto_map")
    if named is not None and not all((file.parent / one).is_file() for one in _modules(named)):
        data = {name: one for name, one in data.items() if name != "auto_map"}
    file.write_text(json.dumps(dict(data), indent=1))


def _modules(auto_map: Any) -> list[str]:
    """Return the files that ``auto_map`` names: of ``file.Class``, but not of another repository's ``org/name--file.Class``."""
    values = auto_map.values() if isinstance(auto_map, Mapping) else [auto_map]
    flat = [str(one) for value in values for one in (value if isinstance(value, list) else [value]) if one is not None]
    return [f"{one.rpartition('.')[0]}.py" for one in flat if "--" not in one]
