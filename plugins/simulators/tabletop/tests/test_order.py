"""Bits of deterministic worlds do not depend on the order in which contacts and rows are found: here by a seed, on a GPU by chance."""

from __future__ import annotations

import logging

import pytest
from tabletop_world import needs_warp

from rlvla.errors import SimulatorError
from rlvla_sim_tabletop import scene

pytestmark = [needs_warp, pytest.mark.timeout(600)]
STEPS = 24
COUNT = 3
HEAP = """
<mujoco>
  <option timestep="0.004" integrator="{integrator}" cone="{cone}" solver="Newton"/>
  <default><geom condim="4" friction="0.3 0.02 0.001"/></default>
  <worldbody>
    <geom type="plane" size="2 2 .1" condim="3"/>
    <body pos="0 0 .2">
      <joint name="turn" axis="0 0 1" frictionloss="0.2" damping="1" limited="true" range="-.3 .3"/>
      <geom type="capsule" size=".03" fromto="0 0 0 .2 0 0"/>
      <body pos=".2 0 0">
        <joint name="lift" axis="0 1 0" frictionloss="0.1" damping="1" limited="true" range="-.2 .2"/>
        <geom type="capsule" size=".03" fromto="0 0 0 .2 0 0"/>
        <body pos=".2 0 0">
          <joint name="tip" axis="0 1 0" frictionloss="0.1" damping="1" limited="true" range="-1 .7"/>
          <geom type="sphere" size=".04"/>
        </body>
      </body>
    </body>
    {blocks}
  </worldbody>
  <actuator><motor joint="turn" gear="3"/><motor joint="lift" gear="3"/><motor joint="tip"/></actuator>
</mujoco>
"""


def heap(cone, integrator="Euler"):
    """Return an arm that stirs a heap of five blocks: more than 32 degrees of freedom, so its Jacobian is sparse."""
    import mujoco

    blocks = "".join(
        f"<body pos='{0.3 + 0.07 * (number % 3)} {0.05 * (number % 2)} {0.06 + 0.05 * number}'><freejoint/>"
        f"<geom type='{'box' if number % 2 else 'sphere'}' size='.04 .04 .04' mass='.2'/></body>"
        for number in range(5)
    )
    return mujoco.MjModel.from_xml_string(HEAP.format(cone=cone, integrator=integrator, blocks=blocks))


def crowd(*_):
    """Return tabletop's scene, sparse in nothing: three blocks that touch one another, and the hand."""
    return scene.compiled()


def few(*_):
    """Return an arm and two blocks: so few degrees of freedom that MuJoCo takes a dense Jacobian, with elliptic cones."""
    import mujoco

    block = "<body pos='.33 .02 .05'><freejoint/><geom type='box' size='.04 .04 .04' mass='.2'/></body>"
    twin = block.replace("'.33 .02 .05'", "'.36 .03 .14'")
    return mujoco.MjModel.from_xml_string(HEAP.format(cone="elliptic", integrator="Euler", blocks=block + twin))


SCENES = {
    "dense": crowd,
    "elliptic": few,
    "sparse": lambda: heap("elliptic"),
    "atomics": lambda: heap("pyramidal"),  # whose sums are mujoco_warp's own
}


def played(model, seed, count=COUNT, ordered=True, steps=STEPS):
    """Return the states after each env step, and what was shuffled."""
    import torch

    from rlvla.mujoco_warp.worlds import Limits, Worlds
    from rlvla.testing.chance import Chance

    worlds = Worlds(model, count, limits=Limits(64, 256), device="cpu", deterministic=True)
    chance = None if seed is None else Chance(worlds, seed, ordered)
    step = worlds.env_step(5)
    noise = torch.Generator().manual_seed(7)
    worlds.restart(torch.ones(count, dtype=torch.bool))
    if model.nq == 12:
        places = [-0.1, 0.0, 0.03, 0.0, 0.0, 0.0, 0.059, 0.0, 0.0, 0.03, 0.055, 0.3]
        worlds["qpos"].copy_(torch.tensor(places).expand(count, -1))
    states = []
    for _ in range(steps):
        worlds["ctrl"].copy_((torch.rand(1, model.nu, generator=noise) * 2 - 1) * (0.2 if model.nq == 12 else 1.0))
        step()
        states.append(worlds.state(slice(None)).clone())
    assert not worlds.overflowed().any() and not worlds.diverged.any()
    return torch.stack(states), chance, worlds


@pytest.mark.parametrize("kind", list(SCENES))
def test_bits_do_not_depend_on_the_order_in_which_contacts_and_rows_are_found(kind):
    import torch

    model = SCENES[kind]()
    wanted, _, worlds = played(model, None)
    assert (worlds._ordered._sums is None) == (kind == "atomics")
    for seed in (1, 2):
        states, chance, _ = played(model, seed)
        assert chance.contacts > 10 and chance.rows > 10 and (kind != "dense" or chance.changes > 2)
        assert torch.equal(states, wanted)
        assert torch.equal(states[:, 1:], states[:, :1].expand(-1, COUNT - 1, -1)), "worlds of equal states"
    assert torch.equal(played(model, 3, count=2)[0], wanted[:, :2])
    assert not torch.equal(played(model, 1, ordered=False)[0], wanted), "nothing would be seen without an order"


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_sums_in_order_are_those_of_mujoco_warp(kind):
    """But for rounding: after one substep, from states with contacts, speeds differ by 1e-5 at most."""
    import torch

    from rlvla.mujoco_warp.worlds import Limits, Worlds

    model = SCENES[kind]()
    states, _, _ = played(model, None, count=1)
    found = []
    for deterministic in (False, True):
        worlds = Worlds(model, STEPS, limits=Limits(64, 256), device="cpu", deterministic=deterministic)
        step = worlds.env_step(1)
        worlds.set_state(slice(None), states[:, 0])
        step()
        found.append({name: worlds[name].clone() for name in ("qvel", "qfrc_constraint", "nefc")})
    plain, ordered = found
    assert torch.equal(plain["nefc"], ordered["nefc"]) and int(plain["nefc"].max()) > 10
    torch.testing.assert_close(ordered["qvel"], plain["qvel"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ordered["qfrc_constraint"], plain["qfrc_constraint"], atol=1e-4, rtol=1e-4)


def test_rows_go_by_class_and_by_what_they_constrain():
    _, chance, worlds = played(heap("elliptic"), 1, steps=3)
    data = worlds.data
    ends = [int(getattr(data, name).numpy()[0]) for name in ("ne", "nf", "nl")]
    first = sum(ends)
    count = int(data.nefc.numpy()[0])
    numbers, kinds = data.efc.id.numpy()[0], data.efc.type.numpy()[0]
    assert chance.rows > first > 3 and (kinds[:first] < kinds[first:count].min()).all()
    for begin, end in ((0, ends[1]), (ends[1], first)):
        assert numbers[begin:end].tolist() == sorted(set(numbers[begin:end].tolist()))
    geoms, inside = data.contact.geom.numpy(), data.contact.geomcollisionid.numpy()
    names = [(*geoms[one].tolist(), int(inside[one])) for one in numbers[first:count]]
    assert names == sorted(names)
    address = data.contact.efc_address.numpy()
    assert all(row in address[numbers[row]] for row in range(first, count))
    assert [data.dof_frictionadr.numpy()[0, one] for one in numbers[: ends[1]]] == list(range(ends[1]))


def test_models_whose_sums_are_not_known_keep_mujoco_warps_own():
    import mujoco

    from rlvla.mujoco_warp.start import mjw
    from rlvla.mujoco_warp.worlds import Limits, Worlds

    kinds = mjw.DeterminismType
    pushed = HEAP.format(cone="elliptic", integrator="Euler", blocks="").replace(
        '<motor joint="tip"/>', '<motor site="hand"/>'
    )
    pushed = pushed.replace('<geom type="sphere" size=".04"/>', '<geom size=".04"/><site name="hand"/>')
    for model, wanted in (
        (mujoco.MjModel.from_xml_string(pushed), kinds.CONSTRAINT | kinds.ATOMICS),
        (heap("elliptic"), kinds.CONSTRAINT),
        (heap("elliptic", "implicit"), kinds.CONSTRAINT | kinds.ATOMICS),
        (heap("pyramidal"), kinds.CONSTRAINT | kinds.ATOMICS),
        (scene.compiled(), kinds.CONSTRAINT),
    ):
        worlds = Worlds(model, 1, limits=Limits(64, 256), device="cpu", deterministic=True)
        assert worlds.model.opt.deterministic == wanted
    assert Worlds(scene.compiled(), 1, limits=Limits(8, 32), device="cpu").model.opt.deterministic == kinds.NONE


def test_a_model_whose_contacts_have_no_order_is_refused():
    import mujoco

    from rlvla.mujoco_warp.worlds import Limits, Worlds

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><flexcomp name='cloth' type='grid' count='3 3 1' spacing='.1 .1 .1' dim='2'>"
        "<edge equality='true'/></flexcomp></worldbody></mujoco>"
    )
    with pytest.raises(SimulatorError, match="deterministic: got a model with 1 flexes, .* leave deterministic out"):
        Worlds(model, 1, limits=Limits(8, 32), device="cpu", deterministic=True)


def test_another_version_of_mujoco_warp_is_refused(monkeypatch, caplog):
    from rlvla.mujoco_warp.start import mjw
    from rlvla.mujoco_warp.worlds import Limits, Worlds

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(mjw, "__version__", "4.1.0")
    with pytest.raises(
        SimulatorError, match=r"deterministic: mujoco-warp 4\.1\.0 is here, .* install mujoco-warp 4\.0\.0"
    ):
        Worlds(scene.compiled(), 1, limits=Limits(8, 32), device="cpu", deterministic=True)
    assert Worlds(scene.compiled(), 1, limits=Limits(8, 32), device="cpu").count == 1


def test_mujoco_warp_does_not_order_rows_itself():
    from mujoco_warp._src import constraint

    assert constraint._sort_constraints.__code__.co_names == (), "mujoco_warp does it by itself: delete order.py"
