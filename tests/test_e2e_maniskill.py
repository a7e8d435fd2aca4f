"""Real ManiSkill, end to end on a CPU: train from pictures, film, checkpoint, resume, evaluate; train from state."""

import json

import pytest

import rlvla
from rlvla.video import read_video

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SIM = {"use": "maniskill", "task": "PushCube-v1", "backend": "cpu", "num_envs": 2, "max_episode_steps": 8}
ALGO = {"use": "ppo", "window": 2, "minibatch_size": 4, "passes": 1}
QUIET = {"without": ["tensorboard", "display", "report"], "device": "cpu", "slots": 1}


def steps(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "train/loss" in line or "env_steps" in line]


def test_ppo_on_pictures_trains_films_resumes_and_is_evaluated(tmp_path):
    options = {"directory": str(tmp_path), "name": "run", "steps": 2, "save_every": 1, "video_every": 1, **QUIET}
    sim = {**SIM, "image_size": 32, "wording": "seen"}
    with rlvla.build(sim=sim, model={"use": "tiny", "image_size": 32}, algo=ALGO, run=options) as run:
        run.train()
    with rlvla.resume(tmp_path / "run", {"run": {"steps": 3}}) as run:
        run.train()
        results = run.evaluate(episodes=2, videos=1)
    assert sorted(set(steps(tmp_path / "run"))) == [1, 2, 3]
    assert [one.steps for one in results.episodes] == [8, 8]
    assert results.protocol["versions"]["sapien"] == "3.0.3"
    film = read_video(results.episodes[0].video)
    assert film.shape == (9, 32, 32, 3) and film.std() > 5
    assert len(list((tmp_path / "run/videos").glob("train_episode_*.mp4"))) >= 2


def test_grpo_on_state_trains_on_groups_that_start_alike(tmp_path):
    options = {"directory": str(tmp_path), "name": "run", "steps": 2, "save_every": 1, **QUIET}
    algo = {"use": "grpo", "group_size": 2, "groups_per_step": 1}
    sim = {**SIM, "observation": "state", "reward": "sparse"}
    with rlvla.build(sim=sim, model={"use": "tiny", "cameras": []}, algo=algo, run=options) as run:
        run.train()
    assert sorted(set(steps(tmp_path / "run"))) == [1, 2]
