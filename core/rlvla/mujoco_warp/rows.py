"""What callers of a batched simulator hand over, looked at before a world is touched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def checked_rows(rows: Iterable[int], count: int) -> list[int]:
    """Return rows as integers; there may be none of them.

    Raises:
        ValueError: there is no such row, or one is named twice.
    """
    found = [int(row) for row in rows]
    if strange := sorted({row for row in found if not 0 <= row < count}):
        raise ValueError(f"rows: got {strange}, wanted numbers from 0 to {count - 1}")
    if twice := sorted({row for row in found if found.count(row) > 1}):
        raise ValueError(f"rows: got {twice} more than once, wanted each row once")
    return found


def check_shapes(chunk: Any, active_N: np.ndarray, rows: int, actions: str, dims: int) -> None:
    """Check what a step is given.

    Args:
        chunk: wanted as ``[rows, H, dims]``.
        active_N: wanted as ``[rows]``.
        rows: N.
        actions: what they are made of, for the message.
        dims: of an action.

    Raises:
        ValueError: another shape.
    """
    if chunk.ndim != 3 or (chunk.shape[0], chunk.shape[2]) != (rows, dims) or not chunk.shape[1]:
        raise ValueError(
            f"actions have shape {tuple(chunk.shape)}, wanted [{rows} rows, H of 1 or more, {dims}] ({actions})"
        )
    if active_N.shape != (rows,):
        raise ValueError(f"active has shape {active_N.shape}, wanted one flag a row: ({rows},)")
