"""The path of batched physics, on a stand-in that steps all rows at each action: the whole contract."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from line_env import DRIFT, HELD, LineEnv, header

from rlvla.specs import Start
from rlvla.testing import SimulatorConformance
from rlvla_sim_maniskill import ManiSkillConfig, backends, instance
from rlvla_sim_maniskill.simulator import ManiSkillSimulator

FILE = header(Path(tempfile.mkdtemp(prefix="rlvla-maniskill-")))
CONFIG = {"task": "Line-v1", "task_file": FILE, "backend": "gpu", "max_episode_steps": 30}


def _stand_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backends, "missing", lambda: "")
    patch.setattr(instance, "made", _made)


def _made(config: ManiSkillConfig, rows: int, physics: str) -> LineEnv:
    options = instance.options_of(config, rows, physics)  # type: ignore[arg-type]
    assert (options["num_envs"], options["sim_backend"]) == (rows, "physx_cuda")
    return LineEnv(rows)


class TestBatched(SimulatorConformance):
    name = "maniskill"
    config = CONFIG

    @classmethod
    def setup_class(cls) -> None:
        cls.patch = pytest.MonkeyPatch()
        _stand_in(cls.patch)

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        cls.patch.undo()


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> ManiSkillSimulator:
    _stand_in(monkeypatch)
    return ManiSkillSimulator(ManiSkillConfig(**CONFIG), rows=4)


def _starts(rows: int) -> list[Start]:
    return [Start(0)] * rows


def test_everything_stays_a_tensor(batched: ManiSkillSimulator) -> None:
    assert batched.spec.device == "gpu" and batched.spec.in_process
    observation = batched.reset(range(4), [1, 2, 3, 4], _starts(4))
    result = batched.step(torch.zeros(4, 3, 1), np.ones(4, bool))
    shown: list[Any] = [observation.state, *observation.images.values(), result.observation.state, result.reward]
    shown += [result.terminated, result.truncated, result.valid, result.success, result.success_at_end]
    assert all(isinstance(one, torch.Tensor) for one in shown)


class _Elsewhere:
    """A picture on another device: nothing can be done with it but to bring it here."""

    def __init__(self, picture: torch.Tensor) -> None:
        self._picture = picture

    def to(self, device: torch.device) -> torch.Tensor:
        return self._picture.to(device)


@pytest.mark.parametrize("paints", [False, True])
def test_pictures_come_to_where_physics_runs(batched: ManiSkillSimulator, paints: bool) -> None:
    """Physics on the CPU, drawing on a GPU."""
    one = batched._instances[0]
    one.env.scene.sensors["front"].get_obs = lambda **which: {"rgb": _Elsewhere(one.env._pictures())}
    one.env._get_obs_sensor_data = lambda: {"front": {"rgb": _Elsewhere(one.env._pictures())}}
    one.env.render_rgb_array = lambda: _Elsewhere(one.env._pictures())
    one._paints = paints
    batched.record_video([0])
    observation = batched.reset(range(4), [1, 2, 3, 4], _starts(4))
    result = batched.step(torch.zeros(4, 2, 1), np.ones(4, bool))
    assert isinstance(observation.images["front"], torch.Tensor)
    assert result.frames is not None and len(result.frames[0]) == 2
    one._cameras = []
    assert isinstance(one.picture(), torch.Tensor)


def test_rows_that_wait_are_put_back_where_they_were(batched: ManiSkillSimulator) -> None:
    batched.reset(range(4), [1, 2, 3, 4], _starts(4))
    env = batched._instances[0].env
    before = [env.place.clone(), env.target.clone()]
    batched.step(np.ones((4, 3, 1), np.float32), np.array([True, False, True, False]))
    for then, now in zip(before, (env.place, env.target), strict=True):
        assert torch.equal(then[[1, 3]], now[[1, 3]])
        assert not torch.isclose(then[[0, 2]], now[[0, 2]]).any()


def test_a_row_that_ends_in_a_chunk_stays_at_its_end_and_is_rewarded_until_there(batched: ManiSkillSimulator) -> None:
    batched.reset(range(4), [1, 2, 3, 4], _starts(4))
    env = batched._instances[0].env
    env.goal[:] = -3.0
    env.goal[1] = env.place[1] + 0.08  # some steps away
    result = batched.step(np.full((4, 6, 1), 0.5, np.float32), np.ones(4, bool))
    steps = int(result.valid[1].sum())
    assert 0 < steps < 6 and bool(result.terminated[1, steps - 1]) and bool(result.success[1])
    assert not result.reward[1, steps:].any() and bool((result.reward[1, :steps] > 0).all())
    place, goal = result.observation.state[1, :2]
    assert abs(float(place - goal)) < 0.05
    assert bool(result.valid[0].all())


def test_what_idle_rows_drift_into_is_rewarded_when_they_get_there_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch)
    simulator = ManiSkillSimulator(ManiSkillConfig(**CONFIG, reward="grasp_and_place"), rows=2)
    simulator.reset([0, 1], [1, 2], _starts(2))
    env = simulator._instances[0].env
    with torch.inference_mode():
        env.place[1] = env.target[1] = HELD - 1.5 * DRIFT
        env.goal[1] = -3.0
    still = np.zeros((2, 3, 1), np.float32)
    assert not simulator.step(still, np.array([True, False])).reward[1].any()
    assert env._elapsed_steps.tolist() == [3, 0]
    assert float(simulator.step(still, np.array([False, True])).reward[1].sum()) == pytest.approx(0.2)


def test_what_a_task_counts_of_rows_that_wait_is_put_back(batched: ManiSkillSimulator) -> None:
    batched.reset(range(4), [1, 2, 3, 4], _starts(4))
    env = batched._instances[0].env
    batched.step(np.ones((4, 3, 1), np.float32), np.array([True, False, True, False]))
    assert (env.travelled > 0).tolist() == env.ever["right"].tolist() == [True, False, True, False]


def test_a_reset_leaves_the_controllers_of_others_alone(batched: ManiSkillSimulator) -> None:
    batched.reset(range(4), [1, 2, 3, 4], _starts(4))
    batched.step(np.ones((4, 1, 1), np.float32), np.ones(4, bool))
    targets = batched._instances[0].env.target.clone()
    batched.reset([2], [9], _starts(1))
    now = batched._instances[0].env.target
    assert torch.equal(now[[0, 1, 3]], targets[[0, 1, 3]]) and not torch.equal(now[2], targets[2])


def test_training_goes_through_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import rlvla

    _stand_in(monkeypatch)
    with rlvla.build(
        sim={"use": "maniskill", "num_envs": 4, **CONFIG},
        model={"use": "tiny", "image_size": 16},
        algo={"use": "ppo", "window": 3, "minibatch_size": 6},
        scheduler="async-rollout",
        run={
            "steps": 2,
            "device": "cpu",
            "directory": str(tmp_path),
            "slots": 2,
            "without": ["display", "tensorboard"],
        },
    ) as run:
        run.train()
        assert run.evaluate(episodes=4).episodes[0].steps > 0
