"""Lamps against LIBERO: when they are lit, and where what stands in for them is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from libero_gpu_world import STOVE, needs_warp

pytestmark = [needs_warp, pytest.mark.timeout(300)]

PLACES = (-0.01, 0.0, 0.3, 0.499, 0.5, 0.501, 2.0)
"""Of the knob, in rad."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Any]:
    from rlvla_sim_libero import startup
    from rlvla_sim_libero.tasks import SUITES

    startup.import_libero()
    from rlvla_sim_libero.scene import Scene

    task = SUITES["libero_goal"][STOVE]
    made = Scene(startup.task_file(task))
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        made.reset(0, file["states"][0], 0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lamps(scene: Any) -> Any:
    """Of a world for each place of the knob, and one that is frozen."""
    from rlvla.mujoco_warp.worlds import Limits, Worlds
    from rlvla_sim_libero_gpu.lamps import Lamps, lamps_of

    worlds = Worlds(scene.model, len(PLACES) + 1, limits=Limits(100, 400), device="cpu")
    made = Lamps(lamps_of(scene), worlds)
    knob = scene.model.joint("flat_stove_1_button").qposadr[0]
    worlds["qpos"][:-1, knob] = worlds["qpos"].new_tensor(PLACES)
    worlds["qpos"][-1, knob] = 2.0
    worlds.frozen[-1] = True
    return made


def test_they_are_lit_where_libero_lights_them(scene: Any, lamps: Any) -> None:
    site, knob = scene.model.site("flat_stove_1_burner").id, scene.model.joint("flat_stove_1_button").qposadr[0]
    wanted = []
    for place in PLACES:
        scene.data.qpos[knob] = place
        scene.env._post_process()
        wanted.append(bool(scene.model.site_rgba[site, 3] > 0))
    assert True in wanted and False in wanted
    lamps.switch(lamps._worlds.data)
    assert lamps.lit.flatten().tolist() == [*wanted, False]
    lamps.light(torch.tensor([0, 6]), torch.tensor([[True], [False]]))
    assert lamps.lit.flatten().tolist() == [True, *wanted[1:6], False, False]


def test_what_stands_in_looks_and_lies_as_the_site_does(scene: Any, lamps: Any) -> None:
    model, site = scene.model, scene.model.site("flat_stove_1_burner").id
    geom = lamps._geoms[0]
    drawn = lamps.mujoco_model
    assert drawn.geom_type[geom] == model.site_type[site] == 5  # a cylinder
    assert drawn.geom_size[geom].tolist() == model.site_size[site].tolist()
    assert drawn.geom_rgba[geom, :3].tolist() == model.site_rgba[site, :3].tolist()
    others = [one for one in range(model.ngeom) if one != geom]
    for field in ("geom_type", "geom_size", "geom_group", "geom_rgba", "geom_matid", "geom_dataid"):
        assert np.array_equal(getattr(drawn, field)[others], getattr(model, field)[others]), field
    assert model.geom_group[geom] == 0 and model.geom_type[geom] == 6, "the stepped model keeps its own"
    worlds = lamps._worlds
    for name in ("site_xpos", "site_xmat"):
        here = torch.as_tensor(getattr(scene.data, name), dtype=torch.float32)
        worlds[name].copy_(here.reshape(worlds[name].shape[1:]).expand_as(worlds[name]))
    before = worlds["geom_xpos"].clone()
    lamps.put(worlds.data, worlds.data)
    moved = (worlds["geom_xpos"] != before).any(-1)
    assert moved[:-1, geom].all() and not moved[-1].any() and not moved[:, others].any()
    np.testing.assert_allclose(worlds["geom_xpos"][0, geom], scene.data.site_xpos[site], atol=1e-7)
    np.testing.assert_allclose(worlds["geom_xmat"][0, geom].flatten(), scene.data.site_xmat[site], atol=1e-7)
