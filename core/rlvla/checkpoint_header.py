"""What the JSON files of a public checkpoint folder say of its weights. Light: no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvla.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} holds a {type(data).__name__}, wanted an object")
    return data


def shards_of(folder: Path) -> tuple[Path, ...]:
    """Return the files with a model's weights: those that the index names, or the only one; empty: there are none."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / "model.safetensors"
        return (single,) if single.is_file() else ()
    return tuple(folder / name for name in sorted(set(read_json(index)["weight_map"].values())))


def missing(shards: Sequence[Path]) -> list[str]:
    """Return names of weight files that should be there."""
    return [file.name for file in shards if not file.is_file()]


def adapter_of(folder: Path) -> Path | None:
    """Return the folder of a LoRA adapter beside no weights of the model itself; None: there is none."""
    places = (one for one in (folder, folder / "lora_adapter") if (one / "adapter_config.json").is_file())
    return None if shards_of(folder) else next(places, None)
