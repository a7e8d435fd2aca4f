"""The solver's sums over constraint rows, each by one thread (or one tree of threads), in the order of the rows.

mujoco_warp adds them up by atomics: on a GPU in an order by chance. What it has against that (``DeterminismType.ATOMICS``) sorts,
by threads, a record for every number that might be added: for the Hessian of 256 worlds of LIBERO 1.5e8 in every iteration. Here each
number that comes out gathers what belongs to it, from rows that have their order (:mod:`rlvla.mujoco_warp.order`). So ATOMICS is
needed only for models of which :func:`gathers` is false.

Letters: N worlds, R rows that fit, B blocks of rows that share their degrees of freedom, V degrees of freedom, T pairs of them.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from mujoco_warp._src import solver
from mujoco_warp._src.types import vec5

from rlvla.mujoco_warp.start import wp

_CONE = wp.constant(int(mujoco.mjtConstraintState.mjCNSTRSTATE_CONE))
_QUADRATIC = wp.constant(int(mujoco.mjtConstraintState.mjCNSTRSTATE_QUADRATIC))
_TINY = wp.constant(1e-15)
"""mjMINVAL."""
_TANGENTS = 5
"""Of a contact, at most: its dimensions beside the normal."""
_DIMS = wp.constant(_TANGENTS)
_LANES = 32
_INTEGRATORS = (
    mujoco.mjtIntegrator.mjINT_EULER,
    mujoco.mjtIntegrator.mjINT_RK4,
    mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
)


@wp.kernel(enable_backward=False)
def find_places(
    blocks_N: wp.array[int],
    row_NB: wp.array2d[int],
    rownnz_NR: wp.array2d[int],
    rowadr_NR: wp.array2d[int],
    colind: wp.array3d[int],
    place_NBV: wp.array3d[wp.int16],
):
    """Note at which place of a block's rows each degree of freedom is; -1: at none."""
    world, block = wp.tid()
    if block >= blocks_N[world]:
        return
    for dof in range(place_NBV.shape[2]):
        place_NBV[world, block, dof] = wp.int16(-1)
    row = row_NB[world, block]
    start = rowadr_NR[world, row]
    for place in range(rownnz_NR[world, row]):
        place_NBV[world, block, colind[world, 0, start + place]] = wp.int16(place)


@wp.kernel(enable_backward=False)
def list_blocks(
    blocks_N: wp.array[int],
    place_NBV: wp.array3d[wp.int16],
    count_NV: wp.array2d[int],
    list_NVB: wp.array3d[wp.int16],
):
    """List the blocks that each degree of freedom is in, in their order."""
    world, dof = wp.tid()
    count = wp.int32(0)
    for block in range(blocks_N[world]):
        if place_NBV[world, block, dof] >= wp.int16(0):
            list_NVB[world, dof, count] = wp.int16(block)
            count += 1
    count_NV[world, dof] = count


@wp.kernel(enable_backward=False)
def sum_speeds(
    first_N: wp.array[int],
    second_N: wp.array[int],
    third_N: wp.array[int],
    nefc_N: wp.array[int],
    rownnz_NR: wp.array2d[int],
    rowadr_NR: wp.array2d[int],
    colind: wp.array3d[int],
    jacobian: wp.array3d[float],
    qvel_NV: wp.array2d[float],
    speed_NR: wp.array2d[float],
):
    """Sum up the speed along each row of a contact; rows of the three other classes, counted by the first arguments, have theirs."""
    world, row = wp.tid()
    if row >= nefc_N[world] or row < first_N[world] + second_N[world] + third_N[world]:
        return
    start = rowadr_NR[world, row]
    speed = wp.float32(0.0)
    for at in range(start, start + rownnz_NR[world, row]):
        speed += jacobian[world, 0, at] * qvel_NV[world, colind[world, 0, at]]
    speed_NR[world, row] = speed


@wp.kernel(enable_backward=False)
def sum_forces(
    friction_rows_N: wp.array[int],
    count_NV: wp.array2d[int],
    list_NVB: wp.array3d[wp.int16],
    place_NBV: wp.array3d[wp.int16],
    row_NB: wp.array2d[int],
    size_NB: wp.array2d[int],
    rowadr_NR: wp.array2d[int],
    jacobian: wp.array3d[float],
    force_NR: wp.array2d[float],
    friction_NV: wp.array2d[int],
    done_N: wp.array[bool],
    qfrc_NV: wp.array2d[float],
):
    """Sum up what rows' forces do to a degree of freedom."""
    world, dof, lane = wp.tid()
    if done_N[world]:
        return
    mine = wp.float32(0.0)
    for at in range(lane, count_NV[world, dof], wp.block_dim()):
        block = int(list_NVB[world, dof, at])
        place = int(place_NBV[world, block, dof])
        first = row_NB[world, block]
        for row in range(first, first + size_NB[world, block]):
            mine += jacobian[world, 0, rowadr_NR[world, row] + place] * force_NR[world, row]
    total = wp.tile_reduce(wp.add, wp.tile(mine))
    if lane == 0:
        value = total[0]
        if friction_rows_N[world] > 0:  # rows of friction in joints are in no block; their Jacobian is 1
            row = friction_NV[world, dof]
            if row >= 0:
                value += force_NR[world, row]
        qfrc_NV[world, dof] = value


@wp.kernel(enable_backward=False)
def bend_cones(
    blocks_N: wp.array[int],
    row_NB: wp.array2d[int],
    size_NB: wp.array2d[int],
    id_NR: wp.array2d[int],
    state_NR: wp.array2d[int],
    mass_NR: wp.array2d[float],
    slack_NR: wp.array2d[float],
    friction: wp.array[vec5],
    root: wp.array[float],
    done_N: wp.array[bool],
    bend_NB: wp.array3d[float],
):
    """Note how the cost of each contact that slides on its cone bends.

    With u the scaled slack along the tangents, t its length, w = u / t, n = mu times the slack along the normal, the Hessian by the
    scaled slacks is m [[1, -mu w'], [-mu w, mu n / t w w' + (mu^2 - mu n / t) I]], m = D / (mu^2 (1 + mu^2)). Source: MuJoCo,
    "Computation", elliptic cones. Noted are m, mu, mu n / t, and from place 3 on five w and five scales.
    """
    world, block = wp.tid()
    if done_N[world] or block >= blocks_N[world]:
        return
    first = row_NB[world, block]
    if state_NR[world, first] != _CONE:
        return
    contact = id_NR[world, first]
    mu = friction[contact][0] * root[world % root.shape[0]]
    square = wp.float32(0.0)
    for dim in range(_DIMS):
        slack = wp.float32(0.0)
        scale = wp.float32(0.0)
        if dim + 1 < size_NB[world, block]:
            scale = friction[contact][dim]
            slack = scale * slack_NR[world, first + 1 + dim]
        square += slack * slack
        bend_NB[world, block, 3 + dim] = slack
        bend_NB[world, block, 3 + _DIMS + dim] = scale
    length = wp.max(wp.sqrt(square), _TINY)
    for dim in range(_DIMS):
        bend_NB[world, block, 3 + dim] = bend_NB[world, block, 3 + dim] / length
    bend_NB[world, block, 0] = mass_NR[world, first] / wp.max(mu * mu * (1.0 + mu * mu), _TINY)
    bend_NB[world, block, 1] = mu
    bend_NB[world, block, 2] = mu * mu * slack_NR[world, first] / length


@wp.kernel(enable_backward=False)
def sum_hessian(
    one_T: wp.array[int],
    other_T: wp.array[int],
    count_NV: wp.array2d[int],
    list_NVB: wp.array3d[wp.int16],
    place_NBV: wp.array3d[wp.int16],
    row_NB: wp.array2d[int],
    size_NB: wp.array2d[int],
    rowadr_NR: wp.array2d[int],
    jacobian: wp.array3d[float],
    mass_NR: wp.array2d[float],
    state_NR: wp.array2d[int],
    bend_NB: wp.array3d[float],
    done_N: wp.array[bool],
    hessian: wp.array3d[float],
):
    """Add to an element of the Hessian (its upper half) what each block that has both degrees of freedom does."""
    world, pair = wp.tid()
    if done_N[world]:
        return
    one = one_T[pair]
    other = other_T[pair]
    value = hessian[world, one, other]
    for at in range(count_NV[world, one]):
        block = int(list_NVB[world, one, at])
        b = int(place_NBV[world, block, other])
        if b >= 0:
            a = int(place_NBV[world, block, one])
            first = row_NB[world, block]
            size = size_NB[world, block]
            if state_NR[world, first] == _CONE:
                mu = bend_NB[world, block, 1]
                along = bend_NB[world, block, 2]
                adr = rowadr_NR[world, first]
                na = mu * jacobian[world, 0, adr + a]
                nb = mu * jacobian[world, 0, adr + b]
                wa = wp.float32(0.0)
                wb = wp.float32(0.0)
                both = wp.float32(0.0)
                for dim in range(size - 1):
                    scale = bend_NB[world, block, 3 + _DIMS + dim]
                    adr = rowadr_NR[world, first + 1 + dim]
                    ta = scale * jacobian[world, 0, adr + a]
                    tb = scale * jacobian[world, 0, adr + b]
                    wa += bend_NB[world, block, 3 + dim] * ta
                    wb += bend_NB[world, block, 3 + dim] * tb
                    both += ta * tb
                bent = na * nb - mu * (na * wb + nb * wa) + along * wa * wb + (mu * mu - along) * both
                value += bend_NB[world, block, 0] * bent
            else:
                for row in range(first, first + size):
                    if state_NR[world, row] == _QUADRATIC:
                        adr = rowadr_NR[world, row]
                        value += jacobian[world, 0, adr + a] * mass_NR[world, row] * jacobian[world, 0, adr + b]
    hessian[world, one, other] = value


@wp.kernel(enable_backward=False)
def sum_gradient(
    smooth_NV: wp.array2d[float],
    constraint_NV: wp.array2d[float],
    inertial_NV: wp.array2d[float],
    changed_N: wp.array[int],
    skip_unchanged: bool,
    done_N: wp.array[bool],
    gradient_NV: wp.array2d[float],
    square_N: wp.array[float],
):
    """Make the gradient and its square."""
    world, lane = wp.tid()
    if done_N[world] or (skip_unchanged and changed_N[world] == 0):
        return
    mine = wp.float32(0.0)
    for dof in range(lane, smooth_NV.shape[1], wp.block_dim()):
        gradient = inertial_NV[world, dof] - smooth_NV[world, dof] - constraint_NV[world, dof]
        gradient_NV[world, dof] = gradient
        mine += gradient * gradient
    total = wp.tile_reduce(wp.add, wp.tile(mine))
    if lane == 0:
        square_N[world] = total[0]


@wp.kernel(enable_backward=False)
def order_numbers(count_N: wp.array[int], number_NR: wp.array2d[int], ordered_NR: wp.array2d[int]):
    """Write different numbers in their order."""
    world, at = wp.tid()
    if at >= count_N[world]:
        return
    number = number_NR[world, at]
    before = wp.int32(0)
    for other in range(count_N[world]):
        if number_NR[world, other] < number:
            before += 1
    ordered_NR[world, before] = number


def gathers(model: mujoco.MjModel, made: Any) -> bool:
    """Say whether no number of a step is added up by atomics of which there are two or more, beside those that are replaced here.

    Looked at is all that adds by atomics in mujoco_warp 4.0.0: tendons, flexes, gravity compensation, adhesion, moving surfaces,
    actuators that share a degree of freedom, trees whose inertia is factorised level by level, fluids, integrators, and the solver.
    Left to chance are forces on bodies that sensors tell (``cfrc_ext``), and energies: no state follows from them.

    Args:
        model: compiled.
        made: what mujoco_warp made of it.
    """
    joints = model.actuator_trnid[:, 0]
    if np.any(model.actuator_trntype != mujoco.mjtTrn.mjTRN_JOINT) or len(set(joints)) < model.nu:
        return False
    hinges = np.isin(model.jnt_type[joints], (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))
    fluid = model.opt.density or model.opt.viscosity
    return bool(
        hinges.all()
        and not (fluid and model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
        and model.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON
        and made.is_sparse == (model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC)
        and model.opt.integrator in _INTEGRATORS
        and (made.is_sparse or made.nv <= made.block_dim.contact_jac_tiled)
        and not (model.ntendon or model.nflex or model.body_gravcomp.any() or model.opt.noslip_iterations)
        and not (made.flg_adhesion or made.flg_surfacevel or made.qLD_updates)
    )


class Sums:
    """What the solver adds up, for models of which :func:`gathers` is true.

    Its methods take the place of functions of mujoco_warp's ``solver`` and ``constraint`` (4.0.0) that have the same arguments.

    Args:
        model: of mujoco_warp.
        data: of mujoco_warp, N worlds.
    """

    def __init__(self, model: Any, data: Any) -> None:
        self._worlds, self._rows, self._dofs = data.nworld, data.njmax, model.nv
        self.sparse = bool(model.is_sparse)
        """Of the Jacobian: its Hessian is made anew in every iteration; else what changed is added, row by row."""
        size = (self._worlds, self._rows) if self.sparse else (0, 0)
        self._place = wp.zeros((*size, self._dofs), dtype=wp.int16)
        self._count = wp.zeros((self._worlds, self._dofs), dtype=int)
        self._list = wp.zeros((size[0], self._dofs, size[1]), dtype=wp.int16)
        self._bend = wp.zeros((*size, 3 + 2 * _TANGENTS), dtype=float)
        self._ordered = wp.zeros((self._worlds, 0 if self.sparse else self._rows), dtype=int)

    def rows_made(self, data: Any) -> None:
        """Find out which blocks of rows have which degrees of freedom; after rows are in order."""
        if not self.sparse:
            return
        efc = data.efc
        wp.launch(
            find_places,
            dim=(self._worlds, self._rows),
            inputs=[efc.jtdaj_nblock, efc.jtdaj_adr, efc.J_rownnz, efc.J_rowadr, efc.J_colind],
            outputs=[self._place],
        )
        wp.launch(
            list_blocks,
            dim=(self._worlds, self._dofs),
            inputs=[efc.jtdaj_nblock, self._place],
            outputs=[self._count, self._list],
        )

    def speeds(self, data: Any) -> None:
        """Sum up speeds along rows of contacts; after their Jacobian was made, before they are used."""
        if not self.sparse:
            return
        efc = data.efc
        wp.launch(
            sum_speeds,
            dim=(self._worlds, self._rows),
            inputs=[
                *(data.ne, data.nf, data.nl, data.nefc),
                *(efc.J_rownnz, efc.J_rowadr, efc.J_colind, efc.J, data.qvel),
            ],
            outputs=[efc.Jqvel],
        )

    def update_constraint(
        self, model: Any, data: Any, ctx: Any, track_changes: bool = False, stable_fast: bool = False
    ) -> None:
        """Make forces and states of rows, and what they do to degrees of freedom; of a sparse Jacobian."""
        efc = data.efc
        wp.launch(
            solver._update_constraint_efc(track_changes),
            dim=(self._worlds, self._rows),
            inputs=[
                *(model.opt.impratio_invsqrt, data.ne, data.nf, data.nefc),
                *(data.contact.friction, data.contact.dim, data.contact.efc_address),
                *(efc.type, efc.id, efc.D, efc.frictionloss, data.nacon, ctx.Jaref, ctx.ls_exhausted, ctx.done),
            ],
            outputs=[efc.force, efc.state, ctx.quad_changed_ids, ctx.quad_changed_count, ctx.state_changed_count],
        )
        wp.launch_tiled(
            sum_forces,
            dim=(self._worlds, self._dofs),
            inputs=[
                *(data.nf, self._count, self._list, self._place, efc.jtdaj_adr, efc.jtdaj_nrow),
                *(efc.J_rowadr, efc.J, efc.force, data.dof_frictionadr, ctx.done),
            ],
            outputs=[data.qfrc_constraint],
            block_dim=_LANES,
        )

    def update_gradient(self, model: Any, data: Any, ctx: Any, compact: bool = False) -> None:
        """Make gradient, Hessian and the next direction; of a sparse Jacobian."""
        self._gradient(data, ctx, data.nefc, stable_fast=False)
        efc = data.efc
        wp.launch(
            solver._update_gradient_init_h_sparse(False),
            dim=(self._worlds, model.nv_pad, solver._INIT_H_LANES),
            inputs=[
                *(model.nv, model.M_elemid, data.nf, data.M, efc.D, efc.state),
                *(data.dof_frictionadr, data.cdof_dof, ctx.done),
            ],
            outputs=[ctx.h],
        )
        blocks = [efc.jtdaj_adr, efc.jtdaj_nrow]
        wp.launch(
            bend_cones,
            dim=(self._worlds, self._rows),
            inputs=[
                *(efc.jtdaj_nblock, *blocks, efc.id, efc.state, efc.D, ctx.Jaref),
                *(data.contact.friction, model.opt.impratio_invsqrt, ctx.done),
            ],
            outputs=[self._bend],
        )
        wp.launch(
            sum_hessian,
            dim=(self._worlds, model.dof_tri_row.size),
            inputs=[
                *(model.dof_tri_row, model.dof_tri_col, self._count, self._list, self._place, *blocks),
                *(efc.J_rowadr, efc.J, efc.D, efc.state, self._bend, ctx.done),
            ],
            outputs=[ctx.h],
        )
        solver._cholesky_factorize_solve(model, data, ctx)

    def update_gradient_incremental(self, model: Any, data: Any, ctx: Any, stable_fast: bool = False) -> None:
        """Make gradient, Hessian and the next direction from rows that changed; of a dense Jacobian."""
        changed = ctx.state_changed_count if stable_fast else data.nefc
        self._gradient(data, ctx, changed, stable_fast)
        wp.launch(
            order_numbers,
            dim=(self._worlds, self._rows),
            inputs=[ctx.quad_changed_count, ctx.quad_changed_ids],
            outputs=[self._ordered],
        )
        wp.launch(
            solver._update_gradient_h_incremental,
            dim=(self._worlds, model.dof_tri_row.size),
            inputs=[data.efc.J, data.efc.D, data.efc.state, self._ordered, ctx.quad_changed_count],
            outputs=[ctx.h],
        )
        solver._cholesky_factorize_solve(model, data, ctx, skip_unchanged=True, skip_noflip=stable_fast)

    def _gradient(self, data: Any, ctx: Any, changed: Any, stable_fast: bool) -> None:
        wp.launch(
            solver._update_gradient_zero_grad_dot(stable_fast),
            dim=self._worlds,
            inputs=[changed, ctx.alpha, ctx.done],
            outputs=[ctx.grad_dot, ctx.newton_decrement, ctx.grad_scale, ctx.search_unchanged],
        )
        self.square_gradient(data, ctx, changed, stable_fast)

    def square_gradient(self, data: Any, ctx: Any, changed: Any, stable_fast: bool) -> None:
        """Make the gradient and its square, but of worlds in which no row changed, where these may be left out."""
        wp.launch_tiled(
            sum_gradient,
            dim=self._worlds,
            inputs=[data.qfrc_smooth, data.qfrc_constraint, data.efc.Ma, changed, stable_fast, ctx.done],
            outputs=[ctx.grad, ctx.grad_dot],
            block_dim=_LANES,
        )
