"""Starts of episodes: drawn and settled on the CPU exactly as rlvla-sim-libero does, kept, and copied into worlds.

A draw takes tens of milliseconds of one core and ten settle steps a hundred more, so what was drawn once is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero_gpu.lamps import lamps_of

_ARRAYS = ("qpos", "qvel", "qacc_warmstart", "ctrl", "body_pos", "body_quat", "shown_qpos", "shown_fingers", "lamps")
_CONTROLLER = "controller/"


@dataclass(frozen=True)
class Begun:
    """An episode that has begun: all that the rest of it depends on; float64 where it was drawn, float32 where it is from worlds."""

    qpos: np.ndarray
    qvel: np.ndarray
    qacc_warmstart: np.ndarray
    ctrl: np.ndarray
    body_pos: np.ndarray
    """Of all bodies of the model, ``[bodies, 3]``: fixtures stand where the seed put them."""
    body_quat: np.ndarray
    controller: dict[str, np.ndarray]
    """One array for each name of ``osc.MEMORY``."""
    held: bool
    """The first substep acts on what the controller has read, not on what physics says then."""
    shown_qpos: np.ndarray
    """Joint positions that pictures and the hand's pose show."""
    shown_fingers: np.ndarray
    """Positions of the two fingers that the observation holds."""
    lamps: np.ndarray
    """bool: which lamps pictures show."""

    @classmethod
    def of(cls, scene: Scene, lamps: Sequence[int]) -> Begun:
        """Return where the present episode of a scene is; ``lamps``: sites."""
        data, saved = scene.data, scene.save()
        memory = scene.controller()
        memory |= {
            "goal_pos": saved["goal_pos"],
            "goal_mat": saved["goal_ori"],
            "gripper": np.broadcast_to(saved["gripper"], 2).copy(),
        }
        return cls(
            qpos=data.qpos.copy(),
            qvel=data.qvel.copy(),
            qacc_warmstart=data.qacc_warmstart.copy(),
            ctrl=data.ctrl.copy(),
            body_pos=saved["body_pos"],
            body_quat=saved["body_quat"],
            controller=memory,
            held=bool(saved["controller_fresh"]),
            shown_qpos=saved["shown_qpos"],
            shown_fingers=saved["shown_fingers"],
            lamps=saved["shown_site_rgba"][list(lamps), 3] > 0,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return it flat, by name."""
        own = {name: getattr(self, name) for name in _ARRAYS}
        return {
            **own,
            **{_CONTROLLER + name: array for name, array in self.controller.items()},
            "held": np.array(self.held),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Begun:
        """Return what :meth:`arrays` told."""
        controller = {
            name.removeprefix(_CONTROLLER): np.asarray(array)
            for name, array in arrays.items()
            if name.startswith(_CONTROLLER)
        }
        own = {name: np.asarray(arrays[name]) for name in _ARRAYS}
        return cls(**own, controller=controller, held=bool(arrays["held"]))

    def write_to(self, model: mujoco.MjModel) -> None:
        """Put the fixtures of a model where they stand."""
        model.body_pos[:], model.body_quat[:] = self.body_pos, self.body_quat

    def data(self, model: mujoco.MjModel) -> mujoco.MjData:
        """Return it as data of a model whose fixtures stand where these do."""
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:], data.ctrl[:] = self.qpos, self.qvel, self.ctrl
        data.qacc_warmstart[:] = self.qacc_warmstart
        mujoco.mj_forward(model, data)
        return data


class Starts:
    """Drawn starts of one task, the latest used are kept.

    Args:
        scene: the compiled task.
        settle_steps: steps without motion after a draw.
        kept: most that are kept, 4 to 5 KB each.
    """

    def __init__(self, scene: Scene, settle_steps: int, kept: int) -> None:
        self._scene, self._settle_steps, self._kept = scene, settle_steps, kept
        self._lamps = [lamp.site for lamp in lamps_of(scene)]
        self._begun: OrderedDict[Any, Begun] = OrderedDict()
        self.draws = 0
        """Starts drawn so far."""

    def get(self, seed: int, number: int | None, state: np.ndarray | None) -> Begun:
        """Return the start of a seed and a stored initial state (its number and its numbers; None: drawn from the seed).

        Raises:
            SimulatorError: as ``Scene.reset``.
        """
        key = (seed, number)
        if key in self._begun:
            self._begun.move_to_end(key)
            return self._begun[key]
        self._scene.reset(seed, state, self._settle_steps)
        begun = self._begun[key] = Begun.of(self._scene, self._lamps)
        self.draws += 1
        if len(self._begun) > self._kept:
            self._begun.popitem(last=False)
        return begun
