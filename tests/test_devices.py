"""Devices that several share, in virtual time."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.clock import run_virtual
from rlvla.testing.devices import Shared


def finishing(capacity, users):
    """Return when each user, (start, seconds, share), is done, and the device's busy seconds."""

    async def use(device, start, seconds, share):
        await asyncio.sleep(start)
        await device.use(seconds, share)
        return asyncio.get_running_loop().time()

    async def main():
        device = Shared(capacity)
        return await asyncio.gather(*(use(device, *one) for one in users)), device.busy

    return run_virtual(main())


@pytest.mark.parametrize(
    ("capacity", "users", "ends"),
    [
        (1.0, [(0, 3, 1)], [3.0]),
        (1.0, [(0, 2, 1), (0, 2, 1)], [4.0, 4.0]),
        (2.0, [(0, 2, 1), (0, 2, 1)], [2.0, 2.0]),
        # alone to 1, then half speed: the second needs 1 s, done at 3; the first has 1 left and is done at 4
        (1.0, [(0, 3, 1), (1, 1, 1)], [4.0, 3.0]),
        # shares of 0.6 and 0.9: two thirds of the speed while both are there
        (1.0, [(0, 2, 0.6), (0, 4, 0.9)], [3.0, 5.0]),
    ],
)
def test_by_hand(capacity, users, ends):
    assert finishing(capacity, users)[0] == pytest.approx(ends, abs=1e-8)


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.sampled_from([1.0, 1.5, 3.0]),
    users=st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5), st.sampled_from([0.5, 1.0])), min_size=1, max_size=8),
)
def test_work_is_conserved(capacity, users):
    """Nobody is faster than alone; the device did what was asked for; it never idled while somebody waited."""
    ends, busy = finishing(capacity, users)
    for (start, seconds, _), end in zip(users, ends, strict=True):
        assert end >= start + seconds - 1e-6
    assert busy == pytest.approx(sum(seconds * share for _, seconds, share in users) / capacity, abs=1e-6)


def test_who_is_cancelled_leaves():
    async def main():
        device = Shared()
        first = asyncio.ensure_future(device.use(2))
        second = asyncio.ensure_future(device.use(9))
        await asyncio.sleep(1)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(2.5)
