"""The fast path gives the bits of LIBERO's own environment: physics, pictures, proprioception, fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rlvla_sim_libero import startup
from rlvla_sim_libero.simulator import LiberoSimulator  # noqa: F401  (sets the environment before MuJoCo is imported)

from rlvla_sim_libero.renderer import Renderer  # isort: skip
from rlvla_sim_libero.scene import Scene, StockScene, axis_angle  # isort: skip
from rlvla_sim_libero.tasks import SUITES, Task

CAMERAS = ["agentview", "robot0_eye_in_hand"]
MOKA_POT = SUITES["libero_10"][2]  # a stove with a lamp, and a long scene
DRAWER = SUITES["libero_spatial"][4]  # a bowl in an open drawer, which is placed relative to the cabinet


def stored_states(task: Task) -> np.ndarray:
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        return np.asarray(file["states"])


def physics(scene: Scene) -> list[np.ndarray]:
    return [scene.data.qpos.copy(), scene.data.qvel.copy(), scene.data.qacc_warmstart.copy()]


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module", params=[MOKA_POT, DRAWER], ids=["moka_pot", "drawer"])
def task(request: pytest.FixtureRequest) -> Task:
    return request.param


@pytest.fixture(scope="module")
def fast(task: Task) -> Iterator[Scene]:
    scene = Scene(startup.task_file(task))
    yield scene
    scene.close()


@pytest.fixture(scope="module")
def stock(task: Task) -> Iterator[StockScene]:
    scene = StockScene(startup.task_file(task), [], 64)
    yield scene
    scene.close()


def test_sixty_random_steps_equal_stock_bit_for_bit(task: Task, fast: Scene, stock: StockScene) -> None:
    state = stored_states(task)[3]
    for scene in (fast, stock):
        scene.reset(11, state, 10)
    assert equal(physics(fast), physics(stock))
    for step, action in enumerate(np.random.default_rng(0).uniform(-1, 1, (60, 7))):
        assert fast.step(action) == stock.step(action)
        assert equal(physics(fast), physics(stock)), f"step {step}"


def test_scenes_drawn_from_a_seed_equal_stock(fast: Scene, stock: StockScene) -> None:
    for seed in (3, 2**40 + 3):
        for scene in (fast, stock):
            scene.reset(seed, None, 1)
        assert equal(physics(fast), physics(stock))
        assert np.array_equal(fast.model.body_pos, stock.model.body_pos)
        assert np.array_equal(fast.model.body_quat, stock.model.body_quat)


OPENED = {
    "open_drawer": DRAWER,
    "open_microwave": SUITES["libero_10"][9],
    "lit_stove": SUITES["libero_90"][39],
}
"""Tasks whose files open drawers or light stoves at the start, which LIBERO does once more with each load of the scene."""


@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED)
def test_an_episode_is_the_first_one_of_a_new_upstream_environment(opened: Task) -> None:
    """Against ``OffScreenRenderEnv`` as evaluations use it: made, seeded, reset, set to a stored state, stepped."""
    from libero.libero.envs import OffScreenRenderEnv

    state, actions = stored_states(opened)[2], np.random.default_rng(0).uniform(-1, 1, (3, 7))
    with startup.quiet():
        upstream = OffScreenRenderEnv(
            bddl_file_name=str(startup.task_file(opened)), camera_heights=64, camera_widths=64
        )
        upstream.seed(5)
        upstream.reset()
    model, data = upstream.sim.model._model, upstream.sim.data._data
    drawn = [model.body_pos.copy(), model.body_quat.copy(), data.qpos.copy()]
    upstream.set_init_state(state)
    seen = [upstream.step(action)[0] for action in actions][-1]
    played = [data.qpos.copy(), data.qvel.copy()]
    upstream.close()
    fast, stock = Scene(startup.task_file(opened)), StockScene(startup.task_file(opened), [], 64)
    assert fast._initializers
    for scene in (fast, stock):
        scene.reset(8, None, 1)  # an episode before
        scene.reset(5, None, 0)
        assert equal([scene.model.body_pos, scene.model.body_quat, scene.data.qpos], drawn)
        scene.reset(5, state, 0)
        assert equal([scene.model.body_pos, scene.model.body_quat], drawn[:2])
        for action in actions:
            scene.step(action)
        assert equal(physics(scene)[:2], played)
    picture, renderer = np.zeros((64, 64, 3), np.uint8), Renderer(fast.model, 64)
    renderer.draw(fast.model, fast.pose(), fast.camera(CAMERAS[0]), picture)
    assert np.array_equal(picture, seen[f"{CAMERAS[0]}_image"][::-1, ::-1])
    renderer.close()
    for scene in (fast, stock):
        scene.close()


def test_a_try_without_a_free_place_initialises_once_more_as_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    from robosuite.utils.errors import RandomizationError
    from robosuite.utils.placement_samplers import SequentialCompositeSampler

    sample, calls = SequentialCompositeSampler.sample, []

    def fail_first(self: object, *args: object, **options: object) -> object:
        calls.append(self)
        if len(calls) == 1:
            raise RandomizationError("no place")
        return sample(self, *args, **options)

    path = startup.task_file(DRAWER)
    scenes = [Scene(path), StockScene(path, [], 16)]
    monkeypatch.setattr(SequentialCompositeSampler, "sample", fail_first)
    for scene in scenes:
        calls.clear()
        scene.reset(5, None, 0)
        assert len(calls) > 2
    assert equal(physics(scenes[0]), physics(scenes[1]))
    assert np.array_equal(scenes[0].model.body_pos, scenes[1].model.body_pos)
    for scene in scenes:
        scene.close()


def test_used_scene_equals_a_fresh_one(task: Task, fast: Scene) -> None:
    state = stored_states(task)[7]
    fast.reset(99, None, 0)
    for action in np.random.default_rng(1).uniform(-1, 1, (10, 7)):
        fast.step(action)
    fresh = Scene(startup.task_file(task))
    for scene in (fast, fresh):
        scene.reset(5, state, 3)
    assert equal(physics(fast), physics(fresh))
    for name in ("body_pos", "body_quat", "site_rgba"):
        assert np.array_equal(getattr(fast.model, name), getattr(fresh.model, name)), name
    for action in np.random.default_rng(2).uniform(-1, 1, (10, 7)):
        fast.step(action)
        fresh.step(action)
    assert equal(physics(fast), physics(fresh))
    fresh.close()


def test_seeds_move_fixtures_and_numpys_generator_stays_as_it_was(task: Task, fast: Scene) -> None:
    state = stored_states(task)[0]
    np.random.seed(0)
    expected = np.random.random()
    np.random.seed(0)
    fast.reset(1, state, 0)
    assert np.random.random() == expected
    first = fast.model.body_pos.copy()
    fast.reset(2, state, 0)
    assert not np.array_equal(first, fast.model.body_pos)


def test_pictures_and_proprioception_equal_stock_also_while_a_lamp_goes_on() -> None:
    stove = SUITES["libero_goal"][7]
    state = stored_states(stove)[0]
    fast, stock = Scene(startup.task_file(stove)), StockScene(startup.task_file(stove), CAMERAS, 64)
    renderer = Renderer(fast.model, 64)
    speed = 1 + fast.model.nq + 36  # of the stove's button
    state[speed] = 5.0  # rad/s: passes the 0.5 rad that count as on during the third action
    for scene in (fast, stock):
        scene.reset(4, state, 0)
    solved = []
    for action in np.random.default_rng(0).uniform(-1, 1, (4, 7)):
        solved.append((fast.step(action), stock.step(action)))
        pose = fast.pose()
        picture = np.zeros((64, 64, 3), np.uint8)
        with fast.lamps_as_shown():
            for camera in CAMERAS:
                renderer.draw(fast.model, pose, fast.camera(camera), picture)
                assert np.array_equal(picture, stock.picture(camera)), camera
        assert np.array_equal(fast.proprioception(pose), stock.stock_proprioception())
    assert solved == [(False, False)] * 2 + [(True, True)] * 2
    renderer.close()
    for scene in (fast, stock):
        scene.close()


def test_axis_angle_turns_as_its_quaternion() -> None:
    for quaternion in np.random.default_rng(0).normal(size=(20, 4)):
        x, y, z, w = quaternion / np.linalg.norm(quaternion)
        turn = axis_angle(x, y, z, w)
        angle = np.linalg.norm(turn)
        k = np.array([[0, -turn[2], turn[1]], [turn[2], 0, -turn[0]], [-turn[1], turn[0], 0]]) / angle
        rodrigues = np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k
        expected = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
        np.testing.assert_allclose(rodrigues, expected, atol=1e-12)
    assert np.array_equal(axis_angle(0.0, 0.0, 0.0, 1.0), np.zeros(3))
