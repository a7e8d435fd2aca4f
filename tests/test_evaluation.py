"""Evaluation in the middle of training: on pinned weights, beside the rollouts, under every scheduler."""

import json

import pytest

import rlvla
from rlvla import checkpoint
from rlvla.errors import SimulatorError
from rlvla.evaluation import EvaluationSink

PPO = {"use": "ppo", "window": 3, "minibatch_size": 8}


class Heard:
    """Notes steps and evaluations in the order in which they are told."""

    def __init__(self):
        self.order = []
        self.found = {}

    @rlvla.hookimpl
    def on_step(self, step):
        self.order.append(("step", step))

    @rlvla.hookimpl
    def on_evaluation(self, step, results):
        self.order.append(("evaluation", step))
        self.found[step] = (results.policy_version, [(one.success, one.episode_return) for one in results.episodes])


def build(folder, scheduler="sync", heard=None, eval=None, sim=None, **run):
    quiet = {
        "without": ["tensorboard", "display", "report"],
        "strict_listeners": True,
        "save_every": 0,
        "device": "cpu",
    }
    options = {"directory": str(folder), "name": "run", "steps": 6, "slots": 2, "threads": 1}
    return rlvla.build(
        sim={"use": "fake", "num_envs": 4, **(sim or {})},
        model="fake",
        algo=PPO,
        scheduler=scheduler,
        train={"learning_rate": 3e-2},
        eval={"every": 2, "episodes": 6, **(eval or {})},
        run={**options, **quiet, **run},
        listeners=[heard] if heard else [],
    )


@pytest.mark.parametrize("scheduler", ["sync", "async-rollout", "full-async", "hybrid"])
def test_beside_or_in_a_pause_it_finds_the_same(tmp_path, scheduler):
    """Pinned weights, whatever training does meanwhile; and training does the same whether it is watched or not."""
    if scheduler == "full-async":
        scheduler = {"use": "full-async", "max_staleness": 0}
    found = {}
    for pause in (False, True):
        heard = Heard()
        place = tmp_path / str(pause)
        with build(place, scheduler, heard, {"pause": pause}, deterministic=True) as run:
            run.train()
        weights = (checkpoint.find(run.directory) / "model" / "model.safetensors").read_bytes()
        found[pause] = heard.found, weights
    assert sorted(found[False][0]) == [2, 4, 6]
    assert [version for version, _ in found[False][0].values()] == [2, 4, 6]
    assert found[False] == found[True]


def test_training_goes_on_beside_it(tmp_path):
    """The evaluation of step 2 takes many more chunks than a training step, and is told after later steps."""
    heard = Heard()
    with build(tmp_path, "full-async", heard, {"every": 2, "episodes": 40, "num_envs": 1}, steps=4) as run:
        run.train()
    assert heard.order.index(("step", 3)) < heard.order.index(("evaluation", 2))
    assert heard.order[-1] == ("evaluation", 4), "the last one is waited for"


def test_the_best_checkpoint_is_the_evaluated_one(tmp_path):
    heard = Heard()
    with build(tmp_path, "full-async", heard, {"every": 1}, keep_last=1) as run:
        run.train()
    best = json.loads((run.directory / "checkpoints" / "best.json").read_text())
    success = {step: sum(one for one, _ in episodes) / 6 for step, (_, episodes) in heard.found.items()}
    assert best["success"] == max(success.values()) == success[best["step"]]
    assert checkpoint.read_state(checkpoint.path_of(run.directory, best["step"]))["graph"]["steps_done"] == best["step"]
    assert set(checkpoint.steps(run.directory)) == {best["step"], 6}


def test_one_that_fails_ends_the_run(tmp_path, monkeypatch):
    def fail(self, work, ended):
        raise SimulatorError("eval-0: no such luck")

    monkeypatch.setattr(EvaluationSink, "finished", fail)
    with build(tmp_path, "full-async", None, steps=500) as run:
        with pytest.raises(SimulatorError, match="no such luck"):
            run.train()
        assert checkpoint.steps(run.directory), "what was trained is not saved"
