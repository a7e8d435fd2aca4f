"""The small LIBERO world of these tests, and what they do with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlvla_sim_libero import LiberoConfig
from rlvla_sim_libero.simulator import LiberoSimulator

STOVE = 7
"""In libero_goal: "turn on the stove", which a push of its button solves."""
BOWL = 8
"""In libero_goal: "put the bowl on the plate"."""
CONFIG = LiberoConfig(suite="libero_goal", tasks=(STOVE, BOWL), image_size=64, settle_steps=2, max_episode_steps=20)


def push_the_button(simulator: LiberoSimulator, row: int, speed: float = 5.0) -> None:
    """Give the stove's button a speed in rad/s: at 5 it passes the 0.5 rad that count as on during the third action."""
    import mujoco

    scene = simulator._scene_of(row)
    button = mujoco.mj_name2id(scene.model, mujoco.mjtObj.mjOBJ_JOINT, "flat_stove_1_button")
    state = simulator.get_state([row])[0]
    state["physics"][1 + scene.model.nq + scene.model.jnt_dofadr[button]] = speed
    simulator.set_state([row], [state])


def same_observation(one: Any, other: Any) -> bool:
    """Bit for bit."""
    assert list(one.instruction) == list(other.instruction)
    pictures = all(np.array_equal(one.images[name], other.images[name]) for name in one.images)
    return pictures and np.array_equal(one.state, other.state)
