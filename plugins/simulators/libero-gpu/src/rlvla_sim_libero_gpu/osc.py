"""robosuite 1.4's OSC_POSE controller and its gripper as warp kernels, between the two halves of a MuJoCo step.

What robosuite computes (``controllers/osc.py``, ``utils/control_utils.py``; uncoupled, fixed impedance), J = [Jp; Jr] the
Jacobian of the hand's site, M the arm's mass matrix, R and Rd the hand's rotation and its goal::

    F   = kp (xd - x) - kd Jp dq                    kp = 150, kd = 2 sqrt(kp)
    T   = kp e - kd Jr dq                           e = 1/2 sum over columns k of R[:, k] x Rd[:, k]
    a   = 10 (q0 - q) - 2 sqrt(10) dq               pull to the rest pose, in the null space
    tau = J' [(Jp M^-1 Jp')^-1 F; (Jr M^-1 Jr')^-1 T] + N' M a + bias,  clipped to the torque limits
    N'  = I - J' (J M^-1 J')^-1 J M^-1

The goal is set in the first substep of an action: x + 0.05 m, and the rotation vector 0.5 rad times the hand's rotation.
The gripper's command moves by 0.01 a substep. In the first substep after a reset robosuite acts on what it read before the
initial state was set (``rlvla_sim_libero.scene``): such worlds are ``held``.

Everything is float32. M is factorised once (Cholesky), as is the 6x6 matrix of the null space; pivots have a floor, where
robosuite's pseudo-inverse would drop a direction. Letters: N worlds.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvla.mujoco_warp.start import wp
from rlvla_sim_libero.scene import Robot

KP = 150.0
KD = 2.0 * KP**0.5
REST_KP = 10.0
REST_KD = 2.0 * REST_KP**0.5
MOVE_M = 0.05
TURN_RAD = 0.5
GRIPPER_SPEED = 0.01
_FLOOR = 1e-12
"""Smallest pivot of a factorisation; those of LIBERO's arm are above 1e-4 away from singular poses."""

_BLOCK = 32
"""Threads of a block: worlds are few and these kernels long, so they are spread over multiprocessors."""

vec7 = wp.types.vector(7, float)
vec6 = wp.types.vector(6, float)
mat67 = wp.types.matrix((6, 7), float)
mat77 = wp.types.matrix((7, 7), float)
mat76 = wp.types.matrix((7, 6), float)
mat66 = wp.types.matrix((6, 6), float)


@wp.func
def _factor7(m: mat77):
    """Return the lower Cholesky factor of a symmetric positive matrix."""
    low = mat77()
    for j in range(7):
        pivot = m[j, j]
        for k in range(j):
            pivot -= low[j, k] * low[j, k]
        root = wp.sqrt(wp.max(pivot, _FLOOR))
        low[j, j] = root
        for i in range(j + 1, 7):
            value = m[i, j]
            for k in range(j):
                value -= low[i, k] * low[j, k]
            low[i, j] = value / root
    return low


@wp.func
def _solve6(m: mat66, b: vec6):
    """Return x of m x = b, m symmetric and positive."""
    low = mat66()
    for j in range(6):
        pivot = m[j, j]
        for k in range(j):
            pivot -= low[j, k] * low[j, k]
        root = wp.sqrt(wp.max(pivot, _FLOOR))
        low[j, j] = root
        for i in range(j + 1, 6):
            value = m[i, j]
            for k in range(j):
                value -= low[i, k] * low[j, k]
            low[i, j] = value / root
    x = vec6()
    for i in range(6):
        value = b[i]
        for k in range(i):
            value -= low[i, k] * x[k]
        x[i] = value / low[i, i]
    for step in range(6):
        i = 5 - step
        value = x[i]
        for k in range(i + 1, 6):
            value -= low[k, i] * x[k]
        x[i] = value / low[i, i]
    return x


@wp.kernel(enable_backward=False)
def read_arm(
    frozen_N: wp.array[bool],
    held_N: wp.array[bool],
    site: int,
    root: int,
    qpos_at: wp.array[int],
    dof_at: wp.array[int],
    mass_at: wp.array2d[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    site_xpos: wp.array2d[wp.vec3],
    site_xmat: wp.array2d[wp.mat33],
    subtree_com: wp.array2d[wp.vec3],
    cdof: wp.array2d[wp.spatial_vector],
    mass: wp.array2d[float],
    pos_N: wp.array[wp.vec3],
    mat_N: wp.array[wp.mat33],
    q_N: wp.array[vec7],
    dq_N: wp.array[vec7],
    vel_N: wp.array[vec6],
    jacobian_N: wp.array[mat67],
    mass_N: wp.array[mat77],
):
    """Read what the controller acts on, where the world is neither frozen nor held."""
    world = wp.tid()
    if frozen_N[world] or held_N[world]:
        return
    point = site_xpos[world, site]
    arm = point - subtree_com[world, root]
    q = vec7()
    dq = vec7()
    jacobian = mat67()
    weight = mat77()
    velocity = vec6()
    for j in range(7):
        dof = dof_at[j]
        q[j] = qpos[world, qpos_at[j]]
        dq[j] = qvel[world, dof]
        axis = wp.spatial_top(cdof[world, dof])
        way = wp.spatial_bottom(cdof[world, dof]) + wp.cross(axis, arm)
        for k in range(3):
            jacobian[k, j] = way[k]
            jacobian[3 + k, j] = axis[k]
        for i in range(7):
            weight[i, j] = mass[world, mass_at[i, j]]
    for k in range(6):
        total = wp.float32(0.0)
        for j in range(7):
            total += jacobian[k, j] * dq[j]
        velocity[k] = total
    pos_N[world] = point
    mat_N[world] = site_xmat[world, site]
    q_N[world] = q
    dq_N[world] = dq
    vel_N[world] = velocity
    jacobian_N[world] = jacobian
    mass_N[world] = weight


@wp.func
def _turned(rotation: wp.vec3, mat: wp.mat33):
    """Return a rotation matrix turned by a rotation vector."""
    angle = wp.length(rotation)
    return wp.quat_to_matrix(wp.quat_from_axis_angle(rotation / angle, angle)) * mat


@wp.kernel(enable_backward=False)
def set_goal(
    frozen_N: wp.array[bool],
    action_N7: wp.array2d[float],
    pos_N: wp.array[wp.vec3],
    mat_N: wp.array[wp.mat33],
    goal_pos_N: wp.array[wp.vec3],
    goal_mat_N: wp.array[wp.mat33],
):
    """Set the goal of an action; one without rotation keeps the rotation of the goal before."""
    world = wp.tid()
    if frozen_N[world]:
        return
    move = wp.vec3()
    turn = wp.vec3()
    for k in range(3):
        move[k] = wp.clamp(action_N7[world, k], -1.0, 1.0) * MOVE_M
        turn[k] = wp.clamp(action_N7[world, 3 + k], -1.0, 1.0) * TURN_RAD
    goal_pos_N[world] = pos_N[world] + move
    if wp.length_sq(turn) > 0.0:
        goal_mat_N[world] = _turned(turn, mat_N[world])


@wp.kernel(enable_backward=False)
def drive_arm(
    frozen_N: wp.array[bool],
    held_N: wp.array[bool],
    dof_at: wp.array[int],
    actuator_at: wp.array[int],
    lowest: vec7,
    highest: vec7,
    pos_N: wp.array[wp.vec3],
    mat_N: wp.array[wp.mat33],
    q_N: wp.array[vec7],
    dq_N: wp.array[vec7],
    vel_N: wp.array[vec6],
    jacobian_N: wp.array[mat67],
    mass_N: wp.array[mat77],
    rest_N: wp.array[vec7],
    goal_pos_N: wp.array[wp.vec3],
    goal_mat_N: wp.array[wp.mat33],
    bias: wp.array2d[float],
    ctrl: wp.array2d[float],
):
    """Write the arm's torques (Nm); worlds are no longer held."""
    world = wp.tid()
    if frozen_N[world]:
        return
    held_N[world] = False
    jac = jacobian_N[world]
    mass = mass_N[world]
    now = mat_N[world]
    goal = goal_mat_N[world]
    velocity = vel_N[world]
    error = wp.vec3()
    for k in range(3):
        error += 0.5 * wp.cross(wp.vec3(now[0, k], now[1, k], now[2, k]), wp.vec3(goal[0, k], goal[1, k], goal[2, k]))
    away = goal_pos_N[world] - pos_N[world]
    force = wp.vec3()
    torque = wp.vec3()
    for k in range(3):
        force[k] = KP * away[k] - KD * velocity[k]
        torque[k] = KP * error[k] - KD * velocity[3 + k]
    # w = L^-1 J', so that w' w = J M^-1 J'
    low = _factor7(mass)
    w = mat76()
    for c in range(6):
        for i in range(7):
            value = jac[c, i]
            for k in range(i):
                value -= low[i, k] * w[k, c]
            w[i, c] = value / low[i, i]
    inertia = mat66()
    for a in range(6):
        for b in range(a + 1):
            total = wp.float32(0.0)
            for k in range(7):
                total += w[k, a] * w[k, b]
            inertia[a, b] = total
            inertia[b, a] = total
    of_pos = wp.mat33()
    of_mat = wp.mat33()
    for a in range(3):
        for b in range(3):
            of_pos[a, b] = inertia[a, b]
            of_mat[a, b] = inertia[3 + a, 3 + b]
    push = wp.inverse(of_pos) * force
    twist = wp.inverse(of_mat) * torque
    pull = vec7()
    for j in range(7):
        pull[j] = REST_KP * (rest_N[world][j] - q_N[world][j]) - REST_KD * dq_N[world][j]
    seen = vec6()
    for c in range(6):
        total = wp.float32(0.0)
        for j in range(7):
            total += jac[c, j] * pull[j]
        seen[c] = total
    hidden = _solve6(inertia, seen)
    for j in range(7):
        total = bias[world, dof_at[j]]
        for k in range(3):
            total += jac[k, j] * (push[k] - hidden[k]) + jac[3 + k, j] * (twist[k] - hidden[3 + k])
        for i in range(7):
            total += mass[j, i] * pull[i]
        ctrl[world, actuator_at[j]] = wp.clamp(total, lowest[j], highest[j])


@wp.kernel(enable_backward=False)
def drive_gripper(
    frozen_N: wp.array[bool],
    action_N7: wp.array2d[float],
    actuator_at: wp.array[int],
    middle: wp.vec2,
    reach: wp.vec2,
    gripper_N: wp.array[wp.vec2],
    ctrl: wp.array2d[float],
):
    """Move the gripper's command and write what its actuators take."""
    world = wp.tid()
    if frozen_N[world]:
        return
    way = wp.float32(0.0)
    if action_N7[world, 6] > 0.0:
        way = GRIPPER_SPEED
    if action_N7[world, 6] < 0.0:
        way = -GRIPPER_SPEED
    now = gripper_N[world]
    now = wp.vec2(wp.clamp(now[0] - way, -1.0, 1.0), wp.clamp(now[1] + way, -1.0, 1.0))
    gripper_N[world] = now
    ctrl[world, actuator_at[0]] = middle[0] + reach[0] * now[0]
    ctrl[world, actuator_at[1]] = middle[1] + reach[1] * now[1]


_READ = {
    "pos": wp.vec3,
    "mat": wp.mat33,
    "q": vec7,
    "dq": vec7,
    "vel": vec6,
    "jacobian": mat67,
    "mass": mat77,
}
"""What the controller acts on: read from physics, or held."""
_KEPT = {"rest": vec7, "goal_pos": wp.vec3, "goal_mat": wp.mat33, "gripper": wp.vec2}
"""What it remembers."""
MEMORY = (*_READ, *_KEPT)
"""Names of all that a controller holds beside ``held``."""


class Controller:
    """The controllers of N worlds.

    Args:
        robot: where it is in the model.
        model: of mujoco_warp (``put_model``).
        count: N.
        device: of warp.
        frozen: warp bool ``[N]``: worlds in which nothing changes.
    """

    def __init__(self, robot: Robot, model: Any, count: int, device: Any, frozen: Any) -> None:
        self._model, self._count, self._device, self._frozen = model, count, device, frozen
        self._robot = robot
        dofs = np.asarray(robot.arm_dofs)
        body = int(model.site_bodyid.numpy()[robot.hand_site])
        self._root = int(model.body_rootid.numpy()[body])
        addresses = model.M_elemid.numpy()[np.ix_(dofs, dofs)]
        self._mass_at = self._ids(np.where(addresses < 0, addresses.T, addresses))
        self._qpos_at, self._dof_at = self._ids(robot.arm_qpos), self._ids(dofs)
        self._arm_at, self._gripper_at = self._ids(robot.arm_actuators), self._ids(robot.gripper_actuators)
        self._lowest, self._highest = (vec7(*map(float, limits)) for limits in robot.torque_limits)
        self._middle = wp.vec2(*map(float, robot.gripper_middle))
        self._reach = wp.vec2(*map(float, robot.gripper_reach))
        self._arrays = {name: wp.zeros(count, dtype=kind, device=device) for name, kind in (_READ | _KEPT).items()}
        self._held = wp.zeros(count, dtype=bool, device=device)
        self._action = wp.zeros((count, 7), dtype=float, device=device)
        self.held: Tensor = wp.to_torch(self._held)
        """bool ``[N]``: the next substep acts on what is here, not on what physics says."""
        self.action: Tensor = wp.to_torch(self._action)
        """float32 ``[N, 7]``, yours to write: the action of the present env step."""
        self._views = {name: wp.to_torch(array) for name, array in self._arrays.items()}

    def _ids(self, values: Any) -> Any:
        return wp.array(np.ascontiguousarray(values, np.int32), dtype=int, device=self._device)

    def __getitem__(self, name: str) -> Tensor:
        """Return what is held of one of ``MEMORY``, ``[N, ...]`` in place."""
        return self._views[name]

    def put(self, worlds: Tensor, values: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Write some of ``MEMORY`` in chosen worlds, one array each; they act on it in their next substep if ``held``."""
        for name, arrays in values.items():
            view = self._views[name]
            told = torch.as_tensor(np.stack(arrays), dtype=torch.float32, device=view.device)
            view[worlds] = told.reshape(len(worlds), *view.shape[1:])

    def launch(self, data: Any, substep: int) -> None:
        """Launch the kernels of a substep, after its first half (``step1``) on ``data`` of mujoco_warp."""
        has, robot = self._arrays, self._robot
        read = [has[name] for name in _READ]
        where = [robot.hand_site, self._root, self._qpos_at, self._dof_at, self._mass_at]
        physics = [data.qpos, data.qvel, data.site_xpos, data.site_xmat, data.subtree_com, data.cdof, data.M]
        arm = [self._dof_at, self._arm_at, self._lowest, self._highest]
        wanted = [has["rest"], has["goal_pos"], has["goal_mat"]]
        wp.launch(
            read_arm,
            dim=self._count,
            inputs=[self._frozen, self._held, *where, *physics],
            outputs=read,
            device=self._device,
            block_dim=_BLOCK,
        )
        if substep == 0:
            wp.launch(
                set_goal,
                dim=self._count,
                inputs=[self._frozen, self._action, has["pos"], has["mat"]],
                outputs=[has["goal_pos"], has["goal_mat"]],
                device=self._device,
                block_dim=_BLOCK,
            )
        wp.launch(
            drive_arm,
            dim=self._count,
            inputs=[self._frozen, self._held, *arm, *read, *wanted, data.qfrc_bias],
            outputs=[data.ctrl],
            device=self._device,
            block_dim=_BLOCK,
        )
        wp.launch(
            drive_gripper,
            dim=self._count,
            inputs=[self._frozen, self._action, self._gripper_at, self._middle, self._reach],
            outputs=[has["gripper"], data.ctrl],
            device=self._device,
            block_dim=_BLOCK,
        )
