"""MuJoCo Warp for batched simulators: N worlds of one model on a GPU, programs captured as CUDA graphs, pictures as tensors.

Simulator plugins use it, the core itself does not. It knows no task. Its modules need mujoco-warp and torch; this one
imports neither.
"""

from __future__ import annotations

import re

_DEVICE = re.compile(r"cpu|cuda(:(0|[1-9][0-9]?))?")


def device_problem(name: str) -> str:
    """Say why a name is none of a device that worlds may live on; empty: it is one, whether or not it is there."""
    return "" if _DEVICE.fullmatch(name) else f"device: got {name!r}, wanted 'cuda', 'cuda:N' (N from 0) or 'cpu'"
