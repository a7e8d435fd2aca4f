"""What a run promises, on fakes: the same numbers however it is cut, evaluated, stopped or broken."""

import json
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

import rlvla
from rlvla import checkpoint
from rlvla.actors.trainer import TrainerActor
from rlvla.engine import Engine
from rlvla.errors import ConfigError, SimulatorError, StallError
from rlvla.evaluation import episodes_of
from rlvla.results import wilson
from rlvla.testing.fakes.simulator import FakeSimulator
from rlvla.testing.scheduler import Recorder
from rlvla.video import read_video
from rlvla.watch import Watch

PPO = {"use": "ppo", "window": 3, "minibatch_size": 8, "passes": 2}
GRPO = {"use": "grpo", "group_size": 3, "groups_per_step": 2}
QUIET = {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "device": "cpu", "threads": 1}


def build(folder, algo=PPO, sim=None, model="fake", listeners=(), eval=None, **run):
    options = {"directory": str(folder), "name": "run", "steps": 2, "slots": 2, **QUIET, **run}
    sim = {"use": "fake", "num_envs": 5, **(sim or {})}
    return rlvla.build(sim=sim, model=model, algo=algo, eval=eval, run=options, listeners=listeners)


def weights(folder):
    return load_file(checkpoint.find(folder) / "model" / "model.safetensors")


# ---- the same run, cut differently -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [PPO, GRPO], ids=["windows", "groups"])
@pytest.mark.parametrize("cut", [{"slots": 1}, {"slots": 5}, {"sim_in_process": True}], ids=str)
def test_slots_and_processes_do_not_change_a_deterministic_run(tmp_path, algo, cut):
    for name, options in (("one", {}), ("other", cut)):
        with build(tmp_path, algo, name=name, deterministic=True, **options) as run:
            run.train()
    one, other = weights(tmp_path / "one"), weights(tmp_path / "other")
    for name in one:
        assert one[name].tobytes() == other[name].tobytes()


@pytest.mark.parametrize("in_process", [True, False])
def test_tasks_are_prepared_before_rows_change_to_them_which_changes_nothing(tmp_path, monkeypatch, in_process):
    heard = []
    reset = FakeSimulator.reset

    def resetting(self, rows, seeds, starts):
        heard.append(("reset", {start.task for start in starts}))
        return reset(self, rows, seeds, starts)

    monkeypatch.setattr(FakeSimulator, "reset", resetting)
    monkeypatch.setattr(FakeSimulator, "prepare", lambda self, tasks: heard.append(("prepare", set(tasks))))
    for name, builds in (("prepared", True), ("not", False)):
        one_row = {"sim": {"num_envs": 1}, "slots": 1, "steps": 8}
        with build(tmp_path, name=name, deterministic=True, sim_in_process=in_process, **one_row) as run:
            run._started().graph.feed._builds_tasks = builds
            run.train()
    one, other = weights(tmp_path / "prepared"), weights(tmp_path / "not")
    assert all(one[key].tobytes() == other[key].tobytes() for key in one)
    if in_process:
        told = [number for number, (kind, _) in enumerate(heard[:-1]) if kind == "prepare"]
        assert len(told) > 2
        assert all(heard[number + 1] == ("reset", heard[number][1]) for number in told)


def test_seeds_change_a_run(tmp_path):
    for seed in (0, 1):
        with build(tmp_path, name=str(seed), seed=seed) as run:
            run.train()
    assert any(
        (weights(tmp_path / "0")[name] != weights(tmp_path / "1")[name]).any() for name in weights(tmp_path / "0")
    )


@pytest.mark.parametrize("algo", [PPO, GRPO], ids=["windows", "groups"])
def test_micro_batches_change_nothing_but_memory(tmp_path, algo):
    for name, size in (("whole", None), ("parts", 3)):
        config = {"micro_batch": size, "learning_rate": 1e-2}
        sim = {"use": "fake", "num_envs": 5}
        options = {"directory": str(tmp_path), "name": name, "steps": 2, "deterministic": True, **QUIET}
        with rlvla.build(sim=sim, model="fake", algo=algo, train=config, run=options) as run:
            run.train()
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7)


# ---- episodes --------------------------------------------------------------------------------------------------------


def test_every_done_is_followed_by_one_reset_and_nothing_else(tmp_path):
    """#74, #107: resets per finished episode exactly one, and only of the row that ended."""
    from rlvla.testing.fakes.simulator import FakeSimulator

    resets, ends = [], []
    original_reset, original_step = FakeSimulator.reset, FakeSimulator.step

    def reset(self, rows, seeds, starts):
        resets.extend((id(self), row) for row in rows)
        return original_reset(self, rows, seeds, starts)

    def step(self, chunk, active):
        result = original_step(self, chunk, active)
        ends.extend((id(self), int(row)) for row in np.flatnonzero((result.terminated | result.truncated).any(1)))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeSimulator, "reset", reset)
        patch.setattr(FakeSimulator, "step", step)
        with build(tmp_path, sim_in_process=True, steps=6) as run:
            run.train()
    assert len(ends) > 10
    live = 5
    assert len(ends) <= len(resets) <= len(ends) + live
    for row in set(ends):
        assert resets.count(row) in (ends.count(row), ends.count(row) + 1)


def test_first_observations_are_distinct_but_in_a_group(tmp_path):
    """#129: 16 environments over 4 workers show 16 scenes; rollouts of a group show one."""
    for algo, distinct in (
        ({"use": "ppo", "window": 1, "minibatch_size": None}, 16),
        ({"use": "grpo", "group_size": 8, "groups_per_step": 2}, 2),
    ):
        starts = []

        class Feed:
            pass

        with build(tmp_path, algo, sim={"num_envs": 16}, slots=4, name=algo["use"], steps=1) as run:
            feed = run._started().graph.feed
            feed.open(run.specs.units_per_step)
            for row in range(16):
                work = feed.take(row)
                starts.append(work.episode or feed.next_episode(row))
        assert len(set(starts)) == distinct


def test_a_reward_that_is_not_a_number_ends_the_run_with_a_checkpoint(tmp_path):
    with build(tmp_path, sim={"fault": "nan", "fault_step": 4}, steps=5) as run:
        directory = run.directory
        with pytest.raises(
            SimulatorError, match=r"slot \d, rows \[0.*got a reward that is not finite.*look at the simulator"
        ):
            run.train()
    assert checkpoint.steps(directory)


# ---- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation_does_not_depend_on_the_number_of_environments(tmp_path):
    """#117, #118, #119: the same episodes and, for a deterministic policy, the same results."""
    found = []
    with build(tmp_path, sim={"initial_states": 3}) as run:
        for num_envs in (1, 2, 5, 7):
            results = run.evaluate(episodes=7, num_envs=num_envs)
            found.append([(one.task, one.state, one.seed, one.success, one.steps) for one in results.episodes])
    assert all(one == found[0] for one in found)
    assert [one[:2] for one in found[0]] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 0)]
    assert len({one[2] for one in found[0]}) == 7


def test_evaluation_episodes_are_held_out(tmp_path):
    """No seed of the evaluation is one of training, nor of another evaluation seed."""
    with build(tmp_path) as run:
        spec, config = run.specs.sim, run.config.eval
        evaluated = {seed for seed, _ in episodes_of(config, spec)}
        feed = run._started().graph.feed
        feed.open(5)
        trained = {feed.next_episode(row)[0] for row in range(5) for _ in range(200)}
    assert len(evaluated) == config.episodes
    assert not evaluated & trained


def test_evaluation_leaves_training_as_it_was(tmp_path):
    for name, every in (("without", 0), ("with", 1)):
        with build(tmp_path, name=name, steps=3, deterministic=True, eval={"every": every, "episodes": 3}) as run:
            run.train()
    one, other = weights(tmp_path / "without"), weights(tmp_path / "with")
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_what_is_saved_acts_as_what_was_trained(tmp_path):
    """#54: evaluated in memory and from disk in another engine, the same results."""
    with build(tmp_path, steps=3) as run:
        run.train()
        inside = run.evaluate(episodes=6)
    from rlvla.run import evaluate

    outside = evaluate(tmp_path / "run", eval={"episodes": 6}, run={"without": ["display", "tensorboard"]})
    assert inside.episodes == outside.episodes
    stored = json.loads((tmp_path / "run" / "evaluations" / "step_000003.json").read_text())
    assert stored["success"] == outside.success
    assert stored["protocol"]["seed"] == 1_000_000
    assert stored["policy_version"] == 3


def test_videos_hold_every_step_and_are_listed(tmp_path):
    """#29: as many frames as executed actions, and the first picture."""
    with build(tmp_path) as run:
        results = run.evaluate(episodes=2, videos=1, videos_of="first")
    one = results.episodes[0]
    assert results.episodes[1].video is None
    assert len(read_video(one.video)) == one.steps + 1


def test_wilson_interval():
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)  # Newcombe 1998, method 3
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_hanging_worker_is_a_stall_that_names_who_waits(tmp_path):
    with build(tmp_path, sim={"fault": "hang", "fault_step": 4}, steps=5) as run:
        engine = run._started()
        engine._watch.min_stall_s = 0.5
        with pytest.raises(StallError, match=r"'simulate' has waited") as caught:
            run.train()
    assert "thread sim-" in str(caught.value)
    assert checkpoint.steps(tmp_path / "run")


def test_a_worker_that_hangs_at_its_start_is_a_stall_after_the_seconds_of_a_first_call(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvla.engine.Watch", partial(Watch, min_stall_s=0.5))
    waited = pytest.raises(StallError, match=r"'start' has waited [3-9] s for sim-\d")
    with build(tmp_path, sim={"fault": "hang_start"}, first_call_s=3) as run, waited:
        run.train()


def test_a_worker_that_hangs_in_an_evaluation_is_a_stall_too(tmp_path):
    with build(tmp_path, sim={"fault": "hang", "fault_step": 4}) as run:
        run._started(simulators=False)._watch.min_stall_s = 0.5
        with pytest.raises(StallError, match=r"'evaluation: simulate' has waited .* for eval-\d"):
            run.evaluate(episodes=10, num_envs=5)


@pytest.mark.parametrize(("saves", "options"), [(1, {}), (2, {"save_every": 1})], ids=["last", "periodic"])
def test_a_trainer_that_hangs_in_a_save_is_a_stall_that_names_it(tmp_path, monkeypatch, saves, options):
    save, save_after, released, begun = TrainerActor.save, Engine._save_after, threading.Event(), []

    def hanging(self, folder):
        begun.append(folder)
        assert len(begun) != saves or released.wait(60), "nobody noticed"
        return save(self, folder)

    def releasing(self, error):
        released.set()
        return save_after(self, error)

    monkeypatch.setattr(TrainerActor, "save", hanging)
    monkeypatch.setattr(Engine, "_save_after", releasing)
    with build(tmp_path, steps=4, **options) as run:
        watch = run._started()._watch
        watch.min_stall_s, watch.first_call_s = 1.0, 4.0
        with pytest.raises(StallError, match=r"'save' has waited .* for trainer"):
            run.train()
        assert checkpoint.steps(run.directory), "nothing was saved"


def test_two_runs_do_not_share_a_folder(tmp_path):
    with build(tmp_path) as one, build(tmp_path) as other:
        one._started()
        with pytest.raises(ConfigError, match="another process trains in"):
            other.train()


def test_a_script_that_forgets_to_close_ends_quietly(tmp_path):
    code = f"""
import rlvla
run = rlvla.build(sim={{"use": "fake", "num_envs": 2}}, model="fake", algo={{"use": "ppo", "window": 2}},
                  run={{"directory": {str(tmp_path)!r}, "steps": 1, "slots": 1, "device": "cpu", "without": ["display", "tensorboard"]}})
run.train()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_listener_that_exits_is_a_listener_that_failed(tmp_path):
    class Exits:
        @rlvla.hookimpl
        def on_step(self):
            raise SystemExit(3)

    with build(tmp_path, strict_listeners=False, listeners=[Exits]) as run:
        run.train()
    assert checkpoint.steps(tmp_path / "run") == [2]


def test_stop_from_another_thread_saves(tmp_path):
    class Stops(Recorder):
        @rlvla.hookimpl
        def on_step(self, step, metrics):
            super().on_step(step, metrics)
            if step == 2:
                threading.Thread(target=run.stop).start()

    heard = Stops()
    with build(tmp_path, steps=10_000, listeners=[heard]) as run:
        run.train()
    assert checkpoint.steps(tmp_path / "run")[-1] == heard.steps[-1]


def test_no_thread_is_left(tmp_path):
    before = set(threading.enumerate())
    with build(tmp_path) as run:
        run.train()
    left = [one for one in set(threading.enumerate()) - before if not one.daemon]
    for one in left:
        one.join(30)
    assert not [one.name for one in left if one.is_alive()]


def test_a_closed_run_says_so(tmp_path):
    run = build(tmp_path)
    run.close()
    run.close()
    with pytest.raises(ConfigError, match="this run is closed"):
        run.train()


def test_repr_says_what_it_is(tmp_path):
    text = repr(build(tmp_path))
    for word in ("fake", "ppo", "sync", "5 in 2 slots", "rlvla-algo-ppo"):
        assert word in text


def test_plan_changes_nothing(tmp_path):
    for name, planned in (("without", False), ("with", True)):
        with build(tmp_path, name=name, deterministic=True) as run:
            if planned:
                text = run.plan()
                assert "s a step" in text
                assert "GiB" in text
            run.train()
    one, other = weights(tmp_path / "without"), weights(tmp_path / "with")
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


# ---- wrong settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": {"slots": 9}}, r"run\.slots: got 9, wanted at most sim\.num_envs \(5\)"),
        ({"eval": {"tasks": []}}, r"eval\.tasks: empty"),
        ({"run": {"name": "../elsewhere"}}, r"run\.name: got '\.\./elsewhere'"),
        ({"sim": {"use": "fake", "num_envs": True}}, r"sim\.num_envs: got True, wanted"),
        ({"eval": {"tasks": [0, 2]}}, r"eval\.tasks: got \[2\], wanted numbers below 2"),
        ({"model": {"use": "tiny", "cameras": ["secondary"]}}, r"offers primary, wrist: add secondary"),
        ({"algo": {"use": "grpo", "group_size": 1}}, r"algo\.group_size: got 1, wanted greater than or equal to 2"),
        ({"algo": {"use": "ppo", "credit_level": "action", "ratio_level": "chunk"}}, r"credit"),
    ],
)
def test_settings_that_cannot_work_die_early(tmp_path, changes, words):
    source = {"sim": {"use": "fake", "num_envs": 5}, "model": "fake", "algo": PPO, "run": {"directory": str(tmp_path)}}
    with pytest.raises(ConfigError, match=words):
        rlvla.build(**{**source, **changes})


def test_all_that_does_not_fit_is_said_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        rlvla.build(
            sim={"use": "fake", "num_envs": 2},
            model={"use": "tiny", "cameras": ["secondary"]},
            algo={"use": "ppo", "window": 1},
            eval={"tasks": [7]},
            run={"slots": 3, "directory": str(tmp_path)},
        )
    assert len(caught.value.problems) == 3
