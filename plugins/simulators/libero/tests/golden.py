"""Draws the golden pictures again: ``python tests/golden.py``. Done once, with mujoco 3.3.7 on llvmpipe (LLVM 15)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from rlvla.specs import Start
from rlvla_sim_libero import LiberoConfig
from rlvla_sim_libero.simulator import LiberoSimulator

FOLDER = Path(__file__).parent / "golden"
SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


def first_pictures(suite: str) -> tuple[dict[str, np.ndarray], str]:
    """Return both cameras' pictures (uint8 ``[64, 64, 3]``) of a suite's task 0, stored state 0, and who drew them."""
    simulator = LiberoSimulator(LiberoConfig(suite=suite, tasks=(0,), image_size=64), rows=1)  # type: ignore[arg-type]
    observation = simulator.reset([0], [0], [Start(0, 0)])
    pictures = {name: images[0].copy() for name, images in observation.images.items()}
    renderer = simulator.versions()["GL_RENDERER"]
    simulator.close()
    return pictures, renderer


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for suite in SUITES:
        for name, picture in first_pictures(suite)[0].items():
            Image.fromarray(picture).save(FOLDER / f"{suite}_{name}.png", optimize=True)
