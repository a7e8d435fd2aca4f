"""Nothing waits for ever in silence."""

import asyncio

import pytest

from rlvla.clock import run_virtual
from rlvla.errors import StallError
from rlvla.watch import Watch


async def beside(watch, playing):
    detector = asyncio.ensure_future(watch.run())
    try:
        await asyncio.wait([detector, asyncio.ensure_future(playing)], return_when=asyncio.FIRST_COMPLETED)
        if detector.done():
            detector.result()
    finally:
        detector.cancel()
    return asyncio.get_running_loop().time()


def test_a_call_that_takes_too_long_is_named():
    async def main():
        watch = Watch(first_call_s=100.0)
        await watch("simulate", asyncio.sleep(1))
        await beside(watch, watch("simulate", asyncio.sleep(1000)))

    with pytest.raises(StallError, match=r"'simulate' has waited 6\d s"):
        run_virtual(main())


def test_what_ends_a_call_by_itself_comes_before_a_stall():
    limits = (None, 20.0, 50.0, 120.0)
    assert [Watch(call_limit_s=limit).min_stall_s for limit in limits] == [60.0, 60.0, 60.0, 130.0]


def test_a_scheduler_that_waits_for_what_cannot_come_is_named():
    async def wait_for_nobody():
        await asyncio.Event().wait()

    with pytest.raises(StallError, match=r"no call was under way.*\n[^$]*wait_for_nobody"):
        run_virtual(beside(Watch(), wait_for_nobody()))


def test_what_is_excused_may_take_its_time():
    async def evaluate(watch):
        with watch.excused():
            await asyncio.sleep(1000)

    watch = Watch()
    assert run_virtual(beside(watch, evaluate(watch))) == 1000.0
