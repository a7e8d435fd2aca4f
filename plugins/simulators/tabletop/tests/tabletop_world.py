"""What tests of the batched backend share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlvla.arrays import on_host
from rlvla.specs import Start
from rlvla_sim_tabletop import TabletopConfig, backends

GPU = {"backend": "gpu", "device": "cpu"}
"""Batched physics where there is no GPU."""
needs_warp = pytest.mark.skipif(bool(backends.missing()), reason=f"backend gpu needs {'; '.join(backends.missing())}")


def batched(rows: int, **options: Any) -> Any:
    """Return the batched backend, on warp's CPU device unless options say otherwise."""
    from rlvla_sim_tabletop.batched import BatchedTabletop

    return BatchedTabletop(TabletopConfig(**{**GPU, **options}), rows)


def begin(simulator: Any, seeds: list[int], rows: list[int] | None = None) -> Any:
    """Reset rows (the first ones) to these seeds, each asked for another colour."""
    rows = list(range(len(seeds))) if rows is None else rows
    return simulator.reset(rows, seeds, [Start(row % 3) for row in rows])


def random_chunk(rows: int, horizon: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (rows, horizon, 3)).astype(np.float32)


def bits(simulator: Any) -> dict[str, np.ndarray]:
    """Return a copy of everything that decides what happens next, and of what is shown."""
    everything = slice(None)
    names = {"physics": simulator._worlds.state(everything), "pictures": simulator._images}
    names |= {name: getattr(simulator, f"_{name}") for name in ("origin", "potential", "steps", "ended", "goal")}
    return {name: on_host(tensor).copy() for name, tensor in names.items()}
