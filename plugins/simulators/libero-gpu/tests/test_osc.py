"""The controller's kernels against robosuite's own controller and against its formulas in float64."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from libero_gpu_world import needs_warp

pytestmark = [needs_warp, pytest.mark.timeout(300)]

TOLERANCE = 1e-5
"""Of the largest torque; measured 2.2e-6 over 50 states."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Any]:
    from rlvla_sim_libero import startup
    from rlvla_sim_libero.tasks import SUITES

    startup.import_libero()
    from rlvla_sim_libero.scene import Scene

    made = Scene(startup.task_file(SUITES["libero_spatial"][0]))
    yield made
    made.close()


@pytest.fixture
def stored() -> np.ndarray:
    from rlvla_sim_libero import startup
    from rlvla_sim_libero.tasks import SUITES

    with np.load(startup.states_file(SUITES["libero_spatial"][0]), allow_pickle=False) as file:
        return np.asarray(file["states"][0])


@pytest.fixture(scope="module")
def warp_model(scene: Any) -> Any:
    from rlvla.mujoco_warp.start import mjw, wp

    with wp.ScopedDevice("cpu"):
        return mjw.put_model(scene.model)


def controller(scene: Any, model: Any, count: int = 1, frozen: tuple[int, ...] = ()) -> Any:
    from rlvla.mujoco_warp.start import wp
    from rlvla_sim_libero_gpu.osc import Controller

    flags = [world in frozen for world in range(count)]
    return Controller(scene.robot(), model, count, wp.get_device("cpu"), wp.array(flags, dtype=bool, device="cpu"))


def on_warp(scene: Any, count: int = 1) -> Any:
    """Return the fields that the kernels read and write, as they are on the CPU after ``mj_step1``."""
    from rlvla.mujoco_warp.start import wp

    data = scene.data
    kinds = {"qpos": float, "qvel": float, "qfrc_bias": float, "ctrl": float, "M": float}
    kinds |= {"site_xpos": wp.vec3, "subtree_com": wp.vec3, "site_xmat": wp.mat33, "cdof": wp.spatial_vector}

    def put(name: str) -> Any:
        array = np.repeat(np.asarray(getattr(data, name))[None], count, 0)
        array = array.reshape(*array.shape[:2], 3, 3) if name == "site_xmat" else array
        return wp.array(array, dtype=kinds[name], device="cpu")

    return SimpleNamespace(**{name: put(name) for name in kinds})


def remember(made: Any, scene: Any, world: int = 0) -> None:
    """Give the kernels' controller what robosuite's remembers."""
    import torch

    own = scene._robot.controller
    gripper = np.broadcast_to(scene._robot.gripper.current_action, 2)
    values = {"rest": own.initial_joint, "goal_pos": own.goal_pos, "goal_mat": own.goal_ori, "gripper": gripper}
    made.put(torch.tensor([world]), {name: [np.asarray(value)] for name, value in values.items()})


def told(scene: Any, data: Any, world: int = 0) -> np.ndarray:
    robot = scene.robot()
    return data.ctrl.numpy()[world][[*robot.arm_actuators, *robot.gripper_actuators]]


def robosuites(scene: Any, action: np.ndarray) -> np.ndarray:
    """Return the torques and gripper commands of robosuite's own controller in the first substep of an action."""
    own, robot = scene._robot.controller, scene.robot()
    if own.new_update:
        scene._update(own)
    own.set_goal(action[:6])
    torques = np.clip(own.run_controller(), *robot.torque_limits)
    fingers = scene._robot.gripper.format_action(action[6:])
    return np.concatenate([torques, robot.gripper_middle + robot.gripper_reach * fingers])


def test_torques_are_those_of_robosuites_controller_along_an_episode(scene: Any, warp_model: Any, stored: Any) -> None:
    import mujoco
    import torch

    scene.reset(0, stored, 2)
    made = controller(scene, warp_model)
    for action in np.random.default_rng(0).uniform(-1, 1, (30, 7)) * np.linspace(0.1, 1, 30)[:, None]:
        mujoco.mj_step1(scene.model, scene.data)
        remember(made, scene)
        made.action[0] = torch.as_tensor(action)
        data = on_warp(scene)
        made.launch(data, 0)
        wanted = robosuites(scene, action)
        np.testing.assert_allclose(told(scene, data)[:7], wanted[:7], rtol=0, atol=TOLERANCE * np.abs(wanted[:7]).max())
        np.testing.assert_allclose(told(scene, data)[7:], wanted[7:], rtol=0, atol=1e-6)
        scene.step(action)


def test_the_first_substep_after_a_reset_acts_on_the_rest_pose(scene: Any, warp_model: Any, stored: Any) -> None:
    import mujoco
    import torch

    from rlvla_sim_libero_gpu.osc import MEMORY
    from rlvla_sim_libero_gpu.starts import Begun

    scene.reset(0, stored, 0)
    begun = Begun.of(scene, lamps=())
    assert begun.held
    made, action = controller(scene, warp_model, count=2), np.random.default_rng(1).uniform(-0.3, 0.3, 7)
    made.put(torch.tensor([0, 1]), {name: [begun.controller[name]] * 2 for name in MEMORY})
    made.held[0] = True  # the second world is not held: it acts on what physics says
    made.action[:] = torch.as_tensor(action)
    mujoco.mj_step1(scene.model, scene.data)
    data = on_warp(scene, 2)
    made.launch(data, 0)
    wanted = robosuites(scene, action)
    np.testing.assert_allclose(told(scene, data)[:7], wanted[:7], rtol=0, atol=TOLERANCE * np.abs(wanted[:7]).max())
    assert np.abs(told(scene, data, 1)[:7] - wanted[:7]).max() > 0.05  # Nm: the stored arm is not at rest pose
    assert not made.held.any()


def test_torques_are_robosuites_formulas_in_float64(scene: Any, warp_model: Any) -> None:
    """Random poses, masses and Jacobians: not only those that LIBERO's arm passes."""
    import torch

    made, rng = controller(scene, warp_model, count=20), np.random.default_rng(0)
    made._lowest, made._highest = type(made._lowest)(*[-1e9] * 7), type(made._highest)(*[1e9] * 7)
    state = [drawn(rng) for _ in range(20)]
    made.put(torch.arange(20), {name: [one[name] for one in state] for name in state[0] if name != "bias"})
    made.held[:] = True
    robot = scene.robot()
    data = on_warp(scene, 20)
    bias = np.zeros((20, scene.model.nv))
    bias[:, robot.arm_dofs] = [one["bias"] for one in state]
    data.qfrc_bias.assign(bias)
    made.launch(data, 1)
    for world, one in enumerate(state):
        wanted = torques(one)
        got = told(scene, data, world)[:7]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())


def drawn(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a random state of a controller with a mass matrix of condition below 100."""
    root = rng.normal(size=(7, 7))
    turns = [np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2)]
    turns = [turn * np.sign(np.linalg.det(turn)) for turn in turns]
    jacobian, dq = rng.normal(size=(6, 7)), rng.normal(size=7)
    return {
        "pos": rng.normal(size=3),
        "mat": turns[0],
        "q": rng.normal(size=7),
        "dq": dq,
        "vel": jacobian @ dq,
        "jacobian": jacobian,
        "mass": root @ root.T + 2 * np.eye(7),
        "rest": rng.normal(size=7),
        "goal_pos": rng.normal(size=3),
        "goal_mat": turns[1],
        "bias": rng.normal(size=7),
    }


def torques(s: dict[str, np.ndarray]) -> np.ndarray:
    """robosuite 1.4, ``controllers/osc.py`` and ``utils/control_utils.py``, with plain inverses."""
    jac, mass = s["jacobian"], s["mass"]
    error = 0.5 * sum(np.cross(s["mat"][:, k], s["goal_mat"][:, k]) for k in range(3))
    stiff, damping = 150.0, 2 * np.sqrt(150.0)
    wanted = np.concatenate([stiff * (s["goal_pos"] - s["pos"]), stiff * error]) - damping * s["vel"]
    inverse = np.linalg.inv(mass)
    of_pos, of_mat = (np.linalg.inv(one @ inverse @ one.T) for one in (jac[:3], jac[3:]))
    wrench = np.concatenate([of_pos @ wanted[:3], of_mat @ wanted[3:]])
    null = np.eye(7) - inverse @ jac.T @ np.linalg.inv(jac @ inverse @ jac.T) @ jac
    pull = 10.0 * (s["rest"] - s["q"]) - 2 * np.sqrt(10.0) * s["dq"]
    return jac.T @ wrench + s["bias"] + null.T @ mass @ pull


def test_the_grippers_command_moves_by_a_hundredth_and_stays_within_its_ends(scene: Any, warp_model: Any) -> None:
    made, own, robot = controller(scene, warp_model), scene._robot.gripper, scene.robot()
    own.current_action = np.zeros(2)
    made["gripper"][:] = 0.0
    for command in [1.0] * 3 + [0.0] * 2 + [-0.2] * 130 + [0.7] * 5:
        made.action[0, 6] = command
        data = on_warp(scene)
        made.launch(data, 1)
        wanted = robot.gripper_middle + robot.gripper_reach * own.format_action(np.array([command]))
        np.testing.assert_allclose(told(scene, data)[7:], wanted, rtol=0, atol=1e-5)
    assert made["gripper"].abs().max() < 1


def test_an_action_without_rotation_keeps_the_rotation_of_the_goal(scene: Any, warp_model: Any) -> None:
    import torch

    made = controller(scene, warp_model, count=2)
    made["goal_mat"][:] = torch.eye(3)
    made.action[:] = torch.tensor([[0.5, 0, 0, 0, 0, 0, 0], [0.5, 0, 0, 0, 0.1, 0, 0]])
    made.launch(on_warp(scene, 2), 0)
    assert torch.equal(made["goal_mat"][0], torch.eye(3))
    assert not torch.allclose(made["goal_mat"][1], torch.eye(3), atol=1e-3)
    np.testing.assert_allclose(made["goal_pos"] - made["pos"], [[0.025, 0, 0]] * 2, atol=1e-6)


def test_nothing_changes_in_a_frozen_world(scene: Any, warp_model: Any) -> None:
    from rlvla_sim_libero_gpu.osc import MEMORY

    made = controller(scene, warp_model, count=2, frozen=(1,))
    made.held[:] = True
    made.action[:] = 0.5
    before, data = {name: made[name].clone() for name in MEMORY}, on_warp(scene, 2)
    ctrl = data.ctrl.numpy().copy()
    for substep in range(2):
        made.launch(data, substep)
    assert (data.ctrl.numpy()[1] == ctrl[1]).all() and (data.ctrl.numpy()[0] != ctrl[0]).any()
    assert made.held.tolist() == [False, True]
    for name in MEMORY:
        assert bool((made[name][1] == before[name][1]).all()), name
