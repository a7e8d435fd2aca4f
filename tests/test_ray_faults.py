"""What dies, hangs or is interrupted under Ray: who is replaced, who ends the run, and that nothing is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from ray_runs import MARKS, SHARED, WHOLE, Killer, build, left

import rlvla
from rlvla import checkpoint, trainers
from rlvla.errors import SimulatorError, WorkerDied

pytestmark = MARKS


def test_a_dead_evaluator_is_replaced(tmp_path, ray):
    killer = Killer(lambda engine: engine._second_generator, after=2)
    options = {"evaluation": {"every": 1, "episodes": 3, "num_envs": 2}, "deterministic": True}
    with build(tmp_path, "local", "local", **options) as run:
        run.train()
    with build(tmp_path, "ray", "ray", listeners=[killer], train={"offload": "all"}, **options) as run:
        killer.train(run)
    assert left(tmp_path / "ray") == left(tmp_path / "local")
    found = [sorted((tmp_path / one / "evaluations").iterdir()) for one in ("local", "ray")]
    for local, other in zip(*found, strict=True):
        assert json.loads(local.read_text())["episodes"] == json.loads(other.read_text())["episodes"]
    assert len(found[1]) == 3


def test_a_dead_worker_and_then_a_dead_host_of_simulators_are_replaced(tmp_path, ray):
    killer = Killer(lambda engine: engine._slots[1].actor)
    fault = {"fault": "die", "fault_step": 2, "fault_file": str(tmp_path / "done")}
    with build(tmp_path, "run", "ray", scheduler="full-async", sim=fault, listeners=[killer], sim_hosts=2) as run:
        killer.train(run)
    first, *later = killer.metrics
    assert len(later) == 2
    assert first["workers/restarts"] == 1 and first["rollout/units_lost"] > 0
    assert sum(one["workers/restarts"] for one in later) == 1
    assert sum(one["rollout/units_lost"] for one in later) > 0


def test_a_dead_trainer_ends_the_run_and_leaves_the_checkpoint_before(tmp_path, ray):
    killer = Killer(lambda engine: engine.trainer, after=2)
    with (
        build(tmp_path, "run", "ray", listeners=[killer], save_every=1) as run,
        pytest.raises(WorkerDied, match="trainer: its Ray worker ended"),
    ):
        killer.train(run)
    assert checkpoint.read_state(checkpoint.find(run.directory))["graph"]["steps_done"] == 1
    with rlvla.resume(run.directory, {"run": {"runtime": "local"}}) as run:
        run.train(2)


def test_a_failing_simulator_ends_the_run_in_its_own_words(tmp_path, ray):
    with build(tmp_path, "run", "ray", sim={"fault": "raise", "fault_step": 4}) as run:
        with pytest.raises(SimulatorError, match=r"sim-\d.*told to raise"):
            run.train()
        assert list((run.directory / "checkpoints").glob("step_*/state.json")), "nothing was saved"


def test_weights_are_broadcast_and_go_through_the_store_once_a_generator_died(tmp_path, ray, caplog):
    killer = Killer(lambda engine: engine.generators[0], after=2)
    more = {"devices": 2, "placement": "disaggregated", "transport": "broadcast", "steps": 4}
    with build(tmp_path, "run", "ray", scheduler="full-async", listeners=[killer], **more) as run:
        killer.train(run)
        assert run._engine.graph.transport == "store"
    assert [one["policy_version"] for one in killer.metrics] == [1, 2, 3, 4]
    assert sum(one["workers/restarts"] for one in killer.metrics) == 1
    assert killer.metrics[-1]["train/staleness_max"] <= 1
    # Whoever notices first says so: the trainer, the other generator, or the one that took the dead one's place.
    assert caplog.text.count("from now on weights go through the object store") == 1
    reasons = "weights could not be sent", "weights did not come", "no way to receive weights by broadcast"
    assert any(reason in caplog.text for reason in reasons)


@pytest.mark.e2e
def test_a_rank_that_hangs_is_named(tmp_path, ray, monkeypatch):
    """The other one waits for it in a collective, where nobody hears anything."""
    import ray as library

    monkeypatch.setattr(trainers, "BEAT_S", 1.0)
    monkeypatch.setattr(trainers, "SILENT_S", 3.0)

    class Stopper(Killer):
        @rlvla.hookimpl
        def on_step(self, step):
            if step == 1:
                self.killed = time.monotonic()
                os.kill(library.get(self.whose(self.run._engine)._place.host.ping.remote()), signal.SIGSTOP)

    stopper = Stopper(lambda engine: engine.trainer.ranks[1])
    more = {"devices": 2, "placement": SHARED}
    with (
        build(tmp_path, "run", "ray", WHOLE, listeners=[stopper], **more) as run,
        pytest.raises(WorkerDied, match=r"trainer-1: its process has not answered for 3 s in '\w+'; the other"),
    ):
        stopper.train(run)
    assert time.monotonic() - stopper.killed < 100, "a collective's own limit is hours"


SCRIPT = """
import signal
import rlvla
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
algo = {"use": "ppo", "window": 3, "windows_per_step": 5, "minibatch_size": None}
options = {"runtime": "ray", "devices": 2, "device": "cpu", "steps": 100000, "directory": %r, "name": "run", "threads": 1}
options |= {"without": ["display", "tensorboard", "report"], "save_every": 1, "slots": 2}
with rlvla.build(sim={"use": "fake", "num_envs": 5}, model="fake", algo=algo, scheduler="full-async", run=options) as run:
    run.train()
"""


def marked(mark: str) -> list[int]:
    """Return the processes that a marked one left behind, whatever became of their parents."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


def names_of(processes: list[int]) -> list[str]:
    """Return their command lines; of one that has ended an empty one."""
    found = []
    for number in processes:
        with contextlib.suppress(OSError):
            found.append((Path("/proc") / str(number) / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_nothing_is_left_of_a_run_that_was_interrupted(tmp_path, how):
    """#87: neither workers nor Ray; and it saved."""
    mark = f"RLVLA_TEST_MARK_{uuid.uuid4().hex}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {mark: "1"}
    child = subprocess.Popen([sys.executable, "-c", SCRIPT % str(tmp_path)], env=environment)
    try:
        deadline = time.monotonic() + 300
        while len(checkpoint.steps(tmp_path / "run")) < 2:
            assert time.monotonic() < deadline, "two steps were not saved"
            assert child.poll() is None
            time.sleep(0.2)
        assert len(marked(mark)) > 6, "the driver, Ray and its workers"
        child.send_signal(how)
        child.wait(180)
    finally:
        child.kill()
        child.wait()
    deadline = time.monotonic() + 60
    while left_over := marked(mark):
        assert time.monotonic() < deadline, f"left: {names_of(left_over)}"
        time.sleep(0.5)
    assert checkpoint.read_state(checkpoint.find(tmp_path / "run"))["graph"]["steps_done"] >= 2


@pytest.mark.e2e
def test_sigterm_ends_a_run_that_still_starts(tmp_path):
    """Ray's own handler would end the process without a word. (Ray's agents notice by themselves, up to a minute later.)"""
    mark = f"RLVLA_TEST_MARK_{uuid.uuid4().hex}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {mark: "1"}
    words = [
        "train",
        "--sim",
        "fake",
        "--model",
        "fake",
        "--algo",
        "ppo",
        "--scheduler",
        "sync",
        "--run.runtime",
        "ray",
    ]
    words += ["--run.device", "cpu", "--run.directory", str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-m", "rlvla", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 200
        while not any(name.startswith("ray::") for name in names_of(marked(mark))):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        said = child.communicate(timeout=200)[1]
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, said
    assert "rlvla: interrupted; there is no checkpoint yet: start it again" in said
