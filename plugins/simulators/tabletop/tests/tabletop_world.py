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


def scene_text():
    from importlib import resources

    return (resources.files("rlvla_sim_tabletop") / "scene.xml").read_text()


def check_side_by_side(device):
    """Play two batches of worlds at the same time, and one after the other: equal bits."""
    import mujoco
    import torch

    from rlvla.mujoco_warp.worlds import Limits, Worlds, side_by_side

    model = mujoco.MjModel.from_xml_string(scene_text())
    found = []
    for together in (False, True):
        batches = [Worlds(model, count, limits=Limits(32, 128), device=device, deterministic=True) for count in (3, 2)]
        steps = [worlds.env_step(5) for worlds in batches]
        sums = torch.zeros(5, device=batches[0].device)
        for _ in range(4):
            if together:
                with side_by_side(batches):
                    for worlds, step, rows in zip(batches, steps, (slice(0, 3), slice(3, 5)), strict=True):
                        with worlds.lane():
                            step()
                            sums[rows] += worlds["qpos"].sum(1)
            else:
                for worlds, step, rows in zip(batches, steps, (slice(0, 3), slice(3, 5)), strict=True):
                    with worlds.turn():
                        step()
                        sums[rows] += worlds["qpos"].sum(1)
        found.append([sums.cpu(), *(worlds["qpos"].cpu() for worlds in batches)])
    for alone, beside in zip(*found, strict=True):
        assert torch.equal(alone, beside)
