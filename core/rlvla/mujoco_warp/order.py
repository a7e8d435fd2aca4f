"""One order of constraint rows, whatever order a GPU came upon them in.

mujoco_warp hands out contacts, constraint rows and blocks of rows by atomic counters, so on a GPU their places are chance, and with
them every sum over rows. Its own ordering (``constraint.py``, ``_sort_constraints``, 4.0.0) is empty. Here the rows of each world
are moved: equality, friction, limits and contacts stay in that order, and within each, rows go by type and number of what they
constrain, those of contacts by both geoms and the number in the pair (``geomcollisionid``); rows of one constraint, which have
neighbouring places from the start, keep theirs. What points to rows follows. Left where they are: contacts, which are added up in
their order for elliptic cones with a dense Jacobian alone (worlds have a sparse one instead), and numbers of the sparse Jacobian,
which are reached by their addresses.

Which rows or contacts are left out where they do not fit is chance, so bits are equal where nothing overflows.
Letters: N worlds, R rows that fit, V degrees of freedom.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from __future__ import annotations

from typing import Any

import mujoco

from rlvla.errors import SimulatorError
from rlvla.mujoco_warp.start import wp

_FIELDS = ("type", "id", "pos", "margin", "D", "vel", "aref", "frictionloss", "Jqvel", "J_rownnz", "J_rowadr")
"""What a row consists of, beside its numbers in the Jacobian; ``force`` and ``state`` are the solver's, which comes later."""
_NAME_BITS = 20
"""Of each number in a name."""
_MOST = 1 << _NAME_BITS
"""Numbers that fit there."""
_BITS = wp.constant(wp.int64(_NAME_BITS))
_CONTACT = wp.constant(3)
"""Class of rows, after equality, friction and limits."""
_DOF_FRICTION = wp.constant(int(mujoco.mjtConstraint.mjCNSTR_FRICTION_DOF))


@wp.struct
class EfcRows:
    """Fields of all rows of N worlds."""

    type: wp.array2d[int]
    id: wp.array2d[int]
    pos: wp.array2d[float]
    margin: wp.array2d[float]
    D: wp.array2d[float]
    vel: wp.array2d[float]
    aref: wp.array2d[float]
    frictionloss: wp.array2d[float]
    Jqvel: wp.array2d[float]
    J_rownnz: wp.array2d[int]
    J_rowadr: wp.array2d[int]


@wp.func
def _copy(source: EfcRows, world: int, row: int, target: EfcRows, place: int, sparse: bool):
    target.type[world, place] = source.type[world, row]
    target.id[world, place] = source.id[world, row]
    target.pos[world, place] = source.pos[world, row]
    target.margin[world, place] = source.margin[world, row]
    target.D[world, place] = source.D[world, row]
    target.vel[world, place] = source.vel[world, row]
    target.aref[world, place] = source.aref[world, row]
    target.frictionloss[world, place] = source.frictionloss[world, row]
    target.Jqvel[world, place] = source.Jqvel[world, row]
    if sparse:
        target.J_rownnz[world, place] = source.J_rownnz[world, row]
        target.J_rowadr[world, place] = source.J_rowadr[world, row]


@wp.kernel(enable_backward=False)
def name_rows(
    ne_N: wp.array[int],
    nf_N: wp.array[int],
    nl_N: wp.array[int],
    nefc_N: wp.array[int],
    live: EfcRows,
    geom: wp.array[wp.vec2i],
    number: wp.array[int],
    name_NR: wp.array2d[wp.int64],
):
    """Name each row by what it constrains: its class, then type and number, or both geoms and the number in the pair."""
    world, row = wp.tid()
    if row >= nefc_N[world]:
        return
    kind = wp.int32(0)
    if row >= ne_N[world]:
        kind = 1
    if row >= ne_N[world] + nf_N[world]:
        kind = 2
    if row >= ne_N[world] + nf_N[world] + nl_N[world]:
        kind = _CONTACT
    first = live.type[world, row]
    second = live.id[world, row]
    third = wp.int32(0)
    if kind == _CONTACT:
        contact = live.id[world, row]
        first = geom[contact][0]
        second = geom[contact][1]
        third = number[contact]
    name = (wp.int64(kind) << _BITS) | wp.int64(first)
    name = (name << _BITS) | wp.int64(second)
    name_NR[world, row] = (name << _BITS) | wp.int64(third)


@wp.kernel(enable_backward=False)
def place_rows(nefc_N: wp.array[int], name_NR: wp.array2d[wp.int64], place_NR: wp.array2d[int]):
    """Count the rows that come before each; those of one name keep their order."""
    world, row = wp.tid()
    count = wp.min(nefc_N[world], name_NR.shape[1])
    if row >= count:
        return
    name = name_NR[world, row]
    before = wp.int32(0)
    for other in range(count):
        its = name_NR[world, other]
        if its < name or (its == name and other < row):
            before += 1
    place_NR[world, row] = before


@wp.kernel(enable_backward=False)
def set_aside(
    nefc_N: wp.array[int],
    blocks_N: wp.array[int],
    place_NR: wp.array2d[int],
    live: EfcRows,
    block_row_NR: wp.array2d[int],
    block_size_NR: wp.array2d[int],
    sparse: bool,
    aside: EfcRows,
    aside_row_NR: wp.array2d[int],
    aside_size_NR: wp.array2d[int],
):
    """Copy rows to where they belong, and blocks of rows in the order of their rows."""
    world, row = wp.tid()
    if row < nefc_N[world]:
        _copy(live, world, row, aside, place_NR[world, row], sparse)
    if sparse and row < blocks_N[world]:
        first = place_NR[world, block_row_NR[world, row]]
        before = wp.int32(0)
        for other in range(blocks_N[world]):
            if place_NR[world, block_row_NR[world, other]] < first:
                before += 1
        aside_row_NR[world, before] = first
        aside_size_NR[world, before] = block_size_NR[world, row]


@wp.kernel(enable_backward=False)
def put_back(
    ne_N: wp.array[int],
    nf_N: wp.array[int],
    nl_N: wp.array[int],
    nefc_N: wp.array[int],
    blocks_N: wp.array[int],
    aside: EfcRows,
    aside_row_NR: wp.array2d[int],
    aside_size_NR: wp.array2d[int],
    sparse: bool,
    live: EfcRows,
    block_row_NR: wp.array2d[int],
    block_size_NR: wp.array2d[int],
    address: wp.array2d[int],
    friction_NV: wp.array2d[int],
):
    """Copy rows and blocks back, and say where they are now: those of contacts, and of friction in joints."""
    world, row = wp.tid()
    if row < nefc_N[world]:
        _copy(aside, world, row, live, row, sparse)
        number = aside.id[world, row]
        if aside.type[world, row] == _DOF_FRICTION:
            friction_NV[world, number] = row
        begin = ne_N[world] + nf_N[world] + nl_N[world]
        if row >= begin:
            dim = wp.int32(0)
            for back in range(begin, row):
                if aside.id[world, back] == number:
                    dim += 1
            address[number, dim] = row
    if sparse and row < blocks_N[world]:
        block_row_NR[world, row] = aside_row_NR[world, row]
        block_size_NR[world, row] = aside_size_NR[world, row]


@wp.kernel(enable_backward=False)
def set_jacobian_aside(
    nefc_N: wp.array[int], place_NR: wp.array2d[int], live: wp.array3d[float], aside: wp.array3d[float]
):
    """Copy a dense Jacobian's rows to where they belong."""
    world, row, dof = wp.tid()
    if row < nefc_N[world]:
        aside[world, place_NR[world, row], dof] = live[world, row, dof]


@wp.kernel(enable_backward=False)
def put_jacobian_back(nefc_N: wp.array[int], aside: wp.array3d[float], live: wp.array3d[float]):
    """Copy a dense Jacobian's rows back."""
    world, row, dof = wp.tid()
    if row < nefc_N[world]:
        live[world, row, dof] = aside[world, row, dof]


class RowOrder:
    """Puts rows of worlds in order, in four launches (six where the Jacobian is dense).

    Args:
        mujoco_model: compiled.
        model: that mujoco_warp made of it.
        data: of mujoco_warp, N worlds.

    Raises:
        SimulatorError: the model has what rows cannot be told apart by (flexes, signed distance fields, 2**20 geoms or more).
    """

    def __init__(self, mujoco_model: mujoco.MjModel, model: Any, data: Any) -> None:
        fields = int((mujoco_model.geom_type == mujoco.mjtGeom.mjGEOM_SDF).sum())
        if mujoco_model.nflex or fields or mujoco_model.ngeom >= _MOST:
            raise SimulatorError(
                f"deterministic: got a model with {mujoco_model.nflex} flexes, {fields} signed distance fields and {mujoco_model.ngeom} "
                f"geoms, wanted none, none and fewer than {_MOST}, whose contacts can be put in order: leave deterministic out"
            )
        shape = (data.nworld, data.njmax)
        self._dim = shape
        self._sparse = bool(model.is_sparse)
        self._name = wp.zeros(shape, dtype=wp.int64)
        self._place, self._block_row, self._block_size = (wp.zeros(shape, dtype=int) for _ in range(3))
        self._live, self._aside = EfcRows(), EfcRows()
        for name in _FIELDS:
            field = getattr(data.efc, name)
            setattr(self._live, name, field)
            setattr(self._aside, name, wp.zeros_like(field))
        self._jacobian = None if self._sparse else wp.zeros_like(data.efc.J)

    def __call__(self, model: Any, data: Any) -> None:
        """Put the rows that were just made in order; takes the place of mujoco_warp's ``_sort_constraints``."""
        counts = [data.ne, data.nf, data.nl, data.nefc]
        blocks = [data.efc.jtdaj_adr, data.efc.jtdaj_nrow]
        aside = [self._aside, self._block_row, self._block_size]
        wp.launch(
            name_rows,
            dim=self._dim,
            inputs=[*counts, self._live, data.contact.geom, data.contact.geomcollisionid],
            outputs=[self._name],
        )
        wp.launch(place_rows, dim=self._dim, inputs=[data.nefc, self._name], outputs=[self._place])
        wp.launch(
            set_aside,
            dim=self._dim,
            inputs=[data.nefc, data.efc.jtdaj_nblock, self._place, self._live, *blocks, self._sparse],
            outputs=aside,
        )
        wp.launch(
            put_back,
            dim=self._dim,
            inputs=[*counts, data.efc.jtdaj_nblock, *aside, self._sparse],
            outputs=[self._live, *blocks, data.contact.efc_address, data.dof_frictionadr],
        )
        if self._jacobian is not None:
            self._move_jacobian(data)

    def _move_jacobian(self, data: Any) -> None:
        dim = (*self._dim, data.efc.J.shape[2])
        wp.launch(set_jacobian_aside, dim=dim, inputs=[data.nefc, self._place, data.efc.J], outputs=[self._jacobian])
        wp.launch(put_jacobian_back, dim=dim, inputs=[data.nefc, self._jacobian], outputs=[data.efc.J])
