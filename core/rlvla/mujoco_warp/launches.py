"""Launch shapes that do not depend on how many worlds there are.

Newton's Hessian is summed up in groups of constraint rows, and mujoco_warp makes fewer groups the more worlds there are (``solver.py``,
``_jtdaj_groups_per_world``, 4.0.0): sums in another order, other last bits. Measured on the CPU, libero_goal task 8: the first
substep with contacts parts batches of 1, 2, 3 and 4 worlds; with one number of groups batches of 1, 2, 3, 4, 6 and 9 are
equal for 60 substeps with up to 345 rows. Not measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mujoco_warp._src import solver

from rlvla.errors import SimulatorError
from rlvla.mujoco_warp.start import mjw

_NAME = "_jtdaj_groups_per_world"
_WORLDS = 256
"""Groups are those of so many worlds: on an H200 enough to fill it, few where there are thousands of worlds."""


@contextmanager
def one_shape() -> Iterator[None]:
    """Hold while mujoco_warp launches, one thread at a time: however many worlds, a world's sums have one order.

    Raises:
        SimulatorError: this mujoco_warp counts groups in another way.
    """
    by_worlds = getattr(solver, _NAME, None)
    if by_worlds is None:
        raise SimulatorError(
            f"deterministic: mujoco-warp {mjw.__version__} shares out the solver's sums otherwise than 4.0.0 does, so bits might "
            "depend on the number of worlds: install mujoco-warp 4.0.0, or leave deterministic out"
        )

    def by_capacity(worlds: int, rows: int, kernel: Any) -> int:
        return int(by_worlds(_WORLDS, rows, kernel))

    setattr(solver, _NAME, by_capacity)
    try:
        yield
    finally:
        setattr(solver, _NAME, by_worlds)
