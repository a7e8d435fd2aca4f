"""Real LIBERO, end to end on a CPU: train, checkpoint, resume, evaluate with video, look at the picture."""

import json

import numpy as np
import pytest

import rlvla
from rlvla.configs import Choice
from rlvla.specs import Start
from rlvla.video import read_video
from rlvla.worker import open_simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SIM = {"use": "libero", "suite": "libero_spatial", "num_envs": 2, "image_size": 96, "max_episode_steps": 16}
QUIET = {"without": ["tensorboard", "display", "report"], "device": "cpu", "slots": 2}


def test_grpo_on_libero_trains_resumes_and_is_evaluated_with_video(tmp_path):
    algo = {"use": "grpo", "group_size": 2, "groups_per_step": 1}
    model = {"use": "tiny", "cameras": ["primary", "wrist"], "horizon": 8}
    options = {"directory": str(tmp_path), "name": "run", "steps": 2, "save_every": 1, **QUIET}
    with rlvla.build(sim=SIM, model=model, algo=algo, run=options) as run:
        run.train()
    with rlvla.resume(tmp_path / "run", {"run": {"steps": 3}}) as run:
        run.train()
        results = run.evaluate(episodes=2, tasks=[0], videos=1)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "rollout/episodes" in line] == [1, 2, 3]
    assert [(one.task, one.state, one.steps) for one in results.episodes] == [(0, 0, 16), (0, 1, 16)]
    assert results.protocol["versions"]["mujoco"] == "3.3.7"
    assert len(read_video(results.episodes[0].video)) == 17


def test_another_mujoco_release_is_warned_of_by_task_and_stands_in_the_results(tmp_path, monkeypatch, caplog):
    """Its metadata names another release, which is all that the plugin can go by; the manifest's pin does not refuse it."""
    other = tmp_path / "other/mujoco-3.12.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mujoco\nVersion: 3.12.0\n")
    monkeypatch.setenv("PYTHONPATH", str(other.parent))
    options = {"directory": str(tmp_path), "name": "run", **QUIET, "slots": 1}
    sim = {**SIM, "num_envs": 1, "image_size": 16, "max_episode_steps": 4, "settle_steps": 0, "tasks": [5]}
    with rlvla.build(sim=sim, model="tiny", algo="ppo", run=options) as run:
        versions = run.evaluate(episodes=1).protocol["versions"]
    assert versions["mujoco"] == "3.12.0"
    assert "from 3.12.0 on the bowl of libero_spatial task 5 tips off its ramekin" in versions["warning"]
    assert caplog.text.count(versions["warning"]) == 1
    assert versions["GL_RENDERER"] == subprocess_renderer(sim)


def subprocess_renderer(sim):
    """What a worker draws with, asked before its first picture."""
    plugin = rlvla.find("sim", "libero")
    config = plugin.config(**{name: value for name, value in sim.items() if name not in ("use", "tasks")})
    with open_simulator(Choice(plugin, config), rows=1, horizon=1, python=None) as simulator:
        name = simulator.wait_ready().versions()["GL_RENDERER"]
    assert name not in ("", "unknown", "not started")
    return name


def test_group_members_start_from_equal_bits_in_different_workers():
    plugin = rlvla.find("sim", "libero")
    choice = Choice(plugin, plugin.config(**{name: value for name, value in SIM.items() if name != "use"}))
    shown = []
    for _ in range(2):
        with open_simulator(choice, rows=1, horizon=8, python=None) as simulator:
            observation = simulator.reset([0], [5], [Start(2, 7)])
            shown.append(
                {**{name: np.array(one) for name, one in observation.images.items()}, "s": np.array(observation.state)}
            )
    for name in shown[0]:
        assert (shown[0][name] == shown[1][name]).all()
