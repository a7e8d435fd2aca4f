"""What mujoco_warp launches for worlds that are to have equal bits: shapes that do not depend on how many worlds there are, rows in
one order, and sums in it.

mujoco_warp 4.0.0 has no way to be told so: functions of its modules are replaced while such worlds launch. Another version is refused,
before this module is imported, which wants that version's private names.

Newton's Hessian is summed up in groups of constraint rows, and mujoco_warp makes fewer groups the more worlds there are (``solver.py``,
``_jtdaj_groups_per_world``, 4.0.0): sums in another order, other last bits. Measured on the CPU, libero_goal task 8: the first
substep with contacts parts batches of 1, 2, 3 and 4 worlds; with one number of groups batches of 1, 2, 3, 4, 6 and 9 are
equal for 60 substeps with up to 345 rows. Models that :mod:`rlvla.mujoco_warp.sums` knows would not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mujoco
from mujoco_warp._src import constraint, solver

from rlvla.mujoco_warp.order import RowOrder
from rlvla.mujoco_warp.start import mjw
from rlvla.mujoco_warp.sums import Sums, gathers

_WORLDS = 256
"""Groups are those of so many worlds: on an H200 enough to fill it, few where there are thousands of worlds."""


class Ordered:
    """What is replaced while some worlds launch.

    Args:
        mujoco_model: compiled.
        model: that mujoco_warp made of it; which of its own means it uses is set here.
        data: of mujoco_warp.

    Raises:
        SimulatorError: the rows of this model cannot be put in order.
    """

    def __init__(self, mujoco_model: mujoco.MjModel, model: Any, data: Any) -> None:
        self._order = RowOrder(mujoco_model, model, data)
        self._sums = Sums(model, data) if gathers(mujoco_model, model) else None
        # CONTACTS would put contacts in order, which nothing needs; ATOMICS adds in the order of threads.
        kinds = mjw.DeterminismType
        model.opt.deterministic = kinds.CONSTRAINT if self._sums is not None else kinds.CONSTRAINT | kinds.ATOMICS
        self._data = data

    def replaced(self) -> dict[tuple[Any, str], Callable[..., Any]]:
        """Return (module, name) to what takes its place."""
        found: dict[tuple[Any, str], Callable[..., Any]] = {(constraint, "_sort_constraints"): self._rows_made}
        if self._sums is None:
            return found
        if self._sums.sparse:
            found[constraint, "_efc_contact_update"] = self._before(constraint._efc_contact_update)
            found[solver, "_update_constraint"] = self._sums.update_constraint
            found[solver, "_update_gradient"] = self._sums.update_gradient
        else:
            found[solver, "_update_gradient"] = self._squared(solver._update_gradient)
            found[solver, "_update_gradient_incremental"] = self._sums.update_gradient_incremental
        return found

    def _rows_made(self, model: Any, data: Any) -> None:
        self._order(model, data)
        if self._sums is not None:
            self._sums.rows_made(data)

    def _before(self, kernel_for: Callable[..., Any]) -> Callable[..., Any]:
        """Speeds are wanted between two kernels; the second is asked for in between."""

        def asked(*options: Any) -> Any:
            assert self._sums is not None
            self._sums.speeds(self._data)
            return kernel_for(*options)

        return asked

    def _squared(self, first: Callable[..., Any]) -> Callable[..., Any]:
        """The first gradient is mujoco_warp's, but for its square."""

        def made(model: Any, data: Any, ctx: Any, compact: bool = False) -> None:
            assert self._sums is not None
            first(model, data, ctx, compact)
            self._sums.square_gradient(data, ctx, data.nefc, stable_fast=False)

        return made


@contextmanager
def one_order(ordered: Ordered) -> Iterator[None]:
    """Hold while mujoco_warp launches for these worlds, one thread at a time: rows have one order, and sums go by it."""
    with ExitStack() as stack:
        for (module, name), function in ordered.replaced().items():
            stack.enter_context(_swapped(module, name, function))
        yield


@contextmanager
def one_shape() -> Iterator[None]:
    """Hold while mujoco_warp launches, one thread at a time: however many worlds, a world's sums have one order."""
    by_worlds = solver._jtdaj_groups_per_world

    def by_capacity(worlds: int, rows: int, kernel: Any) -> int:
        return int(by_worlds(_WORLDS, rows, kernel))

    with _swapped(solver, by_worlds.__name__, by_capacity):
        yield


@contextmanager
def _swapped(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, before)
