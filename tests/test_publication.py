"""Weights on their way to generators, while one of them is replaced."""

import asyncio
from types import SimpleNamespace

from rlvla.errors import TransportError
from rlvla.graph import Graph
from rlvla.receipts import CallReceipt, PublishReceipt
from rlvla.watch import Watch


class Trainer:
    name = "trainer"

    def __init__(self):
        self.version = 0

    async def call(self, method, weights, via="reference", returns=0):
        assert method == "publish"
        self.version += 1
        return [PublishReceipt(self.version, 0, 0.0), f"weights {self.version}"]


class BrokenTrainer(Trainer):
    """Its first broadcast is under way when a generator dies, and its second says so; the store waits to be told."""

    def __init__(self):
        super().__init__()
        self.stores = asyncio.Event()
        self.ways = []

    async def call(self, method, weights, via="reference", returns=0):
        self.ways.append(via)
        if via == "broadcast" and self.version:
            raise TransportError("weights could not be sent: connection reset by peer")
        if via == "store":
            await self.stores.wait()
        return await super().call(method, weights, via, returns)


class Generator:
    """Its first offer takes until it is told to end, as one does that is started again."""

    name = "generator"

    def __init__(self):
        self.offers = []
        self.goes_on = asyncio.Event()

    async def call(self, method, told, version, returns=0):
        assert method == "offer"
        self.offers.append((told, version))
        if len(self.offers) == 1:
            await self.goes_on.wait()
        return [CallReceipt(0, 0.0)]


class NewGenerator(Generator):
    """It takes the place of a dead one, which the group of the broadcast cannot let in."""

    async def call(self, method, told, version, returns=0):
        receipt = await super().call(method, told, version, returns)
        if version == 1 and len(self.offers) == 1:
            raise TransportError("this generator has no way to receive weights by broadcast")
        return receipt


def graph_of(generator, heard, trainer=None, transport="reference"):
    spec = SimpleNamespace(refill_budget=0, unit="window")
    return Graph(
        slots=[],
        generators=[[generator]],
        trainer=trainer or Trainer(),
        algorithm=SimpleNamespace(keep=None, spec=spec),
        feed=None,
        hooks=SimpleNamespace(call=lambda name, **about: heard.append(about["policy_version"])),
        watch=Watch(),
        until=9,
        units_per_step=1,
        max_staleness=1,
        batch_rows=None,
        shared_devices=False,
        periodic=None,
        transport=transport,
    )


def test_a_publication_that_a_later_one_overtook_is_over():
    async def play():
        heard = []
        generator = Generator()
        graph = graph_of(generator, heard)
        first = asyncio.create_task(graph.publish())
        while not generator.offers:
            await asyncio.sleep(0)
        await graph.publish()
        generator.goes_on.set()
        await first
        return heard, generator.offers

    heard, offers = asyncio.run(play())
    assert heard == [2], "version 2 acts, and never 1 after it"
    assert offers == [("weights 1", 1), ("weights 2", 2)]


def test_a_broken_broadcast_may_be_found_out_at_both_ends_at_once():
    async def play():
        heard = []
        generator, trainer = NewGenerator(), BrokenTrainer()
        graph = graph_of(generator, heard, trainer, "broadcast")
        first = asyncio.create_task(graph.publish())
        while not generator.offers:
            await asyncio.sleep(0)
        second = asyncio.create_task(graph.publish())
        while "store" not in trainer.ways:
            await asyncio.sleep(0)
        generator.goes_on.set()
        for _ in range(9):
            await asyncio.sleep(0)
        trainer.stores.set()
        await asyncio.gather(first, second)
        return heard, trainer.ways, graph.transport

    heard, ways, transport = asyncio.run(play())
    assert transport == "store" and ways[:2] == ["broadcast", "broadcast"] and set(ways[2:]) == {"store"}
    assert heard == sorted(set(heard)), "the acting version never goes back"
