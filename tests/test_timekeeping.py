"""Bounds, busy shares and waits: by hand in virtual time, and never beaten whatever takes how long."""

import logging
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvla.histograms import Histogram, summary
from rlvla.specs import SchedulerSpec
from rlvla.testing.virtual import Latency, World, play
from rlvla.timekeeping import Timekeeper, Workers, slowness

sys.path.insert(0, str(Path(__file__).parent))
from test_schedules import BOUNDS, ONE_SLOW_SLOT, PUBLISHING, SCHEDULERS, scheduler, worlds

TAKING_TURNS = World(  # now one simulator is slow, now the other
    latency=Latency(simulate=lambda slot, step: 1.0 if (slot + step) % 2 else 3.0), episode=lambda slot, number: 1000
)

# ---- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "name", "device_s", "schedule_s", "step_s"),
    [
        # 2 chunks of (batch of two 2 + slower simulator 3) + training 4; the slower simulator works 6
        (ONE_SLOW_SLOT, "sync", 6.0, 14.0, 14.0),
        # the slow slot's chain 2 + 3 + 1 + 3, then training 4
        (ONE_SLOW_SLOT, "async-rollout", 6.0, 13.0, 13.0),
        (ONE_SLOW_SLOT, "full-async-0", 6.0, 13.0, 13.0),
        # twice (batch 2 + slower simulator 3) + training 4; generator, trainer and each simulator work 4
        (TAKING_TURNS, "sync", 4.0, 14.0, 14.0),
        # slot 0: batch 2 + 3 + alone 1 + 1, training 4; but its second batch is held back for 0.5
        (TAKING_TURNS, "async-rollout", 4.0, 11.0, 11.5),
        # the trainer: snapshot 1 + training 5; the generator: offer 2 + batch 2; in turn: 3 + reset 1 + 2 + chunk 1 + 5
        (PUBLISHING, "sync", 6.0, 12.0, 12.0),
        (PUBLISHING, "async-rollout", 6.0, 12.0, 12.0),
        # before the first step ends at 12, two groups are played: generator 2 + 2 + 2, chain 2 (1 + 2 + 1); in turn
        # (publication 3 + chain 8 + training 5) / 2
        (PUBLISHING, "full-async", 6.0, 8.0, 12.0),
    ],
)
def test_bounds_by_hand(world, name, device_s, schedule_s, step_s):
    first = play(scheduler(name), world).metrics[0]
    env_steps = first["env_steps"]
    assert first["time/step_s"] == step_s
    assert first["env_steps_per_second_device_bound"] == env_steps / device_s
    assert first["env_steps_per_second_schedule_bound"] == env_steps / schedule_s
    assert first["time/overlap_efficiency"] == schedule_s / step_s


def test_busy_shares_and_waits_by_hand():
    """Of a step of 14 s: the batch of both 2 x 2 s, simulators 2 x 1 s and 2 x 3 s, training 4 s."""
    first = play(scheduler("sync"), ONE_SLOW_SLOT).metrics[0]
    assert first["time/busy_generator"] == pytest.approx(4 / 14)
    assert first["time/busy_trainer"] == pytest.approx(4 / 14)
    assert first["time/busy_simulators"] == pytest.approx((2 + 6) / 2 / 14)
    assert first["time/slots_wait_for_chunks"] == pytest.approx(4 / 14)
    assert first["time/slots_wait_for_work"] == pytest.approx(1 - (4 + 4) / 14)
    assert [first[f"time/slot_wait_s_{one}"] for one in ("mean", "p50", "p95", "max")] == [2.0] * 4
    assert first["time/queue_delay_s_max"] == 0.0
    assert first["rollout/generator_batch_mean"] == 2.0


def test_queue_delay_is_the_wait_for_the_launch():
    """A call takes 4 s: slot 1 asks at 6, while slot 0's is served until 9, and is held back until slot 0 comes at 10."""
    world = World(
        window=3,
        steps=1,
        latency=Latency(simulate=lambda slot, step: 1.0 + slot, generate_call=4.0, generate_row=0.0),
        episode=lambda slot, number: 1000,
    )
    first = play(scheduler("async-rollout"), world).metrics[0]
    # launched at once: two at 0, one at 5, one at 10; and at 16
    assert first["time/queue_delay_s_max"] == 4.0
    assert first["time/queue_delay_s_mean"] == pytest.approx(4.0 / 6)
    assert first["time/slot_wait_s_max"] == 8.0


def test_devices_that_are_shared_bind():
    """Of a step: two simulators on two cores work 2 + 6 s; generator and trainer on one GPU 4 + 4 s."""
    places = {"simulator": "cores", "generator": "gpu", "trainer": "gpu"}
    world = {**vars(ONE_SLOW_SLOT), "on": lambda kind, number: [(places[kind], 1.0)], "capacities": {"cores": 2.0}}
    first = play(scheduler("sync"), World(**world)).metrics[0]
    assert first["env_steps_per_second_device_bound"] == 4 / 8
    assert first["time/busy_cores"] == pytest.approx((2 + 6) / 2 / 14)
    assert first["time/busy_gpu"] == pytest.approx(8 / 14)


def test_who_shares_a_device_takes_longer_and_does_not_count_twice():
    """Both simulators on one device: 1 and 3 s become 2 and 4, so the device works 4 s a chunk, as in turn."""
    on = lambda kind, number: [("device", 1.0)] if kind == "simulator" else []  # noqa: E731
    first = play(scheduler("sync"), World(**{**vars(ONE_SLOW_SLOT), "on": on})).metrics[0]
    assert first["time/step_s"] == 2 * (2 + 4) + 4
    assert first["env_steps_per_second_device_bound"] == 4 / 8
    assert first["time/overlap_efficiency"] == 1.0


def test_what_overlaps_on_one_device_counts_once():
    times = Timekeeper(SchedulerSpec(on_policy=True), devices={"generator": ["gpu"], "trainer": ["gpu"]})
    times.begin(0.0, 1)
    times.worked("generator", "generate", 0, 6.0, slots=[0], rows=1)
    times.worked("trainer", "train", 4_000_000_000, 4.0)
    metrics = times.finish(10.0, 10.0, 80, 0.0, (3, 1))
    assert metrics["time/busy_gpu"] == 0.8
    assert metrics["env_steps_per_second_device_bound"] == 10.0
    assert metrics["train/staleness_mean"] == 0.25


def test_what_lies_in_a_pause_is_of_no_step():
    """A chunk step from 4 to 9; the run evaluates from 5 to 8."""
    times = Timekeeper()
    times.begin(0.0, 1)
    times.finish(5.0, 5.0, 0, 0.0, ())
    times.begin(8.0, 2)
    times.worked("sim-0", "simulate", 4_000_000_000, 5.0, slots=[0])
    metrics = times.finish(12.0, 4.0, 8, 0.0, ())
    assert metrics["env_steps_per_second_device_bound"] == 8 / 2.0


def test_calls_that_a_pause_cuts_lie_where_they_were():
    """Two calls on one GPU, from 1 to 7 and from 4 to 9; the run evaluates from 5 to 11: they cover 1 to 5."""
    times = Timekeeper(devices={"a": ["gpu"], "b": ["gpu"]}, cores=1.0)
    times.begin(0.0, 1)
    times.finish(5.0, 5.0, 0, 0.0, ())
    times.worked("sim-0", "simulate", 1_000_000_000, 6.0, slots=[0], cpu_seconds=3.0)
    times.worked("a", "generate", 1_000_000_000, 6.0, slots=[0])
    times.worked("b", "generate", 4_000_000_000, 5.0, slots=[1])
    times.begin(11.0, 2)
    times.worked("a", "generate", 11_000_000_000, 1.0, slots=[0])
    metrics = times.finish(12.0, 1.0, 10, 0.0, ())
    assert metrics["env_steps_per_second_device_bound"] == 10 / (4.0 + 1.0)
    assert metrics["time/busy_cores"] == pytest.approx(3.0 * 4 / 6)


# ---- a run ----------------------------------------------------------------------------------------------------------

STEADY = {
    "slots": (1, 1, 1, 1),
    "units_per_step": 4,
    "steps": 30,
    "episode": lambda slot, number: 1000,
}


@pytest.mark.parametrize(
    ("simulate_s", "train_s", "step_s"),
    [(1.0, 1.5, 2.0), (1.0, 3.0, 3.0)],
    ids=["simulators bind", "the trainer binds"],
)
def test_a_long_run_reaches_its_schedule_bound(simulate_s, train_s, step_s):
    """Windows of 2 chunks of 1 s beside training; the first two steps, which fill the pipe, do not count."""
    latency = Latency(simulate=lambda slot, step: simulate_s, generate_row=0.0, train=lambda step: train_s)
    metrics = play(scheduler("full-async"), World(**STEADY, latency=latency)).metrics
    assert "env_steps_per_second_run" not in metrics[1]
    last = metrics[-1]
    assert last["env_steps_per_second_run_schedule_bound"] == pytest.approx(8 / step_s, rel=0.05)
    assert 0.97 <= last["time/run_overlap_efficiency"] <= 1.001


ONE_STAGE_A_DEVICE = World(  # one generator; while a device simulates, the other's chunk is chosen
    on=lambda kind, number: [(f"gpu-{number}", 1.0)] if kind == "simulator" else [],
    window=1,
    steps=1,
    latency=Latency(generate_row=0.5, train=lambda step: 1.0),
)


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(deadline=None, max_examples=40)
@given(world=worlds())
@example(world=ONE_STAGE_A_DEVICE)
def test_no_run_is_faster_than_its_bounds(name, world):
    played = play(scheduler(name), world)
    longest = max((span.seconds for span in played.spans), default=0.0)
    for metrics in played.metrics:
        if "time/overlap_efficiency" in metrics:
            late = longest / metrics["time/step_s"] if BOUNDS[name] else 0.0  # a call that began in the step before
            assert metrics["time/overlap_efficiency"] <= 1 + late + 1e-9
            assert metrics["env_steps_per_second_schedule_bound"] <= metrics["env_steps_per_second_device_bound"] + 1e-9
        if not BOUNDS[name]:
            assert all(0 <= metrics[one] <= 1 + 1e-9 for one in metrics if one.startswith("time/slots_wait"))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_spans_of_an_actor_do_not_overlap_and_are_what_it_worked(name):
    played = play(scheduler(name), PUBLISHING)
    for actor, busy in played.busy.items():
        mine = sorted((one.began_ns, one.ended_ns) for one in played.spans if one.actor == actor)
        assert sum(end - begin for begin, end in mine) / 1e9 == busy
        assert all(end <= begin for (_, end), (begin, _) in pairwise(mine))
    assert {one.step for one in played.spans if one.phase == "train"} == {1, 2, 3}


# ---- slow workers ---------------------------------------------------------------------------------------------------


def test_a_worker_ten_times_slower_is_named_once(caplog):
    workers = Workers()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            for _ in range(16):
                for name, seconds in (("sim-0", 0.02), ("sim-1", 0.2), ("sim-2", 0.021)):
                    workers.add(name, seconds)
            metrics = workers.metrics()
    assert metrics["workers/slow"] == 1.0
    assert metrics["workers/slowest_ratio"] == pytest.approx(0.2 / 0.0205)
    assert caplog.text.count("sim-1 is slow: its chunk steps take 200 ms, 9.8 times as long") == 1
    assert "sim-0 is slow" not in caplog.text


def test_hiccups_few_samples_and_tiny_steps_are_not_slowness():
    steady = [0.02] * 20
    assert max(slowness({"a": steady, "b": [*steady, 3.0]}).values()) < 2
    assert slowness({"a": steady, "b": [5.0] * 15}) == {}
    assert slowness({"a": steady}) == {}
    assert max(slowness({"a": [0.0005] * 20, "b": [0.005] * 20}).values()) < 4


@given(means=st.lists(st.floats(0.01, 10.0), min_size=2, max_size=9))
def test_a_worker_is_compared_with_the_median_of_the_others(means):
    ratios = slowness({f"sim-{number}": [mean] * 20 for number, mean in enumerate(means)})
    for number, mean in enumerate(means):
        others = [one for other, one in enumerate(means) if other != number]
        assert ratios[f"sim-{number}"] == pytest.approx(mean / median(others))


# ---- histograms -----------------------------------------------------------------------------------------------------


def test_quantiles_are_of_the_nearest_rank():
    found = summary("x", [float(one) for one in range(1, 101)])
    assert found == {"x_mean": 50.5, "x_p50": 50.0, "x_p95": 95.0, "x_max": 100.0}
    assert summary("x", {0: 3, 2: 1}) == {"x_mean": 0.5, "x_p50": 0.0, "x_p95": 2.0, "x_max": 2.0}
    assert summary("x", []) == {}


@given(values=st.lists(st.floats(0, 1e4), min_size=1))
def test_every_second_is_counted_in_its_bin(values):
    found = Histogram.of_seconds(values)
    for number, count in enumerate(found.counts[:-1]):
        low, high = found.edges[number : number + 2]
        assert count == sum(low <= value < high for value in values)
    assert found.n == len(values)
    assert found.edges[-1] >= max(values)


@pytest.mark.parametrize("highest", [0, 3, 31, 32, 1000])
def test_whole_numbers_have_a_bin_each_as_far_as_32_go(highest):
    found = Histogram.of_numbers(range(highest + 1))
    assert found.n == highest + 1
    assert len(found.counts) <= 32
    if highest < 32:
        assert found.counts == (1,) * (highest + 1)
