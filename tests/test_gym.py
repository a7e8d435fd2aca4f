"""Gymnasium on both sides."""

from pathlib import Path

import gym_worlds
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import rlvla
from rlvla.errors import ConfigError
from rlvla.gym import GymConfig, GymSimulator, describe
from rlvla.specs import Start
from rlvla.testing import SimulatorConformance
from rlvla.testing.fakes import FakeSimConfig
from rlvla.testing.fakes.simulator import FakeSimulator

QUIET = {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "device": "cpu", "threads": 1}


class TestGym(SimulatorConformance):
    name = "gym"
    config = {"env": "gym_worlds:Dot", "picture": "observation", "max_episode_steps": 6}
    variations = (
        {"env": "gym_worlds:named", "picture": "camera", "state": "joints", "success": "terminated", "control_hz": 5.0},
        {"kwargs": {"length": 3}, "max_episode_steps": 5, "instruction": "move right"},
    )


def test_an_importable_environment_trains_in_worker_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    sim = rlvla.from_gym(gym_worlds.Dot, num_envs=4, picture="observation", instruction="move the dot right")
    heard = []

    class Listener:
        @rlvla.hookimpl
        def on_step(self, step, metrics):
            heard.append(metrics)

    algo = {"use": "ppo", "window": 4, "minibatch_size": None, "gamma": 0.9}
    options = {"directory": str(tmp_path), "name": "dot", "steps": 25, "slots": 2, **QUIET}
    with rlvla.build(
        sim=sim,
        model={"use": "tiny", "image_size": 16, "horizon": 2},
        algo=algo,
        train={"learning_rate": 1e-2},
        run=options,
        listeners=[Listener],
    ) as run:
        run.train()
        assert run.evaluate(episodes=4).success >= 0.75  # an untrained policy reaches the edge in about half
    assert np.mean([one["rollout/return"] for one in heard[-5:]]) > np.mean(
        [one["rollout/return"] for one in heard[:5]]
    )


def test_a_lambda_runs_in_this_process(tmp_path):
    sim = rlvla.from_gym(lambda: gym_worlds.Dot(), num_envs=2, picture="observation")
    algo = {"use": "ppo", "window": 2, "minibatch_size": None}
    model = {"use": "tiny", "image_size": 16}
    run = rlvla.build(sim=sim, model=model, algo=algo, run={"directory": str(tmp_path), "steps": 1, **QUIET})
    with run:
        run.train()
    assert not (run.directory / "workers").exists()


def test_a_registered_environment_is_rendered():
    config = rlvla.from_gym("CartPole-v1", num_envs=1, success="never")
    spec = describe(config)
    assert (spec.state_dim, spec.action_dim, spec.max_episode_steps) == (4, 1, 500)
    simulator = GymSimulator(config, rows=1)
    observation = simulator.reset([0], [0], [Start()])
    assert observation.images["front"].std() > 0
    result = simulator.step(np.array([[[0.2], [0.9]]], np.float32), np.ones(1, bool))
    assert result.valid.all()
    simulator.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": ""}, r"sim\.env: missing"),
        ({"env": "NoSuch-v0"}, r"sim\.env: 'NoSuch-v0' cannot be made: NameNotFound"),
        ({"env": "gym_worlds:Dot", "picture": "camera"}, r"sim\.picture: no 'camera' in the observation"),
        ({"env": "gym_worlds:named", "picture": "joints"}, r"sim\.picture: got float32 \(2,\), wanted uint8"),
        ({"env": "gym_worlds:Dot", "picture": "observation", "instruction": ""}, r"sim\.instruction: empty"),
        ({"env": "local:99"}, r"was a function of another process"),
    ],
)
def test_an_environment_that_cannot_be_used_says_why(options, words):
    with pytest.raises(ConfigError, match=words):
        describe(GymConfig(**options))


# ---- the other way ---------------------------------------------------------------------------------------------------


def vector(rows: int = 3, **options) -> gymnasium.vector.VectorEnv:
    return rlvla.as_vector_env(FakeSimulator(FakeSimConfig(**options), rows), rows, seed=3)


def test_a_vector_env_keeps_gymnasiums_contract():
    envs = vector()
    observation, info = envs.reset(seed=1)
    assert observation in envs.observation_space
    assert info == {}
    again, _ = envs.reset(seed=1)
    assert data_equivalence(observation, again, exact=True)
    other, _ = envs.reset(seed=2)
    assert not data_equivalence(observation, other, exact=True)
    envs.action_space.seed(0)
    observation, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
    assert observation in envs.observation_space
    for array, kind in ((reward, np.floating), (terminated, np.bool_), (truncated, np.bool_)):
        assert array.shape == (3,)
        assert np.issubdtype(array.dtype, kind)
    kept = {name: value.copy() for name, value in observation.items()}
    envs.step(envs.action_space.sample())
    assert data_equivalence(kept, observation, exact=True)  # not reused
    envs.close()


def test_a_vector_env_resets_ended_rows_at_the_next_step_and_no_others():
    envs = vector(rows=2, max_episode_steps=2)
    envs.reset(seed=0)
    still = np.zeros((2, 2), np.float32)
    _, _, _, truncated, _ = envs.step(still)
    assert not truncated.any()
    last, _, _, truncated, _ = envs.step(still)
    assert truncated.all()
    fresh, reward, terminated, truncated, _ = envs.step(still)
    assert not (terminated | truncated).any()
    assert not reward.any()
    assert (fresh["front"][:, 0, 0, 2] == 0).all()  # step counters of new episodes
    assert (last["front"][:, 0, 0, 2] == 2).all()


def test_gymnasiums_own_wrappers_work_on_it():
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector(rows=2, max_episode_steps=3))
    envs.reset(seed=0)
    lengths = []
    for _ in range(9):
        *_, info = envs.step(np.zeros((2, 2), np.float32))
        if "episode" in info:
            lengths += info["episode"]["l"][info["_episode"]].tolist()
    assert lengths[:2] == [3, 3]
