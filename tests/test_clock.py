"""Virtual time: exact, first come first served, and stuck where a real run would wait for ever."""

import asyncio
import gc
import threading
import time

import pytest

from rlvla.clock import Stuck, run_virtual


def loop():
    return asyncio.get_running_loop()


def test_an_hour_takes_no_time():
    async def main():
        await asyncio.sleep(3600)
        return loop().time(), loop().time_ns()

    assert run_virtual(main()) == (3600.0, 3600 * 10**9)


def test_timers_of_one_instant_run_in_the_order_in_which_they_were_set():
    async def main():
        ran = []
        for number in range(50):
            loop().call_at(1.0, ran.append, number)
        loop().call_at(0.5, ran.append, "early")
        loop().call_at(0.2, ran.append, "cancelled").cancel()
        await asyncio.sleep(2)
        return ran

    assert run_virtual(main()) == ["early", *range(50)]


def test_late_in_a_long_run_a_nanosecond_still_counts():
    """A stock loop fires timers up to its clock's resolution early, and spins where that is below a float's step."""

    async def main():
        await asyncio.sleep(3e7)
        began, ran = loop().time_ns(), []
        loop().call_later(2e-9, lambda: ran.append(("b", loop().time_ns() - began)))
        loop().call_later(1e-9, lambda: ran.append(("a", loop().time_ns() - began)))
        await asyncio.sleep(0.5)
        return ran, loop().time_ns() - began

    assert run_virtual(main()) == ([("a", 1), ("b", 2)], 500_000_000)


def test_a_timer_in_the_past_does_not_turn_the_clock_back():
    async def main():
        await asyncio.sleep(5)
        at = []
        loop().call_at(1.0, lambda: at.append(loop().time()))
        await asyncio.sleep(0)
        await asyncio.sleep(1)
        return at

    assert run_virtual(main()) == [5.0]


def test_the_end_of_an_instant_comes_after_everything_that_is_ready():
    """Four arrive at once, through call chains of different depth; what runs at the end of the instant sees all."""

    async def main():
        arrived, seen = [], []

        async def arrive(depth):
            await asyncio.sleep(1)
            if not arrived:
                loop().call_later(0, lambda: seen.append(list(arrived)))
            for _ in range(depth):
                await asyncio.sleep(0)
            arrived.append(depth)

        await asyncio.gather(*(arrive(depth) for depth in range(4)))
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main()) == [[0, 1, 2, 3]]


def test_a_dead_lock_names_every_task_and_where_it_waits():
    async def main():
        one, other = asyncio.Lock(), asyncio.Lock()

        async def both(first, second):
            async with first:
                await asyncio.sleep(1)
                async with second:
                    pass

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(both(one, other), name="sim-0")
            tasks.create_task(both(other, one), name="sim-1")

    with pytest.raises(Stuck, match=r"nothing can happen any more at 1\.0 s") as caught:
        run_virtual(main())
    for name in ("sim-0", "sim-1"):
        assert f"{name}: " in str(caught.value)
    assert str(caught.value).count("both:") == 2
    assert "Lock.acquire" in str(caught.value)


def test_polling_is_found():
    async def main():
        done = []
        loop().call_later(1, done.append, True)
        while not done:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match=r"clock stands at 0\.0 s .*\n.*main"):
        run_virtual(main())


def test_threads_are_refused():
    async def executor():
        await asyncio.to_thread(time.sleep, 0.01)

    async def thread():
        errors = []

        def call():
            try:
                the_loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                errors.append(str(error))

        the_loop = loop()
        one = threading.Thread(target=call)
        one.start()
        one.join()
        return errors

    with pytest.raises(RuntimeError, match="virtual time knows no threads"):
        run_virtual(executor())
    assert "knows no threads" in run_virtual(thread())[0]


def test_an_error_in_a_task_ends_the_run_at_its_own_time():
    async def main():
        async def fail():
            await asyncio.sleep(1)
            raise ValueError("lost")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            tasks.create_task(asyncio.Event().wait())

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main())
    assert "lost" in str(caught.value.exceptions[0])


def test_runs_repeat_exactly_whatever_was_allocated_before():
    async def main():
        finished = []

        async def work(number):
            for turn in range(5):
                await asyncio.sleep((number * 7 + turn * 3) % 4 + 0.5)
                finished.append((loop().time_ns(), number))

        await asyncio.gather(*(work(number) for number in range(12)))
        return finished

    first = run_virtual(main())
    kept = [object() for _ in range(10_000)]
    gc.collect()
    assert run_virtual(main()) == first
    assert kept


def test_real_and_virtual_time_agree_on_the_order():
    async def main():
        ran = []

        async def work(number):
            await asyncio.sleep(0.01 * (3 - number))
            ran.append(number)

        await asyncio.gather(*(work(number) for number in range(3)))
        return ran

    assert run_virtual(main()) == asyncio.run(main())
