"""Weights on their way to generators, while one of them is replaced."""

import asyncio
from types import SimpleNamespace

from rlvla.graph import Graph
from rlvla.receipts import CallReceipt, PublishReceipt
from rlvla.watch import Watch


class Trainer:
    name = "trainer"

    def __init__(self):
        self.version = 0

    async def call(self, method, *arguments, returns=0):
        assert method == "publish"
        self.version += 1
        return [PublishReceipt(self.version, 0, 0.0), f"weights {self.version}"]


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


def graph_of(generator, heard):
    spec = SimpleNamespace(refill_budget=0, unit="window")
    return Graph(
        slots=[],
        generators=[[generator]],
        trainer=Trainer(),
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
