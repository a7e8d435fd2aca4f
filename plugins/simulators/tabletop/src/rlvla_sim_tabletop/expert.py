"""A scripted expert that knows where everything is: straight at the named block, over what stands in the way.

It decides from positions alone, so it can take over at any moment. Metres everywhere.
Letters: H actions in a chunk, B blocks, R points of a ring.
"""

from __future__ import annotations

import numpy as np

STEP_M = 0.05
"""Largest displacement of the hand's target along an axis in one env step, in metres."""
_LOW_M, _HIGH_M = 0.03, 0.11
"""Heights of the hand that push, and that pass over a block."""
_OVER_M = 0.085
"""Lowest height that passes over a block: its 0.06 and the hand's radius of 0.02."""
_CLEAR_M = 0.085
"""A block whose centre is farther than this from the hand's path is not touched: half its diagonal and the radius."""
_BESIDE_M = 0.09
"""Distance from the named block's centre at which the hand comes down."""
_THROUGH_M = 0.04
"""How far behind the named block's centre a push aims."""
_FOLLOWS = 0.33
"""Part of the way to its target that the hand covers in an env step: 1 - exp(-0.05 s * kp / kv)."""


def pushes(hand: np.ndarray, target: np.ndarray, blocks_B2: np.ndarray, goal: int, horizon: int) -> np.ndarray:
    """Return the next actions ``[H, 3]`` in [-1, 1], for a hand at ``hand`` that is on its way to ``target``."""
    hand, target = hand.copy(), target.copy()
    others = np.delete(blocks_B2, goal, axis=0)
    chunk_HA = np.empty((horizon, 3))
    for action in range(horizon):
        way = aim(hand, blocks_B2[goal], others) - target
        move = way * min(1.0, STEP_M / max(np.abs(way).max(), 1e-9))
        chunk_HA[action] = move / STEP_M
        target = target + move
        hand = hand + _FOLLOWS * (target - hand)
    return chunk_HA


def aim(hand: np.ndarray, block: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the point that the hand should make for."""
    way = block - hand[:2]
    ahead = way / max(np.linalg.norm(way), 1e-9)
    if clearance(hand[:2], block, others) > _CLEAR_M:
        if hand[2] < _LOW_M + 0.03:
            return np.array([*block + _THROUGH_M * ahead, _LOW_M])
        return np.array([*block - _BESIDE_M * ahead, _LOW_M])
    if hand[2] < _OVER_M:
        return np.array([*hand[:2], _HIGH_M])
    angle_R = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    ring_R2 = block + _BESIDE_M * np.stack([np.cos(angle_R), np.sin(angle_R)], 1)
    free_R = [clearance(point, block, others) > _CLEAR_M and np.abs(point).max() < 0.24 for point in ring_R2]
    distance_R = np.linalg.norm(ring_R2 - hand[:2], axis=1)
    return np.array([*ring_R2[np.where(free_R, distance_R, np.inf).argmin()], _HIGH_M])


def clearance(start: np.ndarray, end: np.ndarray, points: np.ndarray) -> float:
    """Return the smallest distance of ``points`` from the straight way between two others."""
    way = end - start
    along = np.clip((points - start) @ way / max(way @ way, 1e-9), 0.0, 1.0)
    return float(np.linalg.norm(points - start - along[:, None] * way, axis=1).min())
