"""Weights arrive as they were sent, whichever way."""

import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvla import transport
from rlvla.errors import ConfigError, TransportError
from rlvla.placement import Placement
from rlvla.placement import transport as derived
from rlvla.ranks import Meeting
from rlvla.transport import Broadcast, Notice, Shelf, buckets

CPU = torch.device("cpu")


@given(sizes=st.lists(st.integers(0, 9), max_size=12), most=st.integers(1, 12))
def test_buckets_hold_every_name_once_in_order_and_no_more_than_fits(sizes, most):
    named = {str(number): size for number, size in enumerate(sizes)}
    found = list(buckets(named, most))
    assert [name for some in found for name in some] == list(named)
    assert all(len(some) == 1 or sum(named[name] for name in some) <= most for some in found)
    for one, after in pairwise(found):
        assert sum(named[name] for name in one) + named[after[0]] > most, "a bucket could have held more"


def joined(ends: int) -> tuple[Meeting, list[Broadcast]]:
    meeting = Meeting("127.0.0.1")
    made: dict[int, Broadcast] = {}
    threads = [
        threading.Thread(
            target=lambda number=number: made.update({number: Broadcast(meeting.place, number, ends, CPU)})
        )
        for number in range(ends)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return meeting, [made[number] for number in range(ends)]


def take(end, told, found, number):
    found[number] = end.receive(told)


def test_a_broadcast_brings_every_bit_to_all(monkeypatch):
    """Several dtypes, an empty tensor, one without dimensions, in several buckets; twice."""
    monkeypatch.setattr(transport, "BUCKET_BYTES", 64)
    _meeting, ends = joined(3)
    for version in (1, 2):
        weights = {
            "a": torch.randn(7, 5),
            "b": torch.randn(3).bfloat16(),
            "none": torch.zeros(0, 4),
            "count": torch.tensor(version),
            "c": torch.randn(2, 2),
        }
        told = ends[0].send(weights, version)
        found: dict[int, dict] = {}
        threads = [threading.Thread(target=take, args=(ends[number], told, found, number)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert told.version == version
        for got in (found[1], found[2]):
            assert list(got) == list(weights)
            assert all(torch.equal(got[name], one) and got[name].dtype == one.dtype for name, one in weights.items())


def test_whoever_is_no_end_of_the_group_says_so(monkeypatch):
    monkeypatch.setattr(transport, "_LONGEST", transport.timedelta(seconds=1))
    _meeting, ends = joined(2)
    told = ends[0].send({"a": torch.ones(3)}, 1)
    ends[0]._sending.join(30)
    with pytest.raises(TransportError, match="weights could not be sent"):
        ends[0].send({"a": torch.ones(3)}, 2)
    with pytest.raises(TransportError, match="version 1 of the weights is not in this process"):
        Shelf().receive(Notice("process", told.version))


@pytest.mark.parametrize(
    ("placed", "gpus", "wanted"),
    [
        (Placement(2, (0,), (0, 1), (0, 1), shared=True), True, "process"),
        (Placement(2, (0,), (0,), (1,), shared=True), True, "broadcast"),
        (Placement(2, (0,), (0,), (1,), shared=True), False, "store"),
        (Placement(3, (0,), (0, 2), (0, 1), shared=True), True, "store"),
        (Placement(1), False, "store"),
    ],
)
def test_weights_take_the_shortest_way(placed, gpus, wanted):
    assert derived(placed, ray=True, gpus=gpus, chosen=None) == wanted
    assert derived(placed, ray=False, gpus=gpus, chosen=None) == "reference"


def test_a_way_that_is_none_is_refused():
    apart, clash = Placement(2, (0,), (0,), (1,), shared=True), Placement(3, (0,), (0, 2), (0, 1), shared=True)
    with pytest.raises(
        ConfigError, match=r"got 'process', but generators \(0\) do not all live with a trainer rank \(1\)"
    ):
        derived(apart, ray=True, gpus=True, chosen="process")
    with pytest.raises(ConfigError, match="got 'broadcast', but a generator shares GPU 0 with the first trainer rank"):
        derived(clash, ray=True, gpus=True, chosen="broadcast")
    with pytest.raises(ConfigError, match="got 'store', wanted none: in one process"):
        derived(Placement(), ray=False, gpus=False, chosen="store")
