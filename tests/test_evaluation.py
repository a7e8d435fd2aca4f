"""Evaluation in the middle of training: on pinned weights, beside the rollouts, under every scheduler."""

import itertools
import json

import pytest

import rlvla
from rlvla import checkpoint
from rlvla.configs import EvalConfig
from rlvla.errors import SimulatorError
from rlvla.evaluation import EvaluationSink, episodes_of
from rlvla.receipts import Ended
from rlvla.specs import SimulatorSpec, Start, TaskSpec
from rlvla.video import read_video
from rlvla.work import EpisodeFeed, Work

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
        in_process = scheduler != "async-rollout"  # worker processes, which take a second a run, under one of them
        with build(place, scheduler, heard, {"pause": pause}, deterministic=True, sim_in_process=in_process) as run:
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


def test_episodes_per_task_play_each_initial_state_in_turn():
    tasks = tuple(TaskSpec(name, initial_states=3) for name in "ab")
    spec = SimulatorSpec((), (), (), 10.0, 1, tasks)
    episodes = episodes_of(EvalConfig(episodes_per_task=3, episodes=99), spec)
    assert sorted((start.task, start.state) for _, start in episodes) == [(t, s) for t in (0, 1) for s in (0, 1, 2)]


def test_slots_share_out_tasks_and_every_episode_is_played_once():
    episodes = [(number, Start(number % 3)) for number in range(30)]
    feed = EpisodeFeed(episodes, 0, slots=[2, 2])
    played = [(row, feed.take(row)) for row in (0, 2, 1, 3) * 7 + (0, 2)]
    assert sorted(work.ticket for _, work in played) == list(range(30))
    assert feed.take(0) is None
    for slot in (0, 1):
        tasks = [work.episode[1].task for row, work in played if row // 2 == slot]
        changes = sum(one != other for one, other in itertools.pairwise(tasks))
        assert changes <= 2, tasks  # in the order of the list it would be 14
    assert [EpisodeFeed(episodes, 0, only=[7, 2]).take(0).ticket, EpisodeFeed(episodes, 0).take(3).ticket] == [7, 0]


def test_videos_show_failures_before_successes(tmp_path):
    with build(tmp_path, "sync", Heard(), {}, deterministic=True) as run:
        results = run.evaluate(episodes=12, videos=4, greedy=False)
    failed = [one.index for one in results.episodes if not one.success]
    solved = [one.index for one in results.episodes if one.success]
    assert failed, "a world in which some episodes fail"
    filmed = [one for one in results.episodes if one.video is not None]
    assert {one.index for one in filmed} == set((failed + solved)[:4])
    for one in filmed:
        assert len(read_video(one.video)) == one.steps + 1


def test_an_episode_that_goes_another_way_when_played_again_has_no_video(tmp_path, caplog):
    spec = SimulatorSpec((), (), (), 10.0, 9, (TaskSpec("a"),))
    first, again = (EvaluationSink([(0, Start()), (1, Start())], spec) for _ in range(2))
    for sink, steps in ((first, (3, 4)), (again, (3, 5))):
        for ticket in (0, 1):
            sink.finished(Work(ticket, 0, None, (0, Start()), 0), Ended(ticket, True, False, False, steps[ticket], 0.0))
            sink.videos[ticket] = tmp_path / f"{id(sink)}-{ticket}.mp4"
            sink.videos[ticket].touch()
    first.videos.clear()
    first.take_videos(again)
    assert list(first.videos) == [0]
    assert "no video of episode 1: played again it went another way" in caplog.text
    assert not again.videos[1].exists()


def test_a_worker_that_dies_while_it_starts_is_started_again(tmp_path, caplog, monkeypatch):
    """A run does not end with a worker of an evaluation; one of training that cannot start ends it at once."""
    with build(tmp_path, sim={"num_envs": 2}) as run:
        engine = run._started()
        make, killed = engine._make_slots, []

        def dying(*about):
            slots = make(*about)
            if not killed:
                killed.append(slots[0].actor.name)
                slots[0].actor.kill()
            return slots

        monkeypatch.setattr(engine, "_make_slots", dying)
        run.train()
        assert killed == ["eval-0"]
        assert "eval-0" in caplog.text
        assert "it is started again" in caplog.text
        with pytest.raises(SimulatorError, match="sim-0"):
            slots = make(engine.config, engine.specs, (2,), "sim")
            slots[0].actor.kill()
            engine.wait(engine._ready(slots))
        slots[0].actor.close()
