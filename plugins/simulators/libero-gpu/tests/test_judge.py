"""The judge against LIBERO on recorded states of some tasks; all 130: ``benchmarks/results/libero_gpu_predicates.json``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from libero_gpu_world import needs_warp

from rlvla.errors import SimulatorError

pytestmark = [needs_warp, pytest.mark.timeout(300)]

# In, Open; On a region and its parent, Turnon; two On an object; In and Close with a hinge; Turnoff.
SAMPLE = [("libero_goal", 3), ("libero_10", 2), ("libero_10", 4), ("libero_10", 9), ("libero_90", 39)]


def scene_of(suite: str, number: int) -> tuple[Any, Any]:
    from rlvla_sim_libero import startup
    from rlvla_sim_libero.tasks import SUITES

    startup.import_libero()
    from rlvla_sim_libero.scene import Scene

    task = SUITES[suite][number]
    return Scene(startup.task_file(task)), task


@pytest.mark.parametrize(("suite", "number"), SAMPLE)
def test_goals_hold_where_libero_says_so(suite: str, number: int) -> None:
    from judged_states import judged, recorded

    scene, task = scene_of(suite, number)
    record = recorded(scene, task, tries=6)
    predicates, solved = judged(scene, record)
    scene.close()
    assert 0 < sum(record.solved) < len(record.solved)  # both answers occur
    assert np.array_equal(predicates, record.predicates)
    assert np.array_equal(solved, record.solved)


@pytest.fixture(scope="module")
def stove() -> Any:
    scene, _ = scene_of("libero_goal", 7)
    yield scene
    scene.close()


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (["up", "plate_1"], r"goal \(up plate_1\): predicate 'up' cannot be judged on the GPU; there is: in, on, open"),
        (["in", "wine_bottle_1", "akita_black_bowl_1"], "'in' of akita_black_bowl_1, which is no region"),
        (["on", "saucer_9", "plate_1"], "its objects cannot be judged on the GPU; LIBERO knows akita_black_bowl_1"),
        (["open", "flat_stove_1"], "is_open of FlatStove cannot be judged"),
        (["turnon", "wooden_cabinet_1_top_region"], "'turnon' of a region"),
        (["close", "plate_1"], "'close' of plate_1, which has no joints for it"),
    ],
)
def test_what_cannot_be_judged_is_named_and_the_cpu_offered(stove: Any, goal: list[str], words: str) -> None:
    from rlvla_sim_libero_gpu.goals import goal_of

    asked = stove.env.parsed_problem["goal_state"]
    stove.env.parsed_problem["goal_state"] = [goal]
    try:
        with pytest.raises(SimulatorError, match=f"(?s){words}.*take the CPU backend: sim 'libero'"):
            goal_of(stove)
    finally:
        stove.env.parsed_problem["goal_state"] = asked


def test_thresholds_are_found_by_asking() -> None:
    from rlvla_sim_libero_gpu.goals import _flip

    assert _flip(lambda at: at >= 0.5, [0.5, 2.1]) == (0.5, 1, True)
    assert _flip(lambda at: at < -0.14, [-0.16, -0.14]) == (-0.14, -1, False)
    with pytest.raises(ValueError, match="changes 2 times at"):
        _flip(lambda at: 0.1 < at < 0.2, [0.1, 0.2])
    with pytest.raises(ValueError, match="changes 0 times"):
        _flip(lambda at: True, [0.1])


def test_limits_part_float32_joints_as_they_part_float64_ones() -> None:
    from rlvla_sim_libero_gpu.judge import in_float32

    rng = np.random.default_rng(0)
    for limit in rng.uniform(-2, 2, 50):
        for sign in (1, -1):
            near, inclusive = in_float32(limit, sign, False)
            for at in (np.float32(limit), np.nextafter(np.float32(limit), 9), np.nextafter(np.float32(limit), -9)):
                away = (float(at) - near) * sign
                assert (away > 0 or (away == 0 and inclusive)) == ((float(at) - limit) * sign > 0)


def test_worlds_are_judged_by_their_own_contacts() -> None:
    """Contacts of all worlds are in one list: those of another world must not count."""
    from judged_states import Recorded, judged

    from rlvla_sim_libero.scene import OPEN_AND_WAIT

    scene, _ = scene_of("libero_spatial", 0)
    record = Recorded()
    joint = scene.model.body_jntadr[scene.model.body("akita_black_bowl_1_main").id]
    at, dof = scene.model.jnt_qposadr[joint], scene.model.jnt_dofadr[joint]
    scene.reset(0, None, 10)
    for height in (0.02, 0.4, 0.02, 0.4):  # it falls onto the plate, or is above it still
        scene.data.qpos[at : at + 3] = scene.data.xpos[scene.model.body("plate_1_main").id] + [0, 0, height]
        scene.data.qvel[dof : dof + 6] = 0.0
        for _ in range(3):
            scene.step(OPEN_AND_WAIT)
        record.take(scene)
    _, solved = judged(scene, record)
    scene.close()
    assert solved.tolist() == record.solved == [True, False, True, False]
