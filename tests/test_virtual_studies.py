"""The studies in virtual time still say what their results say: few points of each, in seconds."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from rlvla.clock import run_virtual
from rlvla.testing.virtual import play

ROOT = Path(__file__).parent.parent


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))  # for what it imports from beside it
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rl_vla3():
    return benchmark("virtual_rl_vla3")


@pytest.fixture(scope="module")
def hybrid():
    return benchmark("virtual_hybrid")


@pytest.fixture(scope="module")
def scaling():
    return benchmark("virtual_scaling")


def test_their_schedules_give_the_published_numbers(rl_vla3):
    reading = rl_vla3.READINGS["host-bound"]
    for name, published in rl_vla3.PAPER.items():
        assert rl_vla3.theirs(name, reading) == pytest.approx(published, rel=rl_vla3.RESIDUAL), name


def test_strict_rounds_wait_for_the_slowest_and_skip_who_left():
    turns, served = benchmark("rl_vla3_schedules").Turns(), []

    async def member(number):
        turns.join(number)
        for _ in range(2 if number == 1 else 4):
            await asyncio.sleep(5 if number == 0 else 1)  # what lies between two turns
            await turns.have(number, lambda: serve(number))
        turns.leave(number)

    async def serve(number):
        served.append((number, asyncio.get_running_loop().time()))
        await asyncio.sleep(1)

    async def everybody():
        await asyncio.gather(*(member(number) for number in range(3)))

    run_virtual(everybody())
    assert [number for number, _ in served] == [0, 1, 2, 0, 1, 2, 0, 2, 0, 2]
    assert [at for _, at in served] == [5, 6, 7, 11, 12, 13, 17, 18, 23, 24]


def test_their_weights_act_for_four_waves_one_request_at_a_time(rl_vla3):
    world = rl_vla3.machine(
        rl_vla3.READINGS["long tails"], 8, 1, waves_a_step=1, own_generator=True, batch_rows=None, seed=1
    )
    played = play(rl_vla3.RlVla3("as"), world)
    assert set(played.batches) == {8}
    assert len(played.batches) == 32 * rl_vla3.WINDOW * rl_vla3.WAVES
    assert set(played.versions) == {0}
    assert played.staleness == [0, 1, 2, 3]


@pytest.mark.parametrize("fixed", [(0.0, 0.0), (0.5, 0.1)])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_closed_form_of_hybrid_is_exact_on_halves(hybrid, stages, fixed):
    work = hybrid.Work(0.3, 0.3, *fixed)
    virtual = hybrid.virtual_seconds(work, 4, 4, 8, stages)
    assert hybrid.hybrid_seconds(work, 4, stages) == pytest.approx(virtual, rel=1e-6)


def test_closed_form_of_derived_hybrid_is_within_3_percent(hybrid):
    for mix in (0.3, 0.7):
        work = hybrid.Work(mix, 0.05, 0.5, 0.1)
        seconds, devices, stages = hybrid.derived(work)
        assert hybrid.virtual_seconds(work, devices, 8 - devices, 8, stages) == pytest.approx(seconds, rel=0.03)


def test_what_hybrid_is_compared_with_is_exact(hybrid):
    work = hybrid.Work(0.6, 0.4, 0.3, 0.1)
    for closed, virtual in (
        (hybrid.disaggregated_seconds(work, 2, 2), hybrid.virtual_seconds(work, 2, 2, 4, 1)),
        (hybrid.disaggregated_seconds(work, 2, 2, 2), hybrid.virtual_seconds(work, 2, 2, 4, 2)),
        (hybrid.collocated_seconds(work), hybrid.virtual_seconds(work, 8, 8, 8, 1, use="sync")),
    ):
        assert closed == pytest.approx(virtual, rel=1e-6)


def test_16_gpus_do_twice_as_much_as_8(scaling):
    found = scaling.study("full-async", 16, (8, 16))["gpus"]
    assert found["16"]["efficiency"] >= 0.95
    assert found["16"]["controller_busy"] == pytest.approx(2 * found["8"]["controller_busy"], rel=0.05)


def test_a_controller_that_is_too_slow_is_the_limit(scaling):
    """A call of 50 ms: at most 20 of them in a second, whatever the GPUs could do."""
    found = scaling.rate("full-async", scaling.cluster(8, 16, 0.05))
    assert found["controller_busy"] > 0.99
    calls = found["env_steps_per_second"] / scaling.ACTIONS / 16 * (1 + 16 / found["batch_rows"])
    assert calls == pytest.approx(20, rel=0.03)


def test_collectives_take_what_was_measured_in_one_machine(scaling):
    assert scaling.all_reduce_seconds(8) == pytest.approx(2.1 / 2.147 * 6.5e-3, rel=0.03)
    assert scaling.all_reduce_seconds(256) > 2 * scaling.BYTES * 31 / 32 / (8 * scaling.BETWEEN)
