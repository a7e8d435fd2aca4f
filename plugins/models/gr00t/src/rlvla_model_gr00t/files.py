"""Weights on disk: the public folders, read strictly and written again.

A public folder holds backbone and head. A run's folder holds the head, an adapter where there is one, and the name of the
checkpoint they stand on; beside it ``rlvla_heads.safetensors`` with what no public code knows. Head weights that exist once
for each embodiment are in files with all their rows, in memory with one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvla.weight_files import write_tensors
from rlvla_model_gr00t.header import METADATA, TOKENIZER, Header

HEADS = "rlvla_heads.safetensors"
HEAD, VALUE, NOISE = "action_head.", "action_head.value_head.", "action_head.noise_net."
LM_HEAD = "backbone.eagle_model.language_model.lm_head.weight"
"""The embeddings once more, in some files."""
_EMBODIED = tuple(f"{HEAD}{name}." for name in ("state_encoder", "action_encoder", "action_decoder"))


def is_embodied(name: str) -> bool:
    """Return whether files hold a row of this weight for each embodiment."""
    return name.startswith(_EMBODIED)


class OtherRows:
    """All embodiments' rows as they were read, on the host: what a file needs beside the one that is trained.

    Args:
        weights: by public name, ``[embodiments, ...]``.
        row: of the embodiment in memory.
    """

    def __init__(self, weights: Mapping[str, Tensor], row: int, embodiments: int) -> None:
        self._weights, self._row, self._embodiments = dict(weights), row, embodiments

    def __deepcopy__(self, memo: dict[int, Any]) -> OtherRows:
        return self

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights as files hold them, with all rows."""
        return {name: self._with_others(name, one) if is_embodied(name) else one for name, one in weights.items()}

    def _with_others(self, name: str, mine: Tensor) -> Tensor:
        others = self._weights.get(name)
        if others is None:  # weights were drawn
            others = torch.zeros(self._embodiments, *mine.shape)
        rows = others.to(mine.dtype, copy=True)
        rows[self._row] = mine.detach().cpu()
        return rows

    def shapes(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what a file should hold, without memory."""
        return {
            name: torch.empty(self._embodiments, *one.shape, device="meta") if is_embodied(name) else one
            for name, one in weights.items()
        }

    def mine(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a file's weights with this embodiment's row alone, copied."""
        return {name: one[self._row].clone() if is_embodied(name) else one for name, one in found.items()}


def embodied(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of a file's weights that have a row for each embodiment."""
    return {name: one for name, one in found.items() if is_embodied(name)}


def write_heads(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what no public code knows."""
    if tensors:
        write_tensors(tensors, folder / HEADS)


_NOTES = ("rlvla_base", "rlvla_base_files", "rlvla_random")
"""What rlvla writes in ``config.json``, and a whole checkpoint has not."""


def write_headers(
    folder: Path, header: Header, base: str | None = None, base_files: Mapping[str, str] | None = None
) -> None:
    """Write config and metadata of the checkpoint that training started from.

    Args:
        folder: made where it is not there.
        header: of that checkpoint.
        base: its name, where the folder is not to hold the backbone; None: it is, and tokenizer and Eagle files are copied too.
        base_files: what tells its weights from others.
    """
    source = header.base or header
    (folder / METADATA).parent.mkdir(parents=True, exist_ok=True)
    if base is None:  # the folder's own weights count, whatever they began as
        config = {name: value for name, value in source.config.items() if name not in _NOTES}
    else:
        config = {**source.config, "rlvla_base": base, "rlvla_base_files": dict(base_files or {})}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / METADATA).write_text(json.dumps(dict(header.metadata), indent=1))
    for name in TOKENIZER if base is None else ():
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
    if base is None and (source.folder / "eagle").is_dir():
        shutil.copytree(source.folder / "eagle", folder / "eagle", dirs_exist_ok=True)
    elif (source.folder / "eagle/config.json").is_file():  # sizes of the backbone
        (folder / "eagle").mkdir(exist_ok=True)
        shutil.copyfile(source.folder / "eagle/config.json", folder / "eagle/config.json")
