"""The queue before the generator: who goes into which batch, and when it is launched."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlvla.batcher import Batcher, LatencyCurve
from rlvla.clock import run_virtual


def slot(number, rows=1):
    return SimpleNamespace(number=number, working=lambda: list(range(rows)))


class Generator:
    def __init__(self, call=0.0, row=1.0):
        self.call, self.row, self.batches = call, row, []

    async def __call__(self, slots, generator=0):
        began = asyncio.get_running_loop().time()
        self.batches.append((began, [one.number for one in slots]))
        await asyncio.sleep(self.call + self.row * sum(len(one.working()) for one in slots))


def test_what_arrives_in_one_instant_goes_into_one_batch():
    generator = Generator()

    async def arrive(batcher, number, depth):
        await asyncio.sleep(1)
        for _ in range(depth):
            await asyncio.sleep(0)
        await batcher.request([slot(number)])

    async def main():
        batcher = Batcher(generator)
        await asyncio.gather(*(arrive(batcher, number, number) for number in range(4)))

    run_virtual(main())
    assert generator.batches == [(1.0, [0, 1, 2, 3])]


def test_first_come_first_served_and_a_limit_cuts_in_order():
    generator = Generator()

    async def main():
        batcher = Batcher(generator, limit=3)
        sizes = [2, 2, 1, 5, 1]
        await batcher.request([slot(number, rows) for number, rows in enumerate(sizes)])

    run_virtual(main())
    assert [numbers for _, numbers in generator.batches] == [[0], [1, 2], [3], [4]]


def test_generators_that_are_idle_do_as_much_as_each_other():
    served = []

    async def act(slots, generator):
        served.append(generator)
        await asyncio.sleep(1.0)

    async def main():
        batcher = Batcher(act, generators=3)
        for _ in range(7):  # never more than one is busy
            await batcher.request([slot(0)])

    run_virtual(main())
    assert served == [0, 1, 2, 0, 1, 2, 0]


def test_a_cancelled_request_leaves_the_queue():
    generator = Generator(row=5.0)

    async def main():
        batcher = Batcher(generator)
        first = asyncio.ensure_future(batcher.request([slot(0)]))
        await asyncio.sleep(1)
        second, third = (asyncio.ensure_future(batcher.request([slot(number)])) for number in (1, 2))
        await asyncio.sleep(1)
        second.cancel()
        await asyncio.gather(first, third)

    run_virtual(main())
    assert generator.batches == [(0.0, [0]), (5.0, [2])]


def test_an_error_reaches_everyone_in_the_batch():
    async def fail(slots, generator):
        raise ValueError("no chunk")

    async def main():
        batcher = Batcher(fail)
        return await asyncio.gather(*(batcher.request([slot(one)]) for one in range(3)), return_exceptions=True)

    assert [str(one) for one in run_virtual(main())] == ["no chunk"] * 3


def rounds(generator, seconds, turns=6):
    """Slots that ask again so many seconds after each chunk; slot 1 is lost in its fourth step."""

    async def play(batcher, number, away):
        batcher.expect(slot(number))
        for turn in range(turns):
            await batcher.request([slot(number)])
            if (number, turn) == (1, 3):
                await asyncio.sleep(1000)
                batcher.leave(slot(number))
                return
            await asyncio.sleep(away)
        batcher.leave(slot(number))

    async def main():
        batcher = Batcher(generator)
        await asyncio.gather(*(play(batcher, number, away) for number, away in enumerate(seconds)))

    run_virtual(main())
    return generator.batches


def test_a_slot_that_does_not_come_back_holds_up_nobody():
    """A call costs 4 s whatever is in it, so slots wait for each other, but for half of that at most."""
    batches = rounds(Generator(call=4.0, row=0.0), [1.0, 2.0])
    alone = [began for began, numbers in batches if numbers == [0]]
    assert alone[-1] < 60.0


def test_nobody_waits_where_rows_are_all_that_costs():
    batches = rounds(Generator(call=0.0, row=1.0), [1.5, 1.75, 2.25], turns=3)
    assert [began for began, _ in batches] == sorted({began for began, _ in batches})
    ends = [began + len(numbers) for began, numbers in batches]
    asked = {number: [0.0] for number in range(3)}
    for (began, numbers), end, before in zip(batches, ends, [0.0, *ends], strict=False):
        first = min(asked[number][-1] for number in numbers)
        assert began == max(first, before), "a request waited beside an idle generator"
        for number in numbers:
            asked[number].append(end + [1.5, 1.75, 2.25][number])


@given(st.floats(0, 10), st.floats(0, 2), st.lists(st.integers(1, 64), min_size=3, max_size=40))
@example(0.0, 1.5791582255866448e-190, [44, 1, 1])
def test_the_curve_is_found_again(call, row, sizes):
    curve = LatencyCurve()
    curve.add(1, 1000.0)  # the first call of anything is slow
    for size in sizes:
        curve.add(size, call + row * size)
    a, b = curve.fit()
    assert a >= 0
    assert b >= 0
    for size in sizes:
        assert a + b * size == pytest.approx(call + row * size, rel=1e-3, abs=1e-6)


def test_the_curve_is_unknown_before_the_second_call():
    curve = LatencyCurve()
    assert curve.fit() is None
    curve.add(4, 1.0)
    assert curve.fit() is None
    curve.add(4, 2.0)
    assert curve.fit() == (2.0, 0.0)
