"""The small LIBERO world of these tests, and where it runs.

Full physics (marker ``gpu``) compiles LIBERO's kernels, two to five minutes the first time, so CI leaves it out. Where there is
no GPU, ``pytest -m gpu`` runs it on warp's CPU device.
"""

from __future__ import annotations

import pytest

from rlvla_sim_libero_gpu import packages

MISSING = packages.missing()
needs_warp = pytest.mark.skipif(
    bool(MISSING), reason=f"needs {'; '.join(MISSING)}: run it in the environment of libero-gpu"
)

STOVE = 7
"""In libero_goal: "turn on the stove", which a push of its button solves."""
BOWL = 8
"""In libero_goal: "put the bowl on the plate"."""


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def small() -> dict[str, object]:
    """Return options of a world that is soon made and stepped."""
    return {
        "suite": "libero_goal",
        "tasks": (STOVE, BOWL),
        "image_size": 32,
        "settle_steps": 2,
        "max_episode_steps": 12,
        "texture_size": 64,
        "device": device(),
    }
