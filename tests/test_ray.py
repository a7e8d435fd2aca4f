"""The Ray runtime: the same bits as the local one, receipts alone in the controller."""

import pickle
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from ray_runs import GRPO, MARKS, PPO, SHARED, WHOLE, Killer, build, left
from safetensors.torch import load_file as load_tensors

import rlvla
from rlvla import checkpoint, state_files
from rlvla.errors import WorkerDied
from rlvla.runtimes.local import LocalHandle
from rlvla.testing.scheduler import Recorder
from rlvla.tracing import read

pytestmark = MARKS


@pytest.fixture(scope="module")
def windows(shared_ray, tmp_path_factory):
    """Return the folder of a local run and one under Ray of two generators and hosts, what each found, and when and what the
    second told: one of its generators died."""
    shared_ray.start()
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


def test_slots_are_served_in_the_process_that_trains_on_them(tmp_path, ray):
    """What a model keeps of a chunk on a GPU between acting and training is found again there."""
    more = {"devices": 2, "placement": "collocated", "slots": 4, "steps": 2}
    with build(tmp_path, "run", "ray", {**PPO, "windows_per_step": 8}, sim={"num_envs": 8}, **more) as run:
        run.train()
        engine = run._engine
        stations, ranks = engine._by_station(), engine.trainer
        for slot in engine._slots:
            trained_by = {ranks.ranks[ranks._rank_of(row.number)]._place for row in slot.rows}
            assert {one._place for one in stations[slot.station]} == trained_by
    rows = {name: 0 for name in ("generator-0", "generator-1")}
    for span in read(tmp_path / "run"):
        if span.phase == "generate":
            rows[span.actor] += span.rows
    assert rows["generator-0"] == rows["generator-1"] > 0
