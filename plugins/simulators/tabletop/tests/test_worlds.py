"""The layer below the batched backend: worlds of one model, on warp's CPU device."""

from __future__ import annotations

import logging
import re

import mujoco
import numpy as np
import pytest
from tabletop_world import check_side_by_side, needs_warp, scene_text

from rlvla.errors import SimulatorError
from rlvla_sim_tabletop import scene

pytestmark = [needs_warp, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def worlds():
    return made()


def made(count=4, **options):
    from rlvla.mujoco_warp.worlds import Limits, Worlds

    options = {"limits": Limits(32, 128), "device": "cpu", **options}
    return Worlds(scene.compiled(), count, **options)


def test_own_kernels_run_between_the_halves_of_a_substep(worlds):
    import torch
    import warp as wp

    from rlvla.mujoco_warp.kernels import copy_where

    worlds["qpos"][:, [3, 6, 9]] = torch.tensor([-0.1, 0.0, 0.1])  # blocks begin in one place, pushing each other
    seen = []
    forces = wp.full((4, 12), 0.5, dtype=float)
    everywhere = wp.ones(4, dtype=wp.bool)

    def push(substep):
        seen.append(substep)
        wp.launch(copy_where, dim=(4, 12), inputs=[everywhere, True, forces], outputs=[worlds.data.qfrc_applied])

    step = worlds.env_step(3, between=push)
    assert seen == [0, 1, 2]
    plain = worlds.env_step(3)
    before = worlds.state(slice(None)).clone()
    step()
    pushed = worlds["qvel"].clone()
    worlds.set_state(slice(None), before)
    plain()
    assert (pushed[:, 3:5] > worlds["qvel"][:, 3:5]).all()


def test_making_a_program_moves_no_world(worlds):
    worlds["qvel"].fill_(0.25)
    before = worlds.state(slice(None)).clone()
    worlds.env_step(5)
    assert (worlds.state(slice(None)) == before).all()


def test_states_come_back_and_fields_differ_by_world():
    import torch

    worlds = made(3, per_world=("body_pos",))
    worlds["qpos"].copy_(torch.arange(36.0).reshape(3, 12))
    state = worlds.state(torch.tensor([2, 0])).clone()
    worlds["qpos"].zero_()
    worlds.set_state(torch.tensor([0, 1]), state)
    assert worlds["qpos"][:, 0].tolist() == [24.0, 0.0, 0.0] and worlds["qpos"][1, 1] == 1.0
    worlds["qpos"].zero_()
    worlds.field("body_pos")[1, 2, 0] = 0.125
    worlds.show()
    assert worlds["xpos"][:, 2, 0].tolist() == [0.0, 0.125, 0.0]
    with pytest.raises(ValueError, match="geom_rgba is one for all 3 worlds: name it in per_world"):
        worlds.field("geom_rgba")


def test_geoms_of_bodies_without_joints_stand_where_their_world_has_them():
    import mujoco
    import numpy as np

    from rlvla.mujoco_warp.worlds import Limits, Worlds

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body name='shelf' pos='0 0 1' euler='0 0 30'><geom size='.1 .2 .3' type='box' pos='.1 .2 .3' "
        "euler='10 20 30'/></body><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    worlds = Worlds(model, 2, limits=Limits(8, 32), device="cpu", per_world=("body_pos", "body_quat"))
    worlds.field("body_pos")[1, 1] = worlds["qpos"].new_tensor([0.5, -0.25, 2.0])
    worlds.field("body_quat")[1, 1] = worlds["qpos"].new_tensor([0.6, 0.0, 0.8, 0.0])
    worlds.show()
    model.body_pos[1], model.body_quat[1] = [0.5, -0.25, 2.0], [0.6, 0.0, 0.8, 0.0]
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    np.testing.assert_allclose(worlds["geom_xpos"][1, 0], data.geom_xpos[0], atol=1e-6)
    np.testing.assert_allclose(worlds["geom_xmat"][1, 0].flatten(), data.geom_xmat[0], atol=1e-6)
    assert abs(float(worlds["geom_xpos"][0, 0, 2]) - 1.3) < 1e-6, "the other world keeps its own"


def test_boxes_touch_where_mujoco_lets_them_touch():
    import torch

    model, rng = scene.compiled(), np.random.default_rng(0)
    qpos_NQ = np.zeros((40, model.nq))
    qpos_NQ[:, 2] = 0.2  # the hand is out of reach, and so is the third block
    qpos_NQ[:, 9] = 0.3
    angle_N, qpos_NQ[:, 5], qpos_NQ[:, 8] = rng.uniform(-np.pi, np.pi, (3, 40))
    qpos_NQ[:, 6], qpos_NQ[:, 7] = 0.045 * np.cos(angle_N), 0.045 * np.sin(angle_N)
    worlds = made(40)
    with worlds.turn():
        worlds["qpos"].copy_(torch.as_tensor(qpos_NQ))
        worlds.settle(torch.ones(40, dtype=torch.bool))
    count, touching = int(worlds.data.nacon.numpy()[0]), set()
    fields = {name: getattr(worlds.data.contact, name).numpy()[:count] for name in ("worldid", "pos", "dist")}
    for world, qpos in enumerate(qpos_NQ):
        data = mujoco.MjData(model)
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        mine = fields["worldid"] == world
        touching.add(data.ncon)
        assert mine.sum() == data.ncon, f"world {world}"
        order, wanted = np.argsort(fields["dist"][mine]), np.argsort(data.contact.dist)
        np.testing.assert_allclose(fields["dist"][mine][order], data.contact.dist[wanted], atol=2e-6)
        for point in data.contact.pos:
            assert np.abs(fields["pos"][mine] - point).max(1).min() < 2e-6
    assert len(touching) > 1


def test_limits_that_are_too_small_say_what_is_needed(caplog):
    from rlvla.mujoco_warp.worlds import Limits

    heap = made(2, limits=Limits(2, 12))
    heap["qpos"].zero_()  # all blocks in one place
    caplog.set_level(logging.WARNING)
    step = heap.env_step(1)
    assert not heap.overflowed().any() and heap.problem() == "", "making a program plays nothing"
    step()
    assert heap.overflowed().tolist() == [True, True]
    heap.warn()
    heap.warn()
    needed = heap.seen()
    assert needed.contacts > 2 and needed.constraints > 12
    assert caplog.text.count("contacts of a world were left out") == 1
    assert f"contacts: got 2, at least {needed.contacts} were needed" in caplog.text
    assert f"constraints: got 12, at least {needed.constraints} were needed" in caplog.text


def test_limits_that_are_told_are_enough():
    from rlvla.mujoco_warp.worlds import Limits

    def piled(limits):
        heap = made(2, limits=limits)
        step = heap.env_step(1)
        heap["qpos"].zero_()
        step()
        return heap

    needed = piled(Limits(64, 256)).seen()
    short = piled(Limits(needed.contacts * 3 // 4, needed.constraints * 3 // 4))
    told = dict(re.findall(r"(contacts|constraints): got \d+, at least \d+ were needed, set (\d+)", short.problem()))
    enough = piled(Limits(**{name: int(value) for name, value in told.items()}))
    assert not enough.overflowed().any(), (needed, told)


def test_worlds_beyond_memory_say_how_many_fit():
    with pytest.raises(SimulatorError, match="1000 worlds take about .* GiB on cpu, where .* are free") as caught:
        made(1000, free_bytes=600 * 2**20)
    most = int(str(caught.value).partition("are free: ")[2].split()[0])
    assert 10 < most < 1000
    assert made(most, free_bytes=600 * 2**20).count == most
    with pytest.raises(SimulatorError, match=f"{most} fit at most"):
        made(most + 1, free_bytes=600 * 2**20)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(SimulatorError, match="physics was to run on 'cuda:99', but this process sees"):
        made(device="cuda:99")


@pytest.mark.parametrize(("version", "graphs", "told"), [((12, 2), False, "CUDA 12.2"), (None, False, "CUDA unknown")])
def test_an_old_driver_is_told_what_is_wanted(version, graphs, told):
    from rlvla.mujoco_warp.start import driver_problem

    said = driver_problem(version, graphs)
    assert told in said and "wanted 12.4 or later" in said and "update it" in said


def test_a_warp_without_loops_in_graphs_is_not_blamed_on_the_driver():
    from rlvla.mujoco_warp.start import driver_problem

    said = driver_problem((12, 4), False)
    assert "warp-lang" in said and "wanted 12.4" not in said


def test_a_driver_that_captures_is_no_problem():
    from rlvla.mujoco_warp.start import driver_problem

    assert driver_problem((13, 0), True) == ""


def test_what_warp_does_not_take_is_told():
    import mujoco

    from rlvla.mujoco_warp.worlds import Limits, Worlds

    model = scene.compiled()
    model.opt.solver = mujoco.mjtSolver.mjSOL_PGS
    with pytest.raises(SimulatorError, match="MuJoCo Warp does not take this model: .*PGS"):
        Worlds(model, 1, limits=Limits(8, 32), device="cpu")


def test_a_plugin_of_a_model_is_named():
    import mujoco

    from rlvla.mujoco_warp.worlds import Limits, Worlds

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><extension><plugin plugin='mujoco.pid'><instance name='mine'/></plugin></extension>"
        "<worldbody><body><joint name='hinge'/><geom size='1'/></body></worldbody>"
        "<actuator><plugin plugin='mujoco.pid' instance='mine' joint='hinge'/></actuator></mujoco>"
    )
    with pytest.raises(SimulatorError, match=r"plugins: mujoco\.pid\): take the CPU backend"):
        Worlds(model, 1, limits=Limits(8, 32), device="cpu")


def test_a_world_that_diverges_stays_where_it_was_and_is_told(worlds):
    import torch

    step = worlds.env_step(2)
    worlds.restart(torch.ones(4, dtype=torch.bool))
    worlds["ctrl"].fill_(0.1)
    before = worlds.state(slice(None)).clone()
    step()
    wanted = worlds.state(slice(None)).clone()
    worlds.set_state(slice(None), before)
    worlds["qvel"][1, 0], worlds["qvel"][2, 0] = torch.inf, 2e10
    worlds.frozen[3] = True
    broken = worlds.state(slice(None)).clone()
    step()
    worlds.frozen.zero_()
    after = worlds.state(slice(None))
    assert worlds.diverged.tolist() == [False, True, True, False]
    assert torch.equal(after[0], wanted[0]) and torch.equal(after[1:], broken[1:])
    worlds.restart(torch.tensor([False, True, False, False]))
    assert worlds.diverged.tolist() == [False, False, True, False]
    worlds.restart(torch.ones(4, dtype=torch.bool))


def test_sums_are_shared_out_alike_however_many_worlds_there_are():
    from mujoco_warp._src import solver

    from rlvla.mujoco_warp.launches import one_shape

    kernel = solver._update_gradient_h_incremental_sparse(False)
    there = solver._jtdaj_groups_per_world
    assert len({there(count, 600, kernel) for count in (1, 2, 4)}) > 1, (
        "mujoco_warp does it by itself: delete launches.py"
    )
    with one_shape():
        assert len({solver._jtdaj_groups_per_world(count, 600, kernel) for count in (1, 2, 3, 4, 64, 1024)}) == 1
    assert solver._jtdaj_groups_per_world is there


def test_private_names_of_mujoco_warp_are_wanted_for_equal_bits_alone(monkeypatch):
    import sys

    for name in ("launches", "order", "sums"):
        monkeypatch.setitem(sys.modules, f"rlvla.mujoco_warp.{name}", None)  # cannot be imported
    made(1).env_step(1)()
    with pytest.raises(ImportError):
        made(1, deterministic=True)


@pytest.mark.parametrize("wrong", [{"contacts": 0}, {"constraints": -1}])
def test_limits_and_worlds_are_at_least_one(wrong):
    from rlvla.mujoco_warp.worlds import Limits

    with pytest.raises(ValueError, match=r"limits: got Limits\(.*, wanted room for at least one contact"):
        made(limits=Limits(**{"contacts": 8, "constraints": 32, **wrong}))
    with pytest.raises(ValueError, match="worlds: got 0, wanted 1 or more"):
        made(0)


def test_bodies_do_not_sleep():
    import mujoco

    from rlvla.mujoco_warp.worlds import Limits, Worlds

    model = scene.compiled()
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP
    worlds = Worlds(model, 1, limits=Limits(8, 32), device="cpu")
    assert not worlds.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP
    assert model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP, "the caller's model is the caller's"


def test_slow_compiling_is_said_aloud(caplog, monkeypatch):
    import time

    from rlvla.mujoco_warp import start

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(start, "_PATIENCE_S", 0.05)
    with start.compiling():
        deadline = time.monotonic() + 60
        while "compiling" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "compiling physics kernels, two to five minutes the first time; they are kept in" in caplog.text
    assert str(start.cache_folder()) in caplog.text
    assert "physics kernels are ready after" in caplog.text


def test_kernels_are_kept_where_the_user_says(monkeypatch):
    from rlvla.mujoco_warp import start

    monkeypatch.delenv(start.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/of-the-user")
    assert str(start.cache_folder()) == "/tmp/of-the-user/rlvla/warp"
    monkeypatch.setenv(start.CACHE_VARIABLE, "/tmp/elsewhere")
    assert str(start.cache_folder()) == "/tmp/elsewhere"


def test_several_cameras_are_what_one_each_would_show():
    """Sizes differ, and the model's order is not that of the names."""
    import mujoco
    import torch

    from rlvla.mujoco_warp.pictures import Pictures
    from rlvla.mujoco_warp.worlds import Limits, Worlds

    spec = mujoco.MjSpec.from_string(scene_text())
    spec.worldbody.add_camera(name="above", pos=[0.1, 0, 0.9], fovy=50)
    worlds = Worlds(spec.compile(), 2, limits=Limits(32, 128), device="cpu")
    with worlds.turn():
        worlds["qpos"][1, 3] = 0.15
        worlds.show()
        both = Pictures(worlds, {"above": (24, 40), "front": (32, 16)}).draw()
        for name, (height, width) in (("above", (24, 40)), ("front", (32, 16))):
            alone = Pictures(worlds, {name: (height, width)}).draw()[name]
            assert both[name].shape == (2, height, width, 3) and both[name].dtype == torch.uint8
            assert (both[name] == alone).all() and (alone[0] != alone[1]).any()


def test_batches_side_by_side_do_what_they_do_alone():
    check_side_by_side("cpu")
