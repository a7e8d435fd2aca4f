"""Schedulers on real actors: the same bits where they promise them, and nothing lost where they overlap."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import rlvla
from rlvla import checkpoint
from rlvla.errors import ConfigError
from rlvla.testing.scheduler import Recorder

PPO = {"use": "ppo", "window": 3, "windows_per_step": 7, "minibatch_size": 8, "passes": 2}
FIXED = {**PPO, "partial_reset": False}
GRPO = {"use": "grpo", "group_size": 3, "groups_per_step": 2}
REFILLED = {**GRPO, "filter": "refill", "success_low": 0.1, "success_high": 0.9}
ON_POLICY = {
    "sync": "sync",
    "async-rollout": "async-rollout",
    "full-async-0": {"use": "full-async", "max_staleness": 0},
    "hybrid": "hybrid",
}
TIMED = ("time", "env_steps_per_second", "rollout/generator_batch", "workers", "memory", "histograms")


def build(folder, name, scheduler, algo, sim="fake", listeners=(), train=None, eval=None, **run):
    options = {"directory": str(folder), "name": name, "steps": 3, "slots": 3, "threads": 1, "device": "cpu"}
    quiet = {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "save_every": 0}
    model = "fake" if sim == "fake" else "tiny"
    options["sim_in_process"] = sim == "fake"  # tabletop has workers: an OpenGL context belongs to one thread
    return rlvla.build(
        sim={"use": sim, "num_envs": 5},
        model=model,
        algo=algo,
        scheduler=scheduler,
        train={"learning_rate": 1e-2, **(train or {})},
        eval=eval,
        run={**options, **quiet, **run},
        listeners=listeners,
    )


def numbers(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/learning_rate" in line]
    return [{name: value for name, value in one.items() if not name.startswith(TIMED)} for one in steps]


def weights(folder: Path) -> dict[str, bytes]:
    found = load_file(checkpoint.find(folder) / "model" / "model.safetensors")
    return {name: one.tobytes() for name, one in found.items()}


@pytest.mark.parametrize(
    ("algo", "sim"),
    [
        pytest.param(PPO, "fake", id="windows-fake"),
        pytest.param(FIXED, "fake", id="fixed-length-fake"),
        pytest.param(GRPO, "fake", id="groups-fake"),
        pytest.param(REFILLED, "fake", id="filtered-fake"),
        pytest.param(PPO, "tabletop", id="windows-tabletop"),
        pytest.param(REFILLED, "tabletop", id="filtered-tabletop"),
        # whole episodes and unfiltered groups: what tells the simulators apart is in the two above
        pytest.param(FIXED, "tabletop", id="fixed-length-tabletop", marks=pytest.mark.e2e),
        pytest.param(GRPO, "tabletop", id="groups-tabletop", marks=pytest.mark.e2e),
    ],
)
def test_on_policy_schedulers_give_the_same_bits(tmp_path, algo, sim):
    """Weights, and every metric but times, whatever the number of slots."""
    slots = {"sync": (2,), "async-rollout": (5, 3), "full-async-0": (4,), "hybrid": (4,)}
    steps = 3 if sim == "fake" else 2  # weights are published, and played with, after the first
    wanted = None
    for name, scheduler in ON_POLICY.items():
        for count in slots[name]:
            with build(
                tmp_path,
                f"{name}-{count}",
                scheduler,
                algo,
                sim,
                slots=count,
                steps=steps,
                deterministic=True,
            ) as run:
                run.train()
            found = weights(run.directory), numbers(run.directory)
            wanted = wanted or found
            assert found[1] == wanted[1], f"{name} with {count} slots: other metrics"
            assert found[0] == wanted[0], f"{name} with {count} slots: other weights"


class Units:
    """Listens to which units were trained on."""

    def __init__(self, run):
        self.tickets = []
        trainer = run._started().trainer.actor
        train = trainer.train

        def wrapped(tickets, step):
            self.tickets.append(list(tickets))
            return train(tickets, step)

        trainer.train = wrapped

    def flat(self):
        return [ticket for one in self.tickets for ticket in one]


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("algo", [PPO, FIXED, GRPO], ids=["windows", "fixed-length", "groups"])
def test_staleness_is_used_and_bounded_and_no_unit_is_lost(tmp_path, algo, staleness):
    heard = Recorder()
    scheduler = {"use": "full-async", "max_staleness": staleness}
    algo = {**algo, "max_staleness": staleness}
    with build(tmp_path, "run", scheduler, algo, listeners=[heard], steps=8) as run:
        units = Units(run)
        run.train()
        state = json.loads((checkpoint.find(run.directory) / "state.json").read_text())
    lags = [one["train/staleness_max"] for one in heard.metrics]
    assert max(lags) == staleness
    assert units.flat() == list(range(8 * run.specs.units_per_step))
    assert state["graph"]["outstanding"] == []


def test_staleness_beyond_the_algorithms_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="trains on units up to 2 versions old, ppo takes 1 at most"):
        build(tmp_path, "run", {"use": "full-async", "max_staleness": 2}, PPO)
    with pytest.raises(ConfigError, match=r"scheduler\.max_staleness: got -1"):
        build(tmp_path, "run", {"use": "full-async", "max_staleness": -1}, PPO)
    with pytest.raises(ConfigError, match=r"run\.batch_rows: got 6, wanted at most sim\.num_envs \(5\)"):
        build(tmp_path, "run", "sync", PPO, batch_rows=6)


@pytest.mark.parametrize(
    ("sim", "scheduler", "run", "says", "fitted"),
    [
        ({}, "sync", {"slots": 9}, "run.slots: 5 (changes speed)", {"slots": 5}),
        ({}, "sync", {"slots": 3, "batch_rows": 6}, "run.batch_rows: 5 (changes speed)", {"batch_rows": 5}),
        ({}, {"use": "hybrid", "stages": 6}, {"slots": None}, "scheduler.stages: 5 (changes speed)", {"scheduler": 5}),
        ({}, {"use": "hybrid", "stages": 3}, {"slots": 2}, "run.slots: 3 (changes speed)", {"slots": 3}),
        (
            {"batched": True},
            "hybrid",
            {"device": "auto"},
            "scheduler.use: async-rollout",
            {"scheduler": "async-rollout"},
        ),
    ],
)
def test_what_does_not_fit_says_what_would(tmp_path, monkeypatch, sim, scheduler, run, says, fitted):
    monkeypatch.setattr("rlvla.checks.visible_gpus", lambda: 1)
    choice = {"sim": {"use": "fake", "num_envs": 5, **sim}, "model": "fake", "algo": PPO, "scheduler": scheduler}
    options = {"directory": str(tmp_path), "device": "cpu", **run}
    with pytest.raises(ConfigError) as caught:
        rlvla.build(**choice, run=options)
    assert says in str(caught.value)
    made = rlvla.build(**choice, run=options, fit=True).config
    for name, value in fitted.items():
        if name == "scheduler":
            assert value in (made.scheduler.name, getattr(made.scheduler.config, "stages", None))
        else:
            assert getattr(made.run, name) == value


def test_what_no_size_mends_stays_an_error(tmp_path):
    with pytest.raises(ConfigError, match="lower the scheduler's staleness") as caught:
        rlvla.build(
            sim={"use": "fake", "num_envs": 5},
            model="fake",
            algo=PPO,
            scheduler={"use": "full-async", "max_staleness": 2},
            run={"slots": 9},
            fit=True,
        )
    assert "run.slots" not in str(caught.value)


def test_a_scheduler_that_overlaps_gets_slots_to_overlap(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlvla.checks.usable_cores", lambda: 2)
        counts = {
            name: len(build(tmp_path, name, name, PPO, slots=None).specs.slots) for name in ("sync", "full-async")
        }
    assert counts == {"sync": 2, "full-async": 4}


@pytest.mark.parametrize("algo", [PPO, GRPO], ids=["windows", "groups"])
@pytest.mark.parametrize("stop", [2, 3])
def test_a_resumed_run_plays_open_units_again_and_counts_them(tmp_path, algo, stop):
    class Stopper:
        @rlvla.hookimpl
        def on_step(self, step):
            if step == stop:
                run.stop()

    with build(tmp_path, "run", "full-async", algo, listeners=[Stopper()], steps=9) as run:
        before = Units(run)
        run.train()
        state = json.loads((checkpoint.find(run.directory) / "state.json").read_text())["graph"]
    units = run.specs.units_per_step
    assert state["steps_done"] == len(before.tickets) == stop
    trained = before.flat()
    assert sorted([*trained, *state["outstanding"]]) == list(range(state["feed"]["next_ticket"]))
    heard = Recorder()
    with rlvla.resume(run.directory, {"run": {"steps": 6}}, listeners=[heard]) as again:
        after = Units(again)
        again.train()
    assert trained + after.flat() == list(range(6 * units))
    assert heard.steps == list(range(stop + 1, 7))
    assert sum(one["rollout/units_lost"] for one in heard.metrics) == state["begun"]
    assert max(one["train/staleness_max"] for one in heard.metrics) <= 1


def test_a_run_goes_on_in_the_same_process(tmp_path):
    heard = Recorder()
    with build(tmp_path, "run", "full-async", PPO, listeners=[heard]) as run:
        units = Units(run)
        run.train(steps=2)
        run.evaluate(episodes=2)
        run.train(steps=5)
    assert heard.steps == [1, 2, 3, 4, 5]
    assert units.flat() == list(range(35))


def test_evaluation_and_checkpoints_under_way(tmp_path):
    """Rollouts pause; what is evaluated is the version just trained, and the run goes on with the weights as trained."""

    class Listener(Recorder):
        def __init__(self):
            super().__init__()
            self.evaluated = []

        @rlvla.hookimpl
        def on_evaluation(self, step, results):
            self.evaluated.append((step, results.policy_version, len(results.episodes)))

    heard = Listener()
    with build(
        tmp_path,
        "run",
        "full-async",
        PPO,
        listeners=[heard],
        train={"ema_decay": 0.9},
        eval={"every": 2, "episodes": 4, "weights": "ema"},
        steps=6,
        save_every=3,
        sim_in_process=False,
        keep_last=9,
    ) as run:
        units = Units(run)
        run.train()
    assert heard.evaluated == [(step, step, 4) for step in (2, 4, 6)]
    assert set(checkpoint.steps(run.directory)) >= {3, 6}
    assert units.flat() == list(range(6 * 7))
    assert max(one["train/staleness_max"] for one in heard.metrics) <= 1
    with rlvla.resume(run.directory / "checkpoints" / "step_000003", {"run": {"steps": 4}}) as again:
        units = Units(again)
        again.train()
    assert units.flat() == list(range(21, 28))


def test_metrics_are_of_what_was_played_while_others_trained(tmp_path):
    """Env steps and episodes of the steps add up to the run's, evaluations in between or not."""
    heard = Recorder()
    with build(tmp_path, "run", "full-async", PPO, listeners=[heard], eval={"every": 2, "episodes": 2}, steps=6) as run:
        run.train()
        meter = run._engine.graph.meter
        assert heard.metrics[-1]["env_steps"] == meter.env_steps
        assert sum(one["rollout/episodes"] for one in heard.metrics) == meter.episodes
