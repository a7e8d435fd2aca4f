"""N worlds of one LIBERO task, stepped, judged and drawn at once.

What an observation shows is what LIBERO shows (``rlvla_sim_libero.scene``): pictures and the hand's pose those positions from
which the 24th of 25 substeps starts, the fingers what it leads to. The first half of that substep computes exactly these
positions, so they are copied there and drawn from later; a world that is frozen keeps them.
Letters: N worlds, n chosen worlds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from rlvla.mujoco_warp.kernels import copy_where
from rlvla.mujoco_warp.pictures import Pictures
from rlvla.mujoco_warp.start import mjw, wp
from rlvla.mujoco_warp.worlds import Limits, Worlds
from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero_gpu.appearance import drawable
from rlvla_sim_libero_gpu.goals import goal_of
from rlvla_sim_libero_gpu.judge import Judge
from rlvla_sim_libero_gpu.lamps import Lamps, lamps_of
from rlvla_sim_libero_gpu.osc import MEMORY, Controller
from rlvla_sim_libero_gpu.starts import Begun

SUBSTEPS = 25
_UNREAD = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
"""Force and torque at the hand, which no policy is shown."""
_SHOWN_SUBSTEP = 23  # counted from 0, as in rlvla_sim_libero.scene
SAVINGS = ", lower contacts or constraints"
"""What makes worlds smaller, beside smaller pictures. Fewer ``kept_tasks`` do not: batches without rows go first."""
_DRAWN = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
"""What pictures are drawn from."""
_POSE = ("site_xpos", "xquat", "qpos")
"""What the state of an observation is read from, beside the fingers, and what all of it follows from."""


@dataclass(frozen=True)
class Look:
    """What is drawn, and from what."""

    cameras: tuple[str, ...]
    size: int
    """Height and width in pixels."""
    texture_size: int


class Batch:
    """N worlds of one task.

    Args:
        scene: the compiled task.
        first: a start, at which worlds wait until they are reset.
        count: N.
        limits: room for contacts.
        look: pictures.
        device: ``cuda``, ``cuda:N`` or ``cpu``.
        deterministic: equal bits whoever else is stepped, and however many worlds there are.
        capture: programs as CUDA graphs, where there is a GPU.
    """

    def __init__(
        self,
        scene: Scene,
        first: Begun,
        count: int,
        *,
        limits: Limits,
        look: Look,
        device: str,
        deterministic: bool = False,
        capture: bool = True,
    ) -> None:
        self.count = count
        self.look = look
        model = drawable(scene.model, look.texture_size)
        model.opt.disableflags |= _UNREAD
        first.write_to(model)
        self.worlds = Worlds(
            model,
            count,
            limits=limits,
            device=device,
            per_world=("body_pos", "body_quat"),
            deterministic=deterministic,
            capture=capture,
            pixels=len(look.cameras) * look.size**2,
            start=first.data(model),
            remedy="raise the options contacts and constraints",
            savings=SAVINGS,
        )
        self._robot, self._goal, lamps = scene.robot(), goal_of(scene), lamps_of(scene)
        with self.worlds.turn():
            with self.worlds.warp():
                self._lamps = Lamps(lamps, self.worlds) if lamps else None
                self._fill(model)
            self._compile()

    def _fill(self, model: mujoco.MjModel) -> None:
        worlds = self.worlds
        data, device = worlds.data, wp.device_from_torch(worlds.device)
        self._frozen = wp.from_torch(worlds.frozen)
        self.controller = Controller(self._robot, worlds.model, self.count, device, worlds.still)
        self._seen = {name: worlds[name].clone() for name in (*_DRAWN, *_POSE)}
        self._fingers = worlds["qpos"].clone()
        self._finger_at = torch.as_tensor(self._robot.finger_qpos, device=worlds.device)
        self.shown = copy.copy(data)
        for name in _DRAWN:
            kind = getattr(data, name).dtype
            setattr(self.shown, name, wp.from_torch(self._seen[name], dtype=kind))
        self._copies = [(self._flat(worlds[name]), self._flat(view)) for name, view in self._seen.items()]
        self._finger_copy = (self._flat(worlds["qpos"]), self._flat(self._fingers))
        self._judged = Judge(self._goal, model.ngeom, self.count, device)
        self.solved = self._judged.solved
        """bool ``[N]``: the goal holds after the last action (of worlds that were live and have not diverged)."""

    def _compile(self) -> None:
        worlds, look = self.worlds, self.look
        self._step = worlds.env_step(SUBSTEPS, self._between, self._judge)
        size = (look.size, look.size)
        # Group 1 is what is to be seen, group 0 collision shapes.
        self._pictures = Pictures(
            worlds, dict.fromkeys(look.cameras, size), geom_groups=(1,), data=self.shown, looks=self._lamps
        )
        self._place = worlds.program(self._placed)

    @staticmethod
    def _flat(view: Tensor) -> Any:
        return wp.from_torch(view.reshape(len(view), -1))

    # ---- in the captured step ---------------------------------------------------------------------------------------

    def _between(self, substep: int) -> None:
        self.controller.launch(self.worlds.data, substep)
        if substep == 0 and self._lamps is not None:
            self._lamps.switch(self.worlds.data)
        if substep == _SHOWN_SUBSTEP:
            self._show()
        elif substep == _SHOWN_SUBSTEP + 1:
            self._note([self._finger_copy])

    def _show(self) -> None:
        self._note(self._copies)
        if self._lamps is not None:
            self._lamps.put(self.worlds.data, self.shown)

    def _note(self, copies: Sequence[tuple[Any, Any]]) -> None:
        for source, target in copies:
            wp.launch(copy_where, dim=source.shape, inputs=[self.worlds.still, False, source], outputs=[target])

    def _placed(self) -> None:
        """Make what is shown up to date with ``qpos`` where worlds are not frozen."""
        wp.copy(self.worlds.still, self._frozen)
        mjw.kinematics(self.worlds.model, self.worlds.data)
        self.worlds.place_fixed()
        mjw.com_pos(self.worlds.model, self.worlds.data)
        mjw.camlight(self.worlds.model, self.worlds.data)
        self._show()
        self._note([self._finger_copy])

    def _judge(self) -> None:
        self._judged.launch(self.worlds.data)

    # ---- what a simulator does with it ------------------------------------------------------------------------------

    def begin(self, chosen: Sequence[int], begun: Sequence[Begun]) -> None:
        """Put chosen worlds at starts; the others keep every bit. Within ``worlds.turn()``, as all that follows."""
        worlds = self.worlds
        at = torch.as_tensor(list(chosen), device=worlds.device)
        mask_N = torch.zeros(self.count, dtype=torch.bool, device=worlds.device)
        mask_N[at] = True
        worlds.restart(mask_N)
        for name in ("body_pos", "body_quat"):
            worlds.field(name)[at] = self._told([getattr(one, name) for one in begun])
        worlds["qpos"][at] = self._told([one.shown_qpos for one in begun])
        torch.logical_not(mask_N, out=worlds.frozen)
        self._place()
        self._fingers[at[:, None], self._finger_at] = self._told([one.shown_fingers for one in begun])
        for name in ("qpos", "qvel", "qacc_warmstart", "ctrl"):
            worlds[name][at] = self._told([getattr(one, name) for one in begun])
        self.controller.put(at, {name: [one.controller[name] for one in begun] for name in MEMORY})
        self.controller.held[at] = torch.as_tensor([one.held for one in begun], device=worlds.device)
        if self._lamps is not None:
            self._lamps.light(at, torch.as_tensor(np.stack([one.lamps for one in begun]), device=worlds.device))

    def _told(self, arrays: Sequence[np.ndarray]) -> Tensor:
        return torch.as_tensor(np.stack(arrays), dtype=torch.float32, device=self.worlds.device)

    def saved(self, chosen: Sequence[int]) -> list[Begun]:
        """Return the episodes of chosen worlds, for :meth:`begin`; waits for the device."""
        at = torch.as_tensor(list(chosen), device=self.worlds.device)
        own = {name: self.worlds[name][at] for name in ("qpos", "qvel", "qacc_warmstart", "ctrl")}
        own |= {name: self.worlds.field(name)[at] for name in ("body_pos", "body_quat")}
        own |= {"shown_qpos": self._seen["qpos"][at], "shown_fingers": self._fingers[at][:, self._finger_at]}
        arrays = {name: tensor.cpu().numpy() for name, tensor in own.items()}
        memory = {name: self.controller[name][at].cpu().numpy() for name in MEMORY}
        held = self.controller.held[at].tolist()
        lamps = np.zeros((len(held), 0), bool) if self._lamps is None else self._lamps.lit[at].cpu().numpy()
        return [
            Begun(
                **{name: array[place] for name, array in arrays.items()},
                controller={name: array[place] for name, array in memory.items()},
                held=held[place],
                lamps=lamps[place],
            )
            for place in range(len(held))
        ]

    def step(self, action_N7: Tensor, live_N: Tensor) -> None:
        """Execute one action in each live world."""
        self.controller.action.copy_(action_N7)
        torch.logical_not(live_N, out=self.worlds.frozen)
        self._step()

    def close(self) -> None:
        """Give the memory of worlds, pictures and programs back, as soon as nobody holds this batch."""
        self.worlds.close()

    def draw(self) -> dict[str, Tensor]:
        """Return camera name to uint8 ``[N, size, size, 3]`` of what observations show: LIBERO's, turned by 180 degrees."""
        return {name: picture.flip(2) for name, picture in self._pictures.draw().items()}

    def state(self) -> Tensor:
        """Return float32 ``[N, 8]``: hand position (3, m), rotation as axis times angle (3, rad), fingers (2, m)."""
        pos_N3 = self._seen["site_xpos"][:, self._robot.hand_site]
        quat_N4 = self._seen["xquat"][:, self._robot.hand_body]
        return torch.cat([pos_N3, axis_angle(quat_N4), self._fingers[:, self._finger_at]], 1)


def axis_angle(quat_N4: Tensor) -> Tensor:
    """Return unit quaternions (w, x, y, z) as axis times angle in [0, 2 pi], as ``rlvla_sim_libero.scene`` does one by one."""
    sine_N1 = quat_N4[:, 1:].norm(dim=1, keepdim=True)
    angle_N1 = 2.0 * torch.atan2(sine_N1, quat_N4[:, :1])
    return torch.where(sine_N1 > 0, quat_N4[:, 1:] * angle_N1 / sine_N1.clamp(min=1e-30), 0.0)
