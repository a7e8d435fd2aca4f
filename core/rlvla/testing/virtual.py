"""Fake actors that take virtual time: the scheduler, the graph and its services are the real ones.

>>> scheduler = find("scheduler", "sync").load()(SyncConfig())
>>> played = play(scheduler, World(slots=(1, 1), latency=Latency(simulate=lambda slot, step: 1.0 + 2.0 * slot)))
>>> played.seconds
28.0

The trainer checks what it gets: every chunk of a unit once and in order, no unit twice, none too old.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlvla.algorithm import Algorithm
from rlvla.assembly import Entry
from rlvla.clock import VirtualLoop, run_virtual
from rlvla.configs import RunOptions
from rlvla.errors import WorkerDied
from rlvla.graph import Graph
from rlvla.receipts import (
    CallReceipt,
    Ended,
    GenerateReceipt,
    PublishReceipt,
    StepReceipt,
    TrainReceipt,
    UnitReport,
)
from rlvla.rollout import Row, Slot
from rlvla.runtimes import Call
from rlvla.scheduler import Scheduler
from rlvla.specs import AlgorithmSpec, SimulatorSpec, TaskSpec, UnitKind
from rlvla.testing.devices import Shared
from rlvla.timekeeping import CORES, Timekeeper
from rlvla.tracing import Span
from rlvla.watch import Watch
from rlvla.work import training_feed

Kind = Literal["simulator", "generator", "trainer"]


@dataclass(frozen=True)
class Latency:
    """What each call takes, in seconds, on a device that nobody else uses."""

    simulate: Callable[[int, int], float] = lambda slot, step: 1.0
    """Of a slot's n-th chunk step."""
    simulate_alone: Callable[[int, int], float] = lambda slot, step: 0.0
    """And then on cores of its own, which nobody shares."""
    reset: float = 0.0
    reset_row: float = 0.0
    """A reset of n rows takes ``reset + n * reset_row``."""
    reset_alone: float = 0.0
    """And then on cores of its own."""
    restart: float = 0.0
    """To start a worker in place of one that died."""
    generate_call: float = 0.0
    generate_row: float = 1.0
    """A batch of n rows takes ``generate_call + n * generate_row``."""
    train: Callable[[int], float] = lambda step: 4.0
    snapshot: float = 0.0
    """The trainer's part of a publication: it cannot train meanwhile."""
    transfer: float = 0.0
    """From the trainer to the generators, beside everything else."""
    offer: float = 0.0
    """The generator's part: it cannot act meanwhile."""


@dataclass(frozen=True)
class World:
    """What is played: a run without numbers."""

    slots: Sequence[int] = (1, 1)
    """Rows of each slot."""
    generators: int = 1
    stations: int = 1
    """Groups of generators and of the slots that they serve."""
    station: Callable[[Kind, int], int] | None = None
    """Of a slot or generator; None: they are dealt out in blocks."""
    on: Callable[[Kind, int], Sequence[tuple[str, float]]] = lambda kind, number: ()
    """Devices that an actor uses, all at once, and its share of each; none: one of its own. Slots whose first device is the
    same take turns, for schedulers."""
    capacities: Mapping[str, float] = field(default_factory=dict)
    """Of devices: the sum of shares that they give at full speed; 1 where nothing is said. ``cores`` are the CPU's."""
    controller_s: float = 0.0
    """Seconds that the controller, which does one thing at a time, is busy with each call of an actor."""
    unit: UnitKind = "window"
    window: int = 2
    partial_reset: bool = True
    group_size: int = 2
    units_per_step: int = 2
    steps: int = 2
    latency: Latency = field(default_factory=Latency)
    episode: Callable[[int, int], int] = lambda slot, number: 1
    """Chunks of a slot's n-th episode."""
    dies: Callable[[int, int], bool] = lambda slot, call: False
    """Whether a slot's worker dies in its n-th call (a reset or a chunk step), when that has taken its time."""
    dropped: Collection[int] = ()
    """Tickets that the algorithm refuses."""
    budget: float | None = None
    """``AlgorithmSpec.refill_budget``."""
    batch_rows: int | None = None
    stop_after: int | None = None
    """Training steps after which the run is told to stop."""
    evaluate_every: int = 0
    """Training steps between pauses of one second."""

    def station_of(self, kind: Kind, number: int) -> int:
        """Return the station of a slot or generator."""
        if self.station is not None:
            return self.station(kind, number)
        return number * self.stations // (self.generators if kind == "generator" else len(self.slots))


@dataclass(frozen=True)
class Mark:
    """How far everything was when a training step ended."""

    seconds: float
    batches: int
    """Calls of the generators that had begun."""
    busy: Mapping[str, float]
    """As in :class:`Played`; calls under way count when they end."""
    devices: Mapping[str, float]


@dataclass
class Played:
    """What became of it."""

    seconds: float
    tickets: list[list[int]]
    """Of each training step."""
    staleness: list[int]
    """Of each training step: of its oldest chunk."""
    batches: list[int]
    """Rows of each call of the generator."""
    versions: list[int]
    """Weights that each call acted with."""
    most_outstanding: int
    """Units that were begun and not trained on, at any time."""
    busy: Mapping[str, float]
    """Seconds that each actor worked, or waited for others on its device."""
    devices: Mapping[str, float]
    """Seconds that each device was used, and the controller."""
    marks: list[Mark]
    """Of each training step."""
    metrics: list[Mapping[str, float]]
    state: Mapping[str, Any]
    """Of the graph, at the end."""
    spans: list[Span]
    """Of every actor, in the order in which they ended."""


class _Place:
    """The devices of an actor."""

    def __init__(self, devices: Sequence[tuple[Shared, float]], core_share: float) -> None:
        self.core_share = core_share
        """Of a CPU core that it keeps busy."""
        self._devices = devices

    async def use(self, seconds: float) -> tuple[int, float]:
        """Work for so long, or longer where others do too; returns when that began, in ns, and the seconds that it took."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        began = loop.time_ns()
        if not self._devices:
            await asyncio.sleep(seconds)
        elif len(self._devices) == 1:
            device, share = self._devices[0]
            await device.use(seconds, share)
        else:
            await asyncio.gather(*(device.use(seconds, share) for device, share in self._devices))
        return began, (loop.time_ns() - began) / 1e9


class _Devices:
    """Those of a world, made when the first actor is placed on them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.named: dict[str, Shared] = {}
        self.of_actors: dict[str, list[str]] = {}
        """Actor to the devices that one at a time can use; cores, of which there are several, are counted otherwise."""

    def place(self, kind: Kind, number: int, actor: str) -> _Place:
        places = self._world.on(kind, number)
        if names := [name for name, _ in places if self._world.capacities.get(name, 1.0) == 1.0]:
            self.of_actors[actor] = names
        core_share = sum(share for name, share in places if name == CORES)
        return _Place([(self._device(name), share) for name, share in places], core_share)

    def _device(self, name: str) -> Shared:
        return self.named.setdefault(name, Shared(self._world.capacities.get(name, 1.0)))

    def of_slot(self, number: int) -> tuple[int, bool]:
        """Return the number of a slot's device, and whether it must share it."""
        places = self._world.on("simulator", number)
        if not places:
            return 0, False
        name = places[0][0]
        return list(self.named).index(name), self._world.capacities.get(name, 1.0) == 1.0


class _Controller:
    """Serves one call after the other."""

    def __init__(self, seconds: float) -> None:
        self.busy = 0.0
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def serve(self) -> None:
        if self._seconds:
            async with self._turn:
                await asyncio.sleep(self._seconds)
                self.busy += self._seconds


class FakeHandle:
    """An actor in virtual time: one call at a time, in the order of the calls. Methods are coroutines, or plain for ``send``."""

    def __init__(self, name: str, actor: Any, controller: _Controller, transfer: float = 0.0) -> None:
        self.name = name
        self.actor = actor
        self.busy = 0.0
        self._transfer = transfer
        self._controller = controller
        self._turn = asyncio.Lock()

    async def call(self, method: str, *arguments: Any, returns: int = 0) -> list[Any]:
        await self._controller.serve()
        if self._transfer and method == "offer":
            await asyncio.sleep(self._transfer)
        async with self._turn:
            began = asyncio.get_running_loop().time()
            try:
                result = await getattr(self.actor, method)(*arguments)
            finally:
                self.busy += asyncio.get_running_loop().time() - began
        return list(result) if returns else [result]

    def send(self, method: str, *arguments: Any, at_once: bool = False, instead: Call | None = None) -> None:
        getattr(self.actor, method)(*arguments)

    async def answers(self, seconds: float) -> bool:
        return True

    def kill(self) -> None:
        """Nothing hangs here."""

    def close(self, timeout_s: float = 0.0) -> None:
        """Nothing is held."""


class FakeSimulatorActor:
    """Rows count chunks; an episode ends when it has its number."""

    def __init__(self, slot: int, rows: int, world: World, place: _Place) -> None:
        self._slot = slot
        self._place = place
        self._world = world
        self._left = [0] * rows
        self._episodes = 0
        self._steps = 0
        self._calls = 0

    async def reset(
        self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Any], videos: Mapping[int, str]
    ) -> tuple[CallReceipt, None]:
        latency = self._world.latency
        seconds = latency.reset + len(rows) * latency.reset_row
        began, took = await self._place.use(seconds)
        if latency.reset_alone:
            await asyncio.sleep(latency.reset_alone)
        self._survive()
        for row in rows:
            self._left[row] = self._world.episode(self._slot, self._episodes)
            self._episodes += 1
        return CallReceipt(began, took + latency.reset_alone, seconds * self._place.core_share), None

    async def step(self, action: Any, rows: Sequence[int], given_up: Collection[int]) -> tuple[StepReceipt, None, None]:
        seconds = self._world.latency.simulate(self._slot, self._steps)
        alone = self._world.latency.simulate_alone(self._slot, self._steps)
        self._steps += 1
        began, took = await self._place.use(seconds)
        if alone:
            await asyncio.sleep(alone)
        self._survive()
        ended = []
        for row in rows:
            assert self._left[row] > 0, f"slot {self._slot}: row {row} was stepped after its episode ended"
            self._left[row] -= 1
            if not self._left[row]:
                ended.append(Ended(row, True, True, True, 1, 1.0))
            elif row in given_up:
                self._left[row] = 0
                ended.append(Ended(row, False, False, False, 1, 0.0))
        cpu_seconds = seconds * self._place.core_share
        receipt = StepReceipt(
            self._slot, len(rows), tuple(ended), took + alone, began_ns=began, cpu_seconds=cpu_seconds
        )
        return receipt, None, None

    def _survive(self) -> None:
        self._calls += 1
        if self._world.dies(self._slot, self._calls - 1):
            raise WorkerDied(f"sim-{self._slot} died in call {self._calls - 1}", worker=f"sim-{self._slot}")

    async def replace(self) -> None:
        await asyncio.sleep(self._world.latency.restart)
        self._left = [0] * len(self._left)


@dataclass
class _Acted:
    """Calls of all generators, in the order of their launch."""

    batches: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class FakeGeneratorActor:
    """Swaps offered weights in between two batches."""

    def __init__(self, latency: Latency, acted: _Acted, place: _Place) -> None:
        self._latency = latency
        self._place = place
        self._acted = acted
        self._version = -1
        self._staged = -1

    async def offer(self, weights: None, version: int) -> CallReceipt:
        began, took = await self._place.use(self._latency.offer)
        self._staged = version
        return CallReceipt(began, took)

    async def act(
        self,
        observations: Sequence[None],
        rows: Sequence[Sequence[int]],
        places: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        greedy: bool,
    ) -> tuple[Any, ...]:
        assert self._staged >= self._version, "versions went backwards"
        self._version = self._staged
        count = sum(map(len, rows))
        assert count > 0, "an empty batch"
        self._acted.batches.append(count)
        self._acted.versions.append(self._version)
        seconds = self._latency.generate_call + self._latency.generate_row * count
        began, took = await self._place.use(seconds)
        return GenerateReceipt(count, self._version, took, began), *(None for _ in rows)


class FakeTrainerActor:
    """Keeps (version, last) of every chunk, and checks units when they are trained on."""

    def __init__(self, world: World, place: _Place) -> None:
        self._world = world
        self._place = place
        self.version = 0
        self._units: dict[int, dict[int, list[tuple[int, bool]]]] = {}
        self._gone: Counter[int] = Counter()
        self.most_outstanding = 0
        self.tickets: list[list[int]] = []
        self.staleness: list[int] = []

    def record(
        self, before: None, action: None, outcome: None, after: None, version: int, entries: Sequence[Entry]
    ) -> None:
        for entry in entries:
            assert not self._gone[entry.ticket], f"ticket {entry.ticket} is played again"
            chunks = self._units.setdefault(entry.ticket, {}).setdefault(entry.member, [])
            assert entry.chunk == len(chunks), f"ticket {entry.ticket}: chunk {entry.chunk} came after {len(chunks)}"
            chunks.append((version, entry.last))
        self.most_outstanding = max(self.most_outstanding, len(self._units))

    def forget(self, ticket: int, member: int | None = None) -> None:
        if member is None:
            del self._units[ticket]
            self._gone[ticket] += 1
        else:
            self._units.get(ticket, {}).pop(member, None)

    async def train(self, tickets: Sequence[int], step: int) -> TrainReceipt:
        world, oldest = self._world, self.version
        for ticket in tickets:
            self._gone[ticket] += 1
            assert self._gone[ticket] == 1, f"ticket {ticket} is trained on twice, or was dropped"
            unit = self._units.pop(ticket)
            wanted = 1 if world.unit == "window" else world.group_size
            assert len(unit) == wanted, f"ticket {ticket} has {len(unit)} of {wanted} trajectories"
            for chunks in unit.values():
                ends = [last for _, last in chunks]
                assert world.unit == "group" or len(ends) <= world.window, f"ticket {ticket}: {len(ends)} chunks"
                assert ends == [False] * (len(chunks) - 1) + [True], f"ticket {ticket} is not whole: {ends}"
                oldest = min(oldest, *(version for version, _ in chunks))
        self.tickets.append(list(tickets))
        self.staleness.append(self.version - oldest)
        seconds = world.latency.train(step)
        began, took = await self._place.use(seconds)
        self.version += 1
        metrics = {"train/staleness_max": float(self.staleness[-1])}
        return TrainReceipt(self.version, took, metrics, began)

    async def publish(self, weights: str) -> tuple[PublishReceipt, None]:
        began, took = await self._place.use(self._world.latency.snapshot)
        return PublishReceipt(self.version, began, took), None


class _Spans(list[Span]):
    """Stands in for the run's timeline."""

    def add(self, span: Span) -> None:
        self.append(span)

    def flush(self) -> None:
        """They stay here."""


class _Listener:
    """Stands in for the hooks of a run."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, float]] = []

    def wants(self, hook: str) -> bool:
        return False

    def call(self, hook: str, /, **arguments: Any) -> None:
        if hook == "on_step":
            self.metrics.append(arguments["metrics"])


class _Judge:
    """Stands in for the algorithm: all that the controller asks of it."""

    def __init__(self, world: World) -> None:
        self._dropped = frozenset(world.dropped)
        self.spec = AlgorithmSpec(
            unit=world.unit,
            credit_level="chunk",
            ratio_level="chunk",
            values=False,
            window=world.window if world.unit == "window" else 1,
            partial_reset=world.partial_reset,
            group_size=world.group_size if world.unit == "group" else 1,
            refill_budget=world.budget,
        )

    def keep(self, report: UnitReport) -> bool:
        return report.ticket not in self._dropped


def play(scheduler: Scheduler, world: World) -> Played:
    """Run a scheduler in a world of fakes, in virtual time.

    Raises:
        Stuck: it waits for what cannot come.
        AssertionError: a unit was lost, doubled, out of order or too old.
    """
    return run_virtual(_play(scheduler, world))


async def _play(scheduler: Scheduler, world: World) -> Played:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    heard, acted, devices, controller = _Listener(), _Acted(), _Devices(world), _Controller(world.controller_s)
    trainer = FakeTrainerActor(world, devices.place("trainer", 0, "trainer"))
    handles = [FakeHandle("trainer", trainer, controller)]
    generators: list[list[FakeHandle]] = [[] for _ in range(world.stations)]
    for number in range(world.generators):
        actor = FakeGeneratorActor(world.latency, acted, devices.place("generator", number, f"generator-{number}"))
        handles.append(FakeHandle(f"generator-{number}", actor, controller, world.latency.transfer))
        generators[world.station_of("generator", number)].append(handles[-1])
    slots, first, shared = [], 0, False
    for number, size in enumerate(world.slots):
        simulator_actor = FakeSimulatorActor(number, size, world, devices.place("simulator", number, f"sim-{number}"))
        handles.append(FakeHandle(f"sim-{number}", simulator_actor, controller))
        device, shared = devices.of_slot(number)
        station = world.station_of("simulator", number)
        slots.append(Slot(number, handles[-1], [Row(first + place) for place in range(size)], device, station))
        first += size
    judge: Any = _Judge(world)
    simulator = SimulatorSpec((), (), (), 10.0, 1, (TaskSpec("a"), TaskSpec("b")))
    algorithm: Algorithm = judge
    hooks: Any = heard

    marks: list[Mark] = []

    async def periodic(step: int) -> None:
        marks.append(Mark(loop.time(), len(acted.batches), *so_far()))
        if step == world.stop_after:
            graph.stopping = True
        if world.evaluate_every and step % world.evaluate_every == 0:
            async with graph.paused():
                before = len(acted.batches)
                await asyncio.sleep(1.0)
                assert len(acted.batches) == before, "somebody played in a pause"

    def so_far() -> tuple[dict[str, float], dict[str, float]]:
        used = {name: one.so_far() for name, one in devices.named.items()}
        return {handle.name: handle.busy for handle in handles}, {**used, "controller": controller.busy}

    spans = _Spans()
    graph = Graph(
        slots=slots,
        generators=generators,
        trainer=handles[0],
        algorithm=algorithm,
        feed=training_feed(
            judge.spec, simulator, [len(slot.rows) for slot in slots], 0, RunOptions(), world.units_per_step
        ),
        hooks=hooks,
        watch=Watch(),
        until=world.steps,
        units_per_step=world.units_per_step,
        max_staleness=scheduler.spec.max_staleness,
        batch_rows=world.batch_rows,
        shared_devices=shared,
        periodic=periodic,
        times=Timekeeper(scheduler.spec, spans, devices.of_actors, world.capacities.get(CORES)),
    )
    graph.start(world.steps)
    await scheduler.run(graph, world.steps)
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"the scheduler has returned and left tasks behind: {', '.join(sorted(left))}"
    busy, used = so_far()
    return Played(
        seconds=loop.time(),
        tickets=trainer.tickets,
        staleness=trainer.staleness,
        batches=acted.batches,
        versions=acted.versions,
        most_outstanding=trainer.most_outstanding,
        busy=busy,
        devices=used,
        marks=marks,
        metrics=heard.metrics,
        state=graph.state(),
        spans=list(spans),
    )
