"""Calls of actors under Ray: their order, how few they are, and what becomes of those that never come."""

import asyncio
import os
import pickle
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray_runs import MARKS

from rlvla import trainers
from rlvla.assembly import Entry
from rlvla.errors import PayloadLost
from rlvla.receipts import TrainReceipt

pytestmark = MARKS


def test_calls_keep_their_order_and_hold_up_nobody(ray):
    """Ray delivers them in any order; while one actor works, another one's calls and a ping are answered."""
    from rlvla.runtimes.ray_host import Host, packed

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
        host = Host({"one": Notes, "other": Notes})

        def send(number, *arguments):
            return asyncio.create_task(host.send(*packed(("one", number, [("note", arguments)]))))

        async def heard(name, number):
            return pickle.loads(await host.call(*packed((name, number, [], ("all", ()), 0))))

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

    async def stand(self):
        pass

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
    from rlvla.runtimes.ray import _TOGETHER, RayHandle
    from rlvla.runtimes.ray_host import Host

    async def played():
        host = Host({"rank": Diary})
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
    from rlvla.runtimes.ray import RayHandle
    from rlvla.runtimes.ray_host import Host

    class Rank(Diary):
        def record(self, *payload):
            self.heard.append([one.ticket for one in payload[-1] if one is not None])

        def train(self, tickets, step, of_all):
            return TrainReceipt(version=1, seconds=0.0, metrics={"heard": sum(map(len, self.heard))})

    async def played():
        wires = [Wire(Host({f"trainer-{number}": Rank})) for number in range(4)]
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

    from rlvla.runtimes.ray_host import Unpacker, packed

    one, other = library.put("one"), library.put([2])
    data, *references = packed([("record", (one, {"b": [other, one]}, 3))])
    assert references == [one, other]
    ((method, arguments),) = Unpacker(data, library.get(references)).load()
    assert (method, arguments) == ("record", ("one", {"b": [[2], "one"]}, 3))


def notes():
    """Return an actor's class that answers with what it has heard; workers get it whole, since they do not find these files."""

    class Notes:
        def __init__(self):
            self.heard = []

        def note(self, what):
            self.heard.append(what)
            return self.heard

    return Notes


def lost():
    """Return a reference to what nobody has any more."""
    import ray as library

    @library.remote
    def gone():
        raise RuntimeError("the machine that held it is gone")

    return gone.remote()


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "called"])
def test_what_was_lost_on_its_way_is_said_and_holds_up_nobody(ray, sent):
    """Ray does not make a call whose arguments are lost, and calls are made in their order."""

    async def play():
        (handle,) = ray.start({"notes": notes()})
        gone = lost()
        await handle.call("note", 1)
        if sent:
            handle.send("note", gone, at_once=True)
            handle.send("note", 2)
        with pytest.raises(
            PayloadLost, match=r"notes: what 'note' was given is lost, .* \(the machine that held it is"
        ):
            await asyncio.wait_for(handle.call("note", 3 if sent else gone), 60)
        return await asyncio.wait_for(handle.call("note", 4), 60)

    assert asyncio.run(play()) == [[1, 2, 4] if sent else [1, 4]]


@pytest.mark.parametrize("beside", [True, False], ids=["beside a call", "sent"])
def test_something_stands_in_for_what_was_lost_in_its_place_among_what_was_not(ray, beside):
    import ray as library

    async def play():
        (handle,) = ray.start({"notes": notes()})
        gone, here = lost(), library.put("here")
        handle.send("note", 1)
        handle.send("note", gone, instead=("note", ("lost",)))
        handle.send("note", here)
        if not beside:
            handle.send("note", 2, at_once=True)
            handle.send("note", gone, at_once=True, instead=("note", ("lost",)))
        return await asyncio.wait_for(handle.call("note", 3), 60)

    assert asyncio.run(play()) == [[1, "lost", "here", *([] if beside else [2, "lost"]), 3]]


def test_a_call_that_was_given_up_and_never_came_holds_up_nobody(ray):
    """Another error ends who waited for it before Ray says that it is lost."""

    async def play():
        (handle,) = ray.start({"notes": notes()})
        given_up = asyncio.ensure_future(handle.call("note", lost()))
        await asyncio.sleep(0)
        given_up.cancel()
        return await asyncio.wait_for(handle.call("note", 1), 60)

    assert asyncio.run(play()) == [[1]]


class Reached:
    """A worker as Ray's handles of it: methods are called by ``remote``."""

    def __init__(self, host):
        self._host = host

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self._host, name))


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "called"])
def test_a_call_that_never_came_is_not_told_to_the_worker_that_took_the_place(sent):
    """Where a machine is lost and another worker stands already; there, the number is that of another call."""
    from ray.exceptions import ObjectLostError

    from rlvla.runtimes.ray import RayHandle
    from rlvla.runtimes.ray_host import Host

    async def play():
        hosts = [Host({"notes": notes()}) for _ in range(2)]
        wire = Wire(hosts[0])
        wire.host = Reached(hosts[0])
        wire.submit = lambda parts, arguments: answered
        answered = asyncio.get_running_loop().create_future()
        handle = RayHandle("notes", wire)
        if sent:
            handle.send("note", 1, at_once=True)
            told = next(iter(handle._leaving))
        else:
            told = asyncio.ensure_future(handle.call("note", 1))
            await asyncio.sleep(0)
        wire.host, wire.life = Reached(hosts[1]), 1
        answered.set_exception(ObjectLostError("00" * 28, "nobody", "nowhere"))
        await asyncio.gather(told, return_exceptions=True)
        return [host._next["notes"] for host in hosts]

    assert asyncio.run(play()) == [1, 0]
