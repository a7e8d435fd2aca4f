"""Lamps of stoves. LIBERO draws them as sites, which the ray renderer leaves out, so a geom that nobody draws stands in for each.

The model that is drawn differs from the one that is stepped in these geoms alone: shape, size and colour of the site, and its
place in the copies that pictures are drawn from. A lamp is lit in worlds whose knob is turned on where an env step begins, since
LIBERO switches lamps after it has sampled its observables (``rlvla_sim_libero.scene``). Letters: N worlds, L lamps.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from rlvla.mujoco_warp.start import wp
from rlvla.mujoco_warp.worlds import Worlds
from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero_gpu.goals import Threshold, turned_on
from rlvla_sim_libero_gpu.judge import beyond, in_float32

_DRAWN_GROUP = 1


@dataclass(frozen=True)
class Lamp:
    """A site that LIBERO shows while something is turned on."""

    site: int
    geom: int
    """Of its body, not drawn; stands in for it."""
    knob: Threshold


def lamps_of(scene: Scene) -> tuple[Lamp, ...]:
    """Return the lamps of a compiled task."""
    env, model = scene.env, scene.model
    found = []
    for state in env.tracking_object_states_change:
        sites = [name for name, _ in env.get_object(state.object_name).object_properties["vis_site_names"].values()]
        for site in map(env.sim.model.site_name2id, sites):
            spare = (model.geom_bodyid == model.site_bodyid[site]) & (model.geom_group != _DRAWN_GROUP)
            (knob,) = turned_on(env, state.object_name)
            found.append(Lamp(int(site), int(np.flatnonzero(spare)[0]), knob))
    return tuple(found)


@wp.kernel(enable_backward=False)
def switch(
    frozen_N: wp.array[bool],
    qpos: wp.array2d[float],
    joint_L: wp.array[int],
    limit_L: wp.array[float],
    sign_L: wp.array[float],
    inclusive_L: wp.array[int],
    geom_L: wp.array[int],
    geom_rgba: wp.array2d[wp.vec4],
):
    """Show lamps that are on, and no others: the renderer passes over what has no alpha."""
    world, lamp = wp.tid()
    if frozen_N[world]:
        return
    on = beyond(qpos[world, joint_L[lamp]], limit_L[lamp], sign_L[lamp], inclusive_L[lamp])
    shown = geom_rgba[world, geom_L[lamp]]
    geom_rgba[world, geom_L[lamp]] = wp.vec4(shown[0], shown[1], shown[2], wp.where(on, 1.0, 0.0))


@wp.kernel(enable_backward=False)
def put(
    frozen_N: wp.array[bool],
    site_L: wp.array[int],
    geom_L: wp.array[int],
    site_xpos: wp.array2d[wp.vec3],
    site_xmat: wp.array2d[wp.mat33],
    geom_xpos: wp.array2d[wp.vec3],
    geom_xmat: wp.array2d[wp.mat33],
):
    """Put stand-ins where their sites are."""
    world, lamp = wp.tid()
    if not frozen_N[world]:
        geom_xpos[world, geom_L[lamp]] = site_xpos[world, site_L[lamp]]
        geom_xmat[world, geom_L[lamp]] = site_xmat[world, site_L[lamp]]


class Lamps:
    """The lamps of N worlds. Used within ``worlds.turn()``.

    Args:
        lamps: of the task.
        worlds: whose model the rest of the drawn one is.
    """

    def __init__(self, lamps: Sequence[Lamp], worlds: Worlds) -> None:
        device = wp.device_from_torch(worlds.device)
        self._worlds, self._device = worlds, device
        self._dim = (worlds.count, len(lamps))
        self._frozen = wp.from_torch(worlds.frozen)
        self._geoms = [lamp.geom for lamp in lamps]
        knobs = [lamp.knob for lamp in lamps]
        limits = [in_float32(one.limit, one.sign, one.inclusive) for one in knobs]
        self._site = wp.array([lamp.site for lamp in lamps], dtype=int, device=device)
        self._geom = wp.array(self._geoms, dtype=int, device=device)
        self._joint = wp.array([one.joint for one in knobs], dtype=int, device=device)
        self._limit = wp.array([limit for limit, _ in limits], dtype=float, device=device)
        self._sign = wp.array([float(one.sign) for one in knobs], dtype=float, device=device)
        self._inclusive = wp.array([int(inclusive) for _, inclusive in limits], dtype=int, device=device)
        self.mujoco_model = _with_lamps(worlds.mujoco_model, lamps)
        """What is drawn, as MuJoCo has it."""
        self.model = self._as_warp_has_it()
        """The same, of mujoco_warp; colours are of each world."""
        rgba: Tensor = wp.to_torch(self.model.geom_rgba)
        self._rgba = rgba

    def _as_warp_has_it(self) -> Any:
        model, count, device = self.mujoco_model, self._worlds.count, self._device
        drawn = copy.copy(self._worlds.model)
        drawn.geom_type = wp.array(model.geom_type, dtype=int, device=device)
        drawn.geom_dataid = wp.array(model.geom_dataid[None], dtype=int, device=device)
        drawn.geom_matid = wp.array(model.geom_matid[None], dtype=int, device=device)
        drawn.geom_size = wp.array(model.geom_size[None], dtype=wp.vec3, device=device)
        drawn.geom_rgba = wp.array(np.tile(model.geom_rgba[None], (count, 1, 1)), dtype=wp.vec4, device=device)
        return drawn

    @property
    def lit(self) -> Tensor:
        """bool ``[N, L]``: which lamps pictures show."""
        return self._rgba[:, self._geoms, 3] > 0

    def light(self, worlds: Tensor, lit_nL: Tensor) -> None:
        """Show or hide the lamps of chosen worlds (an index)."""
        for lamp, geom in enumerate(self._geoms):
            self._rgba[worlds, geom, 3] = lit_nL[:, lamp].float()

    def switch(self, data: Any) -> None:
        """Launch what shows the lamps that are on now; not of frozen worlds."""
        columns = [self._joint, self._limit, self._sign, self._inclusive, self._geom]
        wp.launch(
            switch,
            dim=self._dim,
            inputs=[self._frozen, data.qpos, *columns],
            outputs=[self.model.geom_rgba],
            device=self._device,
        )

    def put(self, data: Any, shown: Any) -> None:
        """Launch what puts the stand-ins among ``shown`` geoms; not of frozen worlds."""
        wp.launch(
            put,
            dim=self._dim,
            inputs=[self._frozen, self._site, self._geom, data.site_xpos, data.site_xmat],
            outputs=[shown.geom_xpos, shown.geom_xmat],
            device=self._device,
        )


def _with_lamps(model: mujoco.MjModel, lamps: Sequence[Lamp]) -> mujoco.MjModel:
    """Return a copy of a model in which stand-ins look like their sites, all off; for drawing alone."""
    drawn = copy.copy(model)
    for lamp in lamps:
        drawn.geom_type[lamp.geom], drawn.geom_size[lamp.geom] = model.site_type[lamp.site], model.site_size[lamp.site]
        drawn.geom_rgba[lamp.geom] = [*model.site_rgba[lamp.site][:3], 0.0]
        drawn.geom_matid[lamp.geom] = drawn.geom_dataid[lamp.geom] = -1
        drawn.geom_group[lamp.geom] = _DRAWN_GROUP
    return drawn
