"""Arrays of simulators: numpy's or torch's, and torch is never imported for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlvla.simulator import ChunkResult, Observation


def on_host(array: Any) -> np.ndarray:
    """Return a numpy array of a numpy array or a torch tensor on any device; a view where that is possible."""
    if hasattr(array, "cpu"):
        array = array.cpu().numpy()
    return np.asarray(array)


def empty_result(rows: int, horizon: int, *, video: bool = False) -> ChunkResult:
    """Return the result of a chunk in which nothing has happened yet, for a simulator to fill in row by row.

    Args:
        rows: N.
        horizon: H.
        video: with a list of frames for each row.
    """
    return ChunkResult(
        observation=Observation({}, np.zeros((0, 0), np.float32), []),
        reward=np.zeros((rows, horizon), np.float32),
        terminated=np.zeros((rows, horizon), bool),
        truncated=np.zeros((rows, horizon), bool),
        valid=np.zeros((rows, horizon), bool),
        success=np.zeros(rows, bool),
        frames=[[] for _ in range(rows)] if video else None,
    )
