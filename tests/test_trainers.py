"""Several ranks look like one trainer: each gets its own units, and who is to blame is named, in time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvla import trainers
from rlvla.assembly import Entry
from rlvla.clock import run_virtual
from rlvla.errors import NonFiniteError, WorkerDied
from rlvla.receipts import TrainReceipt
from rlvla.trainers import TrainerGroup


class Rank:
    """A handle that notes what it is sent, and does in ``train`` what it is told to."""

    def __init__(self, number, does=None, alive=True):
        self.name = f"trainer-{number}"
        self.number, self.does, self.alive = number, does, alive
        self.calls, self.sent = [], []

    async def call(self, method, *arguments, returns=0):
        self.calls.append((method, *arguments))
        if isinstance(self.does, Exception):
            raise self.does
        if self.does is not None:
            await asyncio.sleep(self.does)
        receipt = TrainReceipt(
            1, 1.0 + self.number, {"loss": 0.5}, 7 - self.number, 2.0, (3,), {"memory/x": self.number}
        )
        return [receipt if method == "train" else self.number, *range(returns)]

    def send(self, method, *arguments, at_once=False, instead=None):
        self.sent.append((method, *arguments))

    async def answers(self, seconds):
        await asyncio.sleep(0 if self.alive else seconds)
        return self.alive

    def kill(self):
        self.calls.append("kill")

    def close(self, timeout_s=10.0):
        self.calls.append("close")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name in ("BEAT_S", "SILENT_S", "GRACE_S"):
        monkeypatch.setattr(trainers, name, 0.1)


def test_units_go_to_the_rank_of_their_ticket_and_every_rank_has_something_to_evaluate():
    ranks = [Rank(number) for number in range(3)]
    group = TrainerGroup(ranks, cut=False)
    entries = [Entry(ticket, 0, 0, row, False) for row, ticket in enumerate((3, 4, 6))]
    for _ in range(2):
        group.send("record", "before", "action", "outcome", "after", 5, entries)
    group.send("forget", 4, 1)
    first, second, third = entries
    payload = ("record", "before", "action", "outcome", "after", 5)
    assert ranks[0].sent == [(*payload, [first, None, third])] * 2
    assert ranks[1].sent == [(*payload, [None, second, None])] * 2 + [("forget", 4, 1)]
    assert ranks[2].sent == [(*payload, [None, None, None])]


@given(world=st.integers(1, 9), cycle=st.integers(0, 40), first=st.integers(0, 200))
def test_as_many_consecutive_units_as_a_cycle_has_are_shared_out_evenly(world, cycle, first):
    group = TrainerGroup([Rank(number) for number in range(world)], cut=False, cycle=cycle)
    units = max(cycle, world)
    shares = [share for share, _, _ in group._shares(range(first, first + units), 0)]
    assert sorted(one for share in shares for one in share) == list(range(first, first + units))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("cycle", "ranks_of_a_slot"), [(16, 1), (0, 4)], ids=["windows", "groups"])
def test_a_chunk_step_goes_to_few_ranks(cycle, ranks_of_a_slot):
    """Row r plays windows r, r + 16, ...: with as many units a step, the rows of a slot have one rank for good."""
    ranks = [Rank(number) for number in range(4)]
    group = TrainerGroup(ranks, cut=False, cycle=cycle)
    for step in range(10):
        for slot in range(4):
            rows = range(4 * slot, 4 * slot + 4)
            group.send("record", *range(5), [Entry(16 * step + row, 0, 0, row, False) for row in rows])
    to_have_something_to_evaluate = 4 - ranks_of_a_slot
    assert sum(len(rank.sent) for rank in ranks) == 40 * ranks_of_a_slot + to_have_something_to_evaluate


def test_a_training_step_is_of_all_ranks_and_its_receipt_too():
    ranks = [Rank(number) for number in range(2)]
    (receipt,) = asyncio.run(TrainerGroup(ranks, cut=False).call("train", [4, 5, 8], 2))
    assert [rank.calls for rank in ranks] == [[("train", [4, 8], 2, 3)], [("train", [5], 2, 3)]]
    assert (receipt.seconds, receipt.began_ns, receipt.cpu_seconds, receipt.memory) == (2.0, 6, 4.0, {"memory/x": 1})


@pytest.mark.parametrize(("cut", "asked"), [(False, 1), (True, 2)])
def test_all_ranks_are_asked_where_one_cannot_answer_for_all(cut, asked):
    for method in ("publish", "save", "trial"):
        ranks = [Rank(number) for number in range(2)]
        answer = asyncio.run(TrainerGroup(ranks, cut).call(method, "x", returns=1))
        assert answer == [0, 0]
        assert sum(len(rank.calls) for rank in ranks) == asked
    ranks = [Rank(number) for number in range(2)]
    asyncio.run(TrainerGroup(ranks, cut).call("publish", "latest", "process", returns=1))
    assert all(rank.calls for rank in ranks), "each process needs its own copy"


def failing(*ranks, group=None):
    group = group or TrainerGroup(ranks, cut=False)

    async def fail():
        try:
            await group.call("train", [0, 1], 0)
        except Exception as error:
            assert asyncio.get_running_loop().time() < 1.0, "virtual seconds: what hangs takes 60"
            return error
        raise AssertionError("nothing was raised")

    return group, run_virtual(fail())


def test_a_dead_rank_is_named_not_those_that_lost_it():
    dead = WorkerDied("trainer-1: its Ray worker ended in 'train'", worker="trainer-1")
    group, error = failing(Rank(0, RuntimeError("Connection closed by peer")), Rank(1, dead), Rank(2, 60.0))
    assert error is dead
    assert error.__notes__ == ["trainer-2 waited for it in a collective and cannot go on"]
    with pytest.raises(WorkerDied, match="trainer-1: its Ray worker ended.*the trainer is gone"):
        asyncio.run(group.call("settled"))
    group.close()
    assert "close" not in group.ranks[0].calls, "it would wait for a rank that never ends"


def test_a_rank_that_does_not_answer_is_named_once_it_has_been_there():
    """Silence while processes start says nothing."""
    ranks = Rank(0, 0.5), Rank(1, 0.5, alive=False)
    group = TrainerGroup(ranks, cut=False)
    asyncio.run(group.call("describe"))
    for rank in ranks:
        rank.does = 60.0
    _, error = failing(*ranks, group=group)
    assert isinstance(error, WorkerDied)
    assert str(error).startswith("trainer-1: its process has not answered for 0.1 s in 'train'")


def test_a_rank_that_fails_alone_ends_the_wait_of_the_others():
    group, error = failing(Rank(0, 60.0), Rank(1, ValueError("a bad unit")))
    assert str(error) == "a bad unit"
    assert error.__notes__ == ["trainer-0 waited for it in a collective and cannot go on"]
    with pytest.raises(WorkerDied, match="a bad unit; the trainer is gone"):
        asyncio.run(group.call("settled"))


def test_what_all_ranks_raise_alike_leaves_them_able_to_save():
    group, error = failing(*(Rank(number, NonFiniteError("5 steps in a row")) for number in range(2)))
    assert isinstance(error, NonFiniteError)
    for rank in group.ranks:
        rank.does = None
    assert asyncio.run(group.call("settled")) == [0]
    group.close()
    assert all(rank.calls[-1] == "close" for rank in group.ranks)
