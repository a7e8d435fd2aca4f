"""Judges goals in N worlds at once, from positions, joints and contacts as they are after a step.

Like LIBERO it looks at positions and contacts of the last substep's first half, and at joints after it. Regions are tested in
float32, so an object within about 1e-6 m of a border may be judged otherwise. Letters: N worlds, K tests, C pairs of touch.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvla.errors import SimulatorError
from rlvla.mujoco_warp.start import wp
from rlvla_sim_libero_gpu.goals import ANY, INSIDE, OVER, STACKED, TOUCH, Goal, Test

_PAIRS = 15
"""Pairs of geom sets that fit into the bits of an integer, two a pair."""
_BOTTOM_M = 0.01
_SUNK_M = 0.005
_HEIGHT_M = 0.1
_BESIDE_M = 0.03

K_INSIDE, K_OVER, K_STACKED, K_TOUCH, K_ANY = (wp.constant(kind) for kind in (INSIDE, OVER, STACKED, TOUCH, ANY))


@wp.kernel(enable_backward=False)
def forget_touch(touched_N: wp.array[int]):
    touched_N[wp.tid()] = 0


@wp.kernel(enable_backward=False)
def note_touch(
    count_1: wp.array[int],
    geom: wp.array[wp.vec2i],
    world_of: wp.array[int],
    side_of: wp.array[int],
    pairs: int,
    touched_N: wp.array[int],
):
    """Set bit c of a world in which geoms of both sides of pair c touch. ``side_of`` has bits 2c and 2c + 1 of each geom."""
    contact = wp.tid()
    if contact >= count_1[0]:
        return
    both = geom[contact]
    if both[0] < 0 or both[1] < 0:
        return
    first = side_of[both[0]]
    second = side_of[both[1]]
    if first == 0 or second == 0:
        return
    bits = wp.int32(0)
    for pair in range(pairs):
        a = 1 << (2 * pair)
        b = 2 << (2 * pair)
        if (first & a) != 0 and (second & b) != 0:
            bits = bits | (1 << pair)
        if (first & b) != 0 and (second & a) != 0:
            bits = bits | (1 << pair)
    if bits != 0:
        wp.atomic_or(touched_N, world_of[contact], bits)


@wp.func
def _inside(away: wp.vec3, half: wp.vec3):
    """``half``: of the box around a turned region, with signs."""
    return (
        wp.abs(away[0]) < wp.abs(half[0])
        and wp.abs(away[1]) < wp.abs(half[1])
        and away[2] < wp.abs(half[2])
        and away[2] > -wp.abs(half[2]) - _BOTTOM_M
    )


@wp.func
def _over(away: wp.vec3, size: wp.vec3):
    """``away``: from the region's middle to the object, turned as LIBERO turns it."""
    return (
        wp.abs(away[0]) < size[0]
        and wp.abs(away[1]) < size[1]
        and away[2] > size[2] - _SUNK_M
        and away[2] < size[2] + _HEIGHT_M
    )


@wp.func
def _stacked(upper: wp.vec3, lower: wp.vec3):
    x = lower[0] - upper[0]
    y = lower[1] - upper[1]
    return lower[2] <= upper[2] and wp.sqrt(x * x + y * y) < _BESIDE_M


@wp.func
def beyond(position: float, limit: float, sign: float, inclusive: int):
    away = (position - limit) * sign
    return away > 0.0 or (away == 0.0 and inclusive != 0)


@wp.kernel(enable_backward=False)
def judge(
    kind_K: wp.array[int],
    site_K: wp.array[int],
    size_K: wp.array[wp.vec3],
    upper_K: wp.array[int],
    lower_K: wp.array[int],
    pair_K: wp.array[int],
    first_K: wp.array[int],
    last_K: wp.array[int],
    joint_J: wp.array[int],
    limit_J: wp.array[float],
    sign_J: wp.array[float],
    inclusive_J: wp.array[int],
    touched_N: wp.array[int],
    qpos: wp.array2d[float],
    xpos: wp.array2d[wp.vec3],
    site_xpos: wp.array2d[wp.vec3],
    site_xmat: wp.array2d[wp.mat33],
    holds_NK: wp.array2d[bool],
):
    """Make each test in each world."""
    world, test = wp.tid()
    kind = kind_K[test]
    if kind == K_TOUCH:
        holds_NK[world, test] = (touched_N[world] & (1 << pair_K[test])) != 0
    elif kind == K_INSIDE or kind == K_OVER:  # noqa: SIM109 (no tuples in kernels)
        turn = site_xmat[world, site_K[test]]
        apart = xpos[world, upper_K[test]] - site_xpos[world, site_K[test]]
        if kind == K_INSIDE:
            holds_NK[world, test] = _inside(apart, turn * size_K[test])
        else:
            holds_NK[world, test] = _over(turn * apart, size_K[test])
    elif kind == K_STACKED:
        holds_NK[world, test] = _stacked(xpos[world, upper_K[test]], xpos[world, lower_K[test]])
    else:
        count = wp.int32(0)
        for j in range(first_K[test], last_K[test]):
            if beyond(qpos[world, joint_J[j]], limit_J[j], sign_J[j], inclusive_J[j]):
                count += 1
        if kind == K_ANY:
            holds_NK[world, test] = count > 0
        else:
            holds_NK[world, test] = count == last_K[test] - first_K[test]


@wp.kernel(enable_backward=False)
def all_hold(holds_NK: wp.array2d[bool], tests: int, solved_N: wp.array[bool]):
    world = wp.tid()
    count = wp.int32(0)
    for test in range(tests):
        if holds_NK[world, test]:
            count += 1
    solved_N[world] = count == tests


class Judge:
    """Judges one goal.

    Args:
        goal: what is asked for.
        geoms: number of geoms in the model.
        count: N.
        device: of warp.

    Raises:
        SimulatorError: more pairs of things that must touch than there is room for.
    """

    def __init__(self, goal: Goal, geoms: int, count: int, device: Any) -> None:
        self._count, self._device = count, device
        tests = tuple(chain.from_iterable(goal.tests))
        self._first = np.cumsum([0, *map(len, goal.tests)])
        """Place of the first test of each predicate."""
        self._tests = len(tests)
        self._pairs = sum(test.kind == TOUCH for test in tests)
        if self._pairs > _PAIRS:
            raise SimulatorError(
                f"the goal names {self._pairs} pairs of things that must touch, at most {_PAIRS} can be judged on the GPU; take "
                "the CPU backend: sim 'libero'"
            )
        self._side_of = self._put(_sides(tests, geoms), int)
        self._columns = self._table(tests)
        self._touched = wp.zeros(count, dtype=int, device=device)
        self._holds = wp.zeros((count, self._tests), dtype=bool, device=device)
        self._solved = wp.zeros(count, dtype=bool, device=device)
        self.solved: Tensor = wp.to_torch(self._solved)
        """bool ``[N]``: the goal held when it was judged last."""

    def _put(self, values: Any, kind: Any) -> Any:
        return wp.array(values, dtype=kind, device=self._device)

    def _table(self, tests: Sequence[Test]) -> list[Any]:
        joints = list(chain.from_iterable(test.thresholds for test in tests))
        ends = np.cumsum([0, *(len(test.thresholds) for test in tests)])
        touches = np.cumsum([0, *(test.kind == TOUCH for test in tests)])
        limits = [in_float32(one.limit, one.sign, one.inclusive) for one in joints]
        return [
            self._put([test.kind for test in tests], int),
            self._put([test.site for test in tests], int),
            self._put([wp.vec3(*test.size) for test in tests], wp.vec3),
            self._put([test.upper for test in tests], int),
            self._put([test.lower for test in tests], int),
            self._put(touches[:-1], int),
            self._put(ends[:-1], int),
            self._put(ends[1:], int),
            self._put([one.joint for one in joints] or [0], int),
            self._put([limit for limit, _ in limits] or [0.0], float),
            self._put([float(one.sign) for one in joints] or [0.0], float),
            self._put([int(inclusive) for _, inclusive in limits] or [0], int),
        ]

    def launch(self, data: Any) -> None:
        """Launch the kernels that judge where worlds are now; ``data`` of mujoco_warp, or what has its arrays."""
        if self._pairs:
            wp.launch(forget_touch, dim=self._count, outputs=[self._touched], device=self._device)
            contact = data.contact
            wp.launch(
                note_touch,
                dim=len(contact.worldid),
                inputs=[data.nacon, contact.geom, contact.worldid, self._side_of, self._pairs],
                outputs=[self._touched],
                device=self._device,
            )
        wp.launch(
            judge,
            dim=(self._count, self._tests),
            inputs=[*self._columns, self._touched, data.qpos, data.xpos, data.site_xpos, data.site_xmat],
            outputs=[self._holds],
            device=self._device,
        )
        wp.launch(
            all_hold, dim=self._count, inputs=[self._holds, self._tests], outputs=[self._solved], device=self._device
        )

    def predicates(self) -> Tensor:
        """Return bool ``[N, P]``: which predicates of the goal held when it was judged last."""
        holds_NK = wp.to_torch(self._holds)
        ends = zip(self._first[:-1], self._first[1:], strict=True)
        return torch.stack([holds_NK[:, first:last].all(1) for first, last in ends], 1)


def in_float32(limit: float, sign: int, inclusive: bool) -> tuple[float, bool]:
    """Return a limit in float32 that parts float32 joints as the float64 one does, and whether it counts itself."""
    near = float(np.float32(limit))
    if near == limit:
        return near, inclusive
    return near, (near - limit) * sign > 0


def _sides(tests: Sequence[Test], geoms: int) -> np.ndarray:
    side_of = np.zeros(geoms, np.int32)
    for pair, test in enumerate(test for test in tests if test.kind == TOUCH):
        side_of[list(test.one)] |= 1 << 2 * pair
        side_of[list(test.other)] |= 2 << 2 * pair
    return side_of
