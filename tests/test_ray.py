"""The Ray runtime: the same bits as the local one, receipts alone in the controller, faults as everywhere."""

import asyncio
import contextlib
import dataclasses
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

import rlvla
from rlvla import checkpoint, configs, state_files, trainers, versions
from rlvla.assembly import Entry
from rlvla.configs import Choice
from rlvla.errors import ConfigError, SimulatorError, WorkerDied
from rlvla.plugin import find
from rlvla.receipts import TrainReceipt
from rlvla.runtimes import cluster
from rlvla.runtimes.local import LocalHandle
from rlvla.testing.scheduler import Recorder
from rlvla.tracing import read

pytestmark = [
    pytest.mark.timeout(600),
    # Ray's own: it forks with threads, and leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]
PPO = {"use": "ppo", "window": 3, "windows_per_step": 7, "minibatch_size": 8, "passes": 2}
GRPO = {"use": "grpo", "group_size": 3, "groups_per_step": 2}


@pytest.fixture(scope="module")
def ray():
    """One Ray for all runs of this file: each would start its own."""
    from rlvla.runtimes.ray import RayRuntime

    runtime = RayRuntime()
    yield runtime
    runtime.close()


def build(
    folder, name, runtime, algo=PPO, scheduler="sync", sim=None, listeners=(), evaluation=None, train=None, **run
):
    quiet = {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "save_every": 0}
    options = {"directory": str(folder), "name": name, "steps": 3, "slots": 2, "threads": 1, "device": "cpu"}
    sim = {"use": "fake", "num_envs": 5, **(sim or {})}
    return rlvla.build(
        sim=sim,
        model="fake" if sim["use"] == "fake" else "tiny",
        algo=algo,
        scheduler=scheduler,
        train={"learning_rate": 1e-2, **(train or {})},
        eval=evaluation,
        run={**options, **quiet, "runtime": runtime, **run},
        listeners=listeners,
    )


def left(folder: Path):
    """Return weights and metrics without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train/learning_rate" in line]
    timed = ("time", "env_steps_per_second", "rollout/generator_batch", "workers", "memory", "histograms")
    numbers = [{name: value for name, value in one.items() if not name.startswith(timed)} for one in lines]
    found = load_file(checkpoint.find(folder) / "model" / "model.safetensors")
    return {name: one.tobytes() for name, one in found.items()}, numbers


class Killer:
    """Ends the Ray worker of an actor after a training step, before its checkpoint."""

    def __init__(self, whose, after=1):
        self.whose, self.after, self.run, self.metrics = whose, after, None, []

    @rlvla.hookimpl
    def on_step(self, step, metrics):
        import ray

        self.metrics.append(metrics)
        if step == self.after:
            self.killed = time.monotonic()
            ray.kill(self.whose(self.run._engine)._place.host)

    def train(self, run):
        self.run = run
        run.train()


@pytest.fixture(scope="module")
def windows(ray, tmp_path_factory):
    """Return the folder of a local run and one under Ray of two generators and hosts, what each found, and when and what the
    second told: one of its generators died."""
    folder, found = tmp_path_factory.mktemp("windows"), {}
    killer = Killer(lambda engine: engine.generators[1])
    several = {"generators": 2, "sim_hosts": 2, "listeners": [killer]}
    for runtime, more in (("local", {}), ("ray", several)):
        began = time.time_ns()
        with build(folder, runtime, runtime, scheduler="async-rollout", deterministic=True, **more) as run:
            killer.train(run) if runtime == "ray" else run.train()
            ended = time.time_ns()
            success = run.evaluate(episodes=4).success
        found[runtime] = (*left(run.directory), success)
    return folder, found, (began, ended), killer.metrics


def test_several_generators_and_hosts_give_the_bits_of_the_local_runtime_also_when_one_generator_dies(windows):
    _, found, _, metrics = windows
    assert found["ray"] == found["local"]
    assert sum(one["workers/restarts"] for one in metrics) == 1


def test_actors_elsewhere_time_themselves_on_the_same_clock(windows):
    """Spans of Ray workers lie within the run, in order, and bounds follow from them."""
    folder, _, (began, ended), metrics = windows
    spans = [span for span in read(folder / "ray") if span.began_ns < ended]
    assert {span.actor for span in spans} >= {"trainer", "generator-0", "generator-1", "sim-0", "sim-1"}
    assert all(began - 1e6 <= span.began_ns <= span.ended_ns <= ended + 1e6 for span in spans)
    for actor in ("trainer", "generator-0", "generator-1", "sim-0"):
        mine = sorted((span.began_ns, span.ended_ns) for span in spans if span.actor == actor)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(mine)), actor
    assert 0 < metrics[-1]["time/run_overlap_efficiency"] <= 1
    assert metrics[-1]["memory/workers_peak_gib"] > 0.01
    assert "time/busy_cores" not in metrics[-1]


@pytest.mark.parametrize(
    ("algo", "scheduler", "sim"),
    [
        (GRPO, {"use": "full-async", "max_staleness": 0}, {"batched": True}),
        pytest.param(PPO, "hybrid", {"use": "tabletop"}, marks=pytest.mark.e2e),
        pytest.param(GRPO, "sync", {"use": "tabletop"}, marks=pytest.mark.e2e),
    ],
    ids=["groups", "tabletop-windows", "tabletop-groups"],
)
def test_it_does_so_with_other_units_and_simulators(tmp_path, ray, algo, scheduler, sim):
    found = {}
    for runtime in ("local", "ray"):
        with build(tmp_path, runtime, runtime, algo, scheduler, sim, deterministic=True) as run:
            run.train()
            success = run.evaluate(episodes=4).success
        found[runtime] = (*left(run.directory), success)
    assert found["ray"] == found["local"]


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


def test_the_controller_sees_no_pictures(tmp_path, monkeypatch):
    """What calls return to it has the same size whatever the size of the pictures."""
    seen = {}
    call = LocalHandle.call

    async def counted(self, method, *arguments, returns=0):
        receipt, *payloads = await call(self, method, *arguments, returns=returns)
        if method not in ("save", "load"):  # checkpoints are rare
            seen[size] = seen.get(size, 0) + len(pickle.dumps(receipt))
        return [receipt, *payloads]

    monkeypatch.setattr(LocalHandle, "call", counted)
    for size in (16, 64):
        sim = {"use": "tabletop", "image_size": size}
        with build(tmp_path, str(size), "local", sim=sim, steps=1, deterministic=True) as run:
            run.train()
    assert seen[64] == pytest.approx(seen[16], rel=0.02)  # numbers have more or fewer digits


SHARED = {"simulator": "0", "generator": "0", "trainer": "all"}
"""Two ranks, one in a process with the generator."""
WHOLE = {**PPO, "windows_per_step": 5, "minibatch_size": None}


def state(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Return weights and the optimizer's state of a checkpoint, however many ranks wrote it."""
    place = checkpoint.path_of(folder, step)
    weights = load_tensors(place / "model" / "model.safetensors")

    def like(name: str) -> torch.Tensor:
        parameter, _, what = name.rpartition("/")
        return torch.zeros(()) if what == "step" else torch.zeros_like(weights[parameter])

    return weights | state_files.read(place, like)


def near(one: Path, other: Path, step: int, relative: float = 1e-5) -> None:
    mine, theirs = state(one, step), state(other, step)
    assert sorted(mine) == sorted(theirs)
    for name, wanted in mine.items():
        # moments of a bias that softmax takes away are nothing but rounding, of 1e-10
        apart = 1e-9 + relative * float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(
            theirs[name], wanted, rtol=0, atol=apart, msg=lambda said, name=name: f"{name}: {said}"
        )


def test_one_goes_on_as_two_ranks_and_these_as_one_also_when_a_rank_died(tmp_path, ray):
    """FSDP2, weights and moments away in between, tabletop; rollouts are the same bits, training to rounding."""
    keep = {"deterministic": True, "keep_last": 5, "save_every": 1}
    scheduler = {"use": "full-async", "max_staleness": 0}
    with build(tmp_path, "one", "local", WHOLE, scheduler, {"use": "tabletop"}, **keep) as run:
        run.train(steps=1)
        shutil.copytree(run.directory, tmp_path / "two")
        run.train()
    killer = Killer(lambda engine: engine.trainer.ranks[1], after=3)
    two = {"run": {"runtime": "ray", "devices": 2, "placement": SHARED, "steps": 9}}
    two["train"] = {"shard": "fsdp", "offload": "all"}
    with (
        rlvla.resume(tmp_path / "two", two, listeners=[killer]) as run,
        pytest.raises(WorkerDied, match=r"trainer-1: its Ray worker ended"),
    ):
        killer.train(run)
    assert time.monotonic() - killer.killed < 60, "a collective's own limit is hours"
    near(tmp_path / "one", tmp_path / "two", 2)
    parts = list((checkpoint.path_of(tmp_path / "two", 2) / "optimizer").iterdir())
    assert len(parts) == 2, "each rank writes its own part"
    alone = {"runtime": "local", "devices": 1, "placement": None, "steps": 3}
    with rlvla.resume(checkpoint.path_of(tmp_path / "two", 2), {"run": alone}) as run:
        run.train()
    near(tmp_path / "one", tmp_path / "two", 3)


def test_calls_keep_their_order_and_hold_up_nobody(ray):
    """Ray delivers them in any order; while one actor works, another one's calls and a ping are answered."""
    from rlvla.runtimes.ray import _Host, _packed

    release = threading.Event()

    class Notes:
        def __init__(self):
            self.heard = []

        def note(self, number, waits=False):
            assert not waits or release.wait(60), "its call held up the other actor"
            self.heard.append(number)

        def all(self):
            return self.heard

    async def calls():
        host = _Host({"one": Notes, "other": Notes})

        def send(number, *arguments):
            return asyncio.create_task(host.send(*_packed(("one", number, [("note", arguments)]))))

        async def heard(name, number):
            return pickle.loads(await host.call(*_packed((name, number, [], ("all", ()), 0))))

        late = [send(number, number) for number in range(50, 0, -1)]
        while len(host._early) < len(late):
            await asyncio.sleep(0)
        assert await host.ping() == os.getpid(), "a call before its turn is in the way"
        late.append(send(0, 0, True))
        assert await heard("other", 0) == []
        release.set()
        assert await heard("one", 51) == list(range(51))
        await asyncio.gather(*late)

    asyncio.run(calls())


class Wire:
    """A worker that calls reach in any order, once all have left."""

    life = 0

    def __init__(self, host):
        self.host, self.left = host, []

    def submit(self, parts, arguments):
        answered = asyncio.get_running_loop().create_future()
        self.left.append((answered, self.host.call if parts else self.host.send, arguments))
        return answered

    async def deliver(self, order):
        async def one(answered, method, arguments):
            try:
                answered.set_result(await method(*arguments))
            except Exception as error:
                answered.set_exception(error)

        await asyncio.gather(*(one(*self.left[number]) for number in order))


class Diary:
    """An actor that notes what it hears."""

    def __init__(self):
        self.heard = []

    def note(self, number):
        self.heard.append(number)
        return number

    def fail(self, number):
        self.heard.append(number)
        raise ValueError(f"call {number}")


@given(
    kinds=st.lists(st.sampled_from(["note", "note", "note", "note", "fail", "at once", "wait"]), max_size=60),
    shuffle=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=50)
def test_what_nobody_waits_for_travels_together_before_any_later_call(kinds, shuffle):
    """Records, refusals and training steps of a rank, in any order: heard in the order of the calls, few on the wire."""
    from rlvla.runtimes.ray import _TOGETHER, RayHandle, _Host

    async def played():
        host = _Host({"rank": Diary})
        handle, waiting = RayHandle("rank", wire := Wire(host)), []
        for number, kind in enumerate(kinds):
            if kind == "wait":
                waiting.append(asyncio.ensure_future(handle.call("note", number)))
                await asyncio.sleep(0)
                assert not handle._sent, "a call went ahead of what was sent"
            else:
                handle.send("fail" if kind == "fail" else "note", number, at_once=kind == "at once")
            assert len(handle._sent) < _TOGETHER, "more wait than may"
        order = list(range(len(wire.left)))
        shuffle.shuffle(order)
        await wire.deliver(order)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        said = [str(one) if isinstance(one, ValueError) else one for one in answers]
        return host._actors["rank"].heard if host._actors else [], said, len(wire.left), handle._sent

    heard, answers, calls, left = asyncio.run(played())
    wanted, wanted_answers, failed = [], [], None
    for number, kind in enumerate(kinds):
        if kind == "wait":
            wanted_answers.append([number] if failed is None else failed)
        if kind != "wait" or failed is None:
            wanted.append(number)
        failed = None if kind == "wait" else failed or f"call {number}" if kind == "fail" else failed
    assert heard == wanted[: len(wanted) - len(left)]
    assert answers == wanted_answers
    assert calls <= kinds.count("wait") + kinds.count("at once") + len(kinds) // _TOGETHER


def test_chunk_steps_of_many_slots_make_few_calls():
    """8 slots of 4 rows, 4 ranks, a step of 16 chunks: 128 chunk steps reach their ranks in 16 calls, the last beside ``train``."""
    from rlvla.runtimes.ray import RayHandle, _Host

    class Rank(Diary):
        def record(self, *payload):
            self.heard.append([one.ticket for one in payload[-1] if one is not None])

        def train(self, tickets, step, of_all):
            return TrainReceipt(version=1, seconds=0.0, metrics={"heard": sum(map(len, self.heard))})

    async def played():
        wires = [Wire(_Host({f"trainer-{number}": Rank})) for number in range(4)]
        ranks = [RayHandle(f"trainer-{number}", wire) for number, wire in enumerate(wires)]
        group = trainers.TrainerGroup(ranks, cut=False, cycle=32)
        for chunk in range(16):
            for first in range(0, 32, 4):
                entries = [Entry(first + row, 0, chunk, row, chunk == 15) for row in range(4)]
                group.send("record", None, None, None, None, 0, entries)
        training = asyncio.ensure_future(group.call("train", list(range(32)), 0))
        await asyncio.sleep(0.01)
        await asyncio.gather(*(wire.deliver(range(len(wire.left))) for wire in wires))
        return (
            [len(wire.left) for wire in wires],
            [wire.host._actors[rank.name].heard for wire, rank in zip(wires, ranks, strict=True)],
            await training,
        )

    calls, heard, _ = asyncio.run(played())
    assert sum(calls) == 16 + 4, "of which a training step makes 4"
    for number, units in enumerate(heard):
        wanted = [ticket for _ in range(16) for ticket in range(8 * number, 8 * number + 8)]
        assert [ticket for some in units for ticket in some] == wanted


def test_references_travel_as_arguments_each_once(ray):
    """In lists and in what travels together too; where they arrive is what they refer to."""
    import ray as library

    from rlvla.runtimes.ray import _packed, _Unpacker

    one, other = library.put("one"), library.put([2])
    packed, *references = _packed([("record", (one, {"b": [other, one]}, 3))])
    assert references == [one, other]
    ((method, arguments),) = _Unpacker(packed, library.get(references)).load()
    assert (method, arguments) == ("record", ("one", {"b": [[2], "one"]}, 3))


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


@pytest.mark.parametrize("scheduler", ["hybrid", pytest.param("async-rollout", marks=pytest.mark.e2e)])
def test_schedulers_drive_several_of_everything(tmp_path, ray, scheduler):
    """With 2 hosts of 3 slots, 2 generators, 2 ranks: nothing divides anything."""
    heard = Recorder()
    sim = {"num_envs": 5}
    more = {"devices": 2, "placement": "collocated", "slots": 3, "steps": 2}
    algo = {**PPO, "minibatch_size": 8}
    with build(tmp_path, "run", "ray", algo, scheduler, sim, listeners=[heard], **more) as run:
        run.train()
    assert heard.steps == [1, 2]
    assert heard.metrics[-1]["train/samples"] == 21
    assert {span.actor for span in read(tmp_path / "run")} >= {"generator-0", "generator-1", "trainer", "sim-2"}


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


class Notes:
    def __init__(self):
        self.notes = []

    def note(self, what):
        self.notes.append(what)
        return [what]


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "called"])
def test_what_was_lost_on_its_way_is_said_and_holds_up_nobody(ray, sent):
    """Ray does not make a call whose arguments are lost, and calls are made in their order."""
    import ray as library

    @library.remote
    def gone():
        raise RuntimeError("the machine that held it is gone")

    async def play():
        (handle,) = ray.start({"notes": Notes})
        lost = gone.remote()
        await handle.call("note", 1)
        if sent:
            handle.send("note", lost, at_once=True)
            handle.send("note", 2)
        with pytest.raises(
            SimulatorError, match=r"notes: what 'note' was given is lost, .* \(the machine that held it is"
        ):
            await asyncio.wait_for(handle.call("note", 3 if sent else lost), 60)
        return await asyncio.wait_for(handle.call("note", 4), 60)

    assert asyncio.run(play()) == [[4]]


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


@pytest.mark.e2e
def test_a_ray_of_our_own_takes_nobody_without_its_secret(ray):
    """Ray listens on every interface; whoever may call it may run code."""
    import ray as library

    place = library.get_runtime_context().gcs_address
    code = f"import ray; ray.init(address={place!r}, logging_level='error'); print('in')"
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    ended = subprocess.run([sys.executable, "-c", code], env=stranger, capture_output=True, text=True, timeout=250)
    assert ended.returncode != 0
    assert "in" not in ended.stdout.split()
    assert "Failed to connect to Ray cluster" in ended.stderr


def test_a_machine_without_a_package_is_named(ray):
    """The function that looks travels by value: it needs nothing there."""
    import ray as library

    here = versions.everywhere(configs.read({"sim": "fake", "model": "fake", "algo": "ppo", "scheduler": "sync"}))
    assert {"python", "rlvla", "torch", "rlvla-algo-ppo"} <= set(here)
    cluster.check_nodes(library, here)
    with pytest.raises(ConfigError, match=r"node \S+: rlvla-sim-moon is not installed, wanted 0\.1\.0: pip install"):
        cluster.check_nodes(library, {**here, "rlvla-sim-moon": "0.1.0"})


def test_what_a_simulator_misses_is_asked_where_it_is_to_live(tmp_path, ray):
    """In a worker on that machine, before any model is made; here it misses whatever its config has."""
    plugin = dataclasses.replace(find("sim", "fake"), preflight="builtins:dir")
    sim = Choice(plugin, plugin.config(num_envs=5))
    options = {"runtime": "ray", "device": "cpu", "directory": str(tmp_path), "without": ["display", "tensorboard"]}
    with (
        rlvla.build(sim=sim, model="fake", algo=PPO, run=options) as run,
        pytest.raises(SimulatorError, match=r"^node \S+: fake: (.*\n)*num_envs\n"),
    ):
        run.train()
    assert run._engine is None, "it was asked too late"
