"""Files of a checkpoint, changed on purpose: what a model's tests of damaged and foreign ones share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


def change(file: Path, **values: Any) -> None:
    """Replace or add top-level values of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def put(file: Path, path: str, value: Any) -> None:
    """Replace or add one value of a JSON file, at names with points between them: ``"vision_config.image_size"``."""
    data = json.loads(file.read_text())
    *above, last = path.split(".")
    place = data
    for name in above:
        place = place[name]
    place[last] = value
    file.write_text(json.dumps(data))


def rewrite(file: Path, **changes: Tensor | None) -> None:
    """Replace or add tensors of a safetensors file; None: take it out."""
    weights = {**load_file(file), **changes}
    save_file({name: one for name, one in weights.items() if one is not None}, file)
