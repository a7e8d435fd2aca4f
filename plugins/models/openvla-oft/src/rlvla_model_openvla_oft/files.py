"""Weights on disk: the public folders, read strictly and written again.

A folder holds the model's shards and their index, or a LoRA adapter alone that names its base. Beside them: L1 head and
proprio projector in files of their own (the public ``.pt`` are read without unpickling objects; written are safetensors),
and ``rlvla_heads.safetensors`` with what only training with rlvla adds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rlvla.errors import CheckpointError
from rlvla.weight_files import read_tensors, write_tensors
from rlvla_model_openvla_oft.header import Header

HEADS = "rlvla_heads.safetensors"
ADAPTER = "adapter_model.safetensors"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_BESIDE = (*_TOKENIZER, "preprocessor_config.json", "generation_config.json")


def read_head(header: Header, kind: str) -> dict[str, Tensor]:
    """Return the weights of ``action_head`` or ``proprio_projector``, from the newest file with them.

    Raises:
        CheckpointError: there is no such file.
    """
    folders = [header.folder, *([header.base.folder] if header.base is not None else [])]
    for folder in folders:
        files = [*folder.glob(f"{kind}--*_checkpoint.safetensors"), *folder.glob(f"{kind}--*_checkpoint.pt")]
        if files:
            return read_tensors(max(files, key=_step))
    raise CheckpointError(f"{header.folder} holds no {kind}--*_checkpoint.pt (or .safetensors)")


def _step(file: Path) -> float:
    step = file.name.partition("--")[2].partition("_")[0]
    return float(step) if step.isdigit() else float("inf")


def write_head(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights of ``action_head`` or ``proprio_projector``."""
    write_tensors(tensors, folder / f"{kind}--latest_checkpoint.safetensors")


def write_heads(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what only training with rlvla adds."""
    if tensors:
        write_tensors(tensors, folder / HEADS)


def write_adapter(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a LoRA adapter under peft's names."""
    write_tensors(tensors, folder / ADAPTER)


def write_headers(folder: Path, header: Header, base: str | None) -> None:
    """Write config and statistics of the checkpoint that training started from.

    Args:
        folder: made where it is not there.
        header: of that checkpoint.
        base: its name, where the folder is to hold no weights of the model itself; None: tokenizer and preprocessor too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = header.base or header
    config = dict(source.config) if base is None else {**source.config, "rlvla_base": base}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "dataset_statistics.json").write_text(json.dumps(dict(header.data_sets), indent=1))
    for name in _BESIDE if base is None else ():
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
