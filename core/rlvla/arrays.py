"""Arrays from simulators may be numpy's or torch's; torch is never imported for it."""

from __future__ import annotations

from typing import Any

import numpy as np


def on_host(array: Any) -> np.ndarray:
    """Return a numpy array of a numpy array or a torch tensor on any device; a view where that is possible."""
    if hasattr(array, "cpu"):
        array = array.cpu().numpy()
    return np.asarray(array)
