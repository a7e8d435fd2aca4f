"""The actor graph as a scheduler sees it: slots, and a handful of things to wait for.

Everything that decides *what* is computed lives here and in the services below (tickets, batches, canonical order,
records, versions, metrics); a scheduler decides only *when*. The controller's thread runs it; it touches receipts (bytes)
and forwards references to everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlvla import latency
from rlvla.algorithm import Algorithm
from rlvla.assembly import Entry
from rlvla.batcher import Batcher
from rlvla.errors import TransportError, WorkerDied
from rlvla.hooks import Hooks
from rlvla.metrics import Meter
from rlvla.receipts import Ended, GenerateReceipt, Member, PublishReceipt, SlotReceipt, StepReceipt, UnitReport
from rlvla.rollout import Rollout, Slot, surviving
from rlvla.runtimes import Handle
from rlvla.tickets import Tickets
from rlvla.timekeeping import Timekeeper
from rlvla.watch import Watch
from rlvla.work import GroupFeed, WindowFeed, Work

R = TypeVar("R")
log = logging.getLogger(__name__)


class _News:
    """Wakes whoever waits for something to change; nobody polls, and nothing that changed is missed."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def after(self, count: int) -> None:
        """Wait until more has changed than the first ``count`` changes."""
        while self.count == count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future


class Graph:
    """What a scheduler may do. See :class:`rlvla.scheduler.Scheduler` for the loop.

    Args:
        slots: of simulator actors.
        generators: handles, of each station (``Slot.station``).
        trainer: handle.
        algorithm: asked which units to keep; its spec says what a unit is.
        feed: of training units.
        hooks: listeners.
        watch: of calls that take too long.
        until: training steps of the run.
        units_per_step: units that a training step consumes.
        max_staleness: versions that a unit's oldest chunk may lie behind the one it trains.
        batch_rows: most rows in one call of the generator; None: no bound.
        shared_devices: the slots of a device take turns on it; else each has cores of its own.
        periodic: called after each training step (evaluation, checkpoint), with the number of steps done.
        video: path for a training episode's video, or None, by episode number.
        times: takes the spans of actors; None: one that writes none.
        transport: how weights travel (:mod:`rlvla.transport`).
    """

    def __init__(
        self,
        *,
        slots: list[Slot],
        generators: Sequence[Sequence[Handle]],
        trainer: Handle,
        algorithm: Algorithm,
        feed: WindowFeed | GroupFeed,
        hooks: Hooks,
        watch: Watch,
        until: int,
        units_per_step: int,
        max_staleness: int,
        batch_rows: int | None,
        shared_devices: bool,
        periodic: Callable[[int], Awaitable[None]],
        video: Callable[[int], Path | None] = lambda episode: None,
        times: Timekeeper | None = None,
        transport: str = "reference",
    ) -> None:
        self.slots = slots
        self.until = until
        self.stopping = False
        """Set from outside: finish the step at hand and return."""
        self.steps_done = 0
        self.version = 0
        """Of the trainer's weights."""
        self.feed = feed
        self._generators = [one for some in generators for one in some]
        self._trainer = trainer
        self._algorithm = algorithm
        self._hooks = hooks
        self._watch = watch
        self._units_per_step = units_per_step
        self._periodic = periodic
        self.transport = transport
        self._video = video
        self._rollout = Rollout(slots, feed, self, video=self._next_video)
        self._tickets = Tickets(units_per_step, max_staleness, algorithm.keep, algorithm.spec.refill_budget)
        self.meter = Meter(times)
        waited = self.meter.times.waited
        self._batchers = [Batcher(self._acting(some), batch_rows, len(some), waited) for some in generators]
        self._devices: defaultdict[int, latency.DeviceTime] = defaultdict(latency.DeviceTime)
        self.shared_devices = shared_devices
        """The slots of a device take turns on it; else each has cores of its own."""
        self._members: dict[int, dict[int, Ended]] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        """Oldest and newest version in each unit that has begun and is not taken."""
        self._training: list[int] = []
        """Tickets that the trainer works on."""
        self._offered: tuple[Any, int, str] | None = None
        """What generators were told of the newest weights that they have, or are about to have, their version and kind."""
        self._resending = asyncio.Lock()
        self._snapshot: asyncio.Future[None] | None = None
        """Pending while a publication has not copied the trainer's weights yet."""
        self._news = _News()
        """Tickets were opened or judged, weights swapped, slots came to a border, the run ends."""
        self._busy: set[int] = set()
        """Slots between two borders: they begin, wait for a chunk, or execute one."""
        self._pauses = 0
        self.over = False
        """No slot gets more work: the scheduler is about to return."""

    # ---- what schedulers use ------------------------------------------------------------------------------------

    def admit(self) -> int:
        """Open the tickets of all units that may start now; returns how many. Zero, and none is played: train.

        Raises:
            ValueError: no weights were published.
        """
        count = self._tickets.admissible(self.until)
        if count:
            self._tickets.open(self.feed.open(count))
            self._news.tell()
        return count

    async def begin(self, slots: Sequence[Slot]) -> list[Slot]:
        """Give admitted work to free rows and start the episodes it needs; returns the slots that have work.

        This is a slot's border: while the run evaluates or saves, slots wait here.
        """
        while self._pauses or self.over:
            for slot in slots:
                self._batchers[slot.station].leave(slot)
            if self.over:
                return []
            await self._news.after(self._news.count)
        for slot in slots:
            self._busy.add(slot.number)
            self._batchers[slot.station].expect(slot)
        try:
            return await self._timed("reset", self._rollout.begin(slots))
        finally:
            for slot in slots:
                if not slot.working():
                    self._batchers[slot.station].leave(slot)
                    self._border(slot)

    async def find_work(self, slots: Sequence[Slot]) -> list[Slot]:
        """Wait until some of these slots have a chunk to play, opening the tickets that may be opened; returns those.

        Returns none where only training or new weights bring more work, or the run ends.
        """
        while not self.over:
            seen = self._news.count
            if self._tickets.version >= 0:  # else the first publication is under way
                self.admit()
                if working := await self.begin(slots):
                    return working
                if not self._tickets.playing and self._news.count == seen:
                    return []
            await self._news.after(seen)
        for slot in slots:
            self._batchers[slot.station].leave(slot)
        return []

    async def generate(self, slots: Sequence[Slot], alone: bool = False) -> None:
        """Choose the next chunk for the working rows of these slots.

        Args:
            slots: that wait for it.
            alone: in batches without others, launched as soon as a generator is idle. Else in one batch with whoever
                waits too, where that pays.
        """
        self.meter.times.together([slot.number for slot in slots])
        stations = sorted({slot.station for slot in slots})
        if len(stations) == 1:
            return await self._batchers[stations[0]].request(slots, alone)
        parts = [[slot for slot in slots if slot.station == one] for one in stations]
        await asyncio.gather(
            *(self._batchers[one].request(part, alone) for one, part in zip(stations, parts, strict=True))
        )

    async def step(self, slot: Slot) -> None:
        """Execute the chunk that was chosen for a slot; complete units are submitted by themselves."""
        try:
            with self._devices[slot.device].step(asyncio.get_running_loop().time):
                await self._timed("simulate", self._rollout.step(slot), slot.actor.name)
        finally:
            self._border(slot)

    def round_seconds(self, stages: int) -> float | None:
        """Predict how long every slot plays one chunk, where each device's slots alternate with the generators in stages.

        See :func:`rlvla.latency.round_seconds`. None before generators and slots were measured.
        """
        curve = next((found for one in self._batchers if (found := one.curve.fit()) is not None), None)
        measured = [one for one in self._devices.values() if one.steps]
        if curve is None or not measured:
            return None
        return latency.round_seconds(
            curve,
            len(self._generators),
            max(measured, key=lambda one: one.busy / one.steps),
            len({slot.device for slot in self.slots}),
            self.shared_devices,
            len(self.slots),
            sum(len(slot.rows) for slot in self.slots),
            stages,
        )

    async def complete(self) -> None:
        """Wait until all units of the next training step are finished."""
        while not self._tickets.complete:
            await self._news.after(self._news.count)

    async def train(self) -> None:
        """Do a training step on the oldest surviving units, then what is due (evaluation, checkpoint).

        Raises:
            ValueError: units of the step are missing.
        """
        loop = asyncio.get_running_loop()
        self._training = self._tickets.take()
        for ticket in self._training:
            self._versions.pop(ticket, None)
        if self._snapshot is not None:
            await self._snapshot
        self.report("train", lambda: 0.0)
        (receipt,) = await self._timed(
            "train", self._watch("trainer", self._trainer.call("train", self._training, self.steps_done))
        )
        bound, found = self._tickets.max_staleness, receipt.metrics.get("train/staleness_max", 0.0)
        assert found <= bound, f"step {self.steps_done} trained on chunks {found} versions old, admitted up to {bound}"
        if self._training:
            self.feed.trained(self._training)
        if receipt.lost:
            log.warning("step %d left out %d units, lost with a machine", self.steps_done + 1, receipt.lost)
            self.meter.lost += receipt.lost
        spent = receipt.began_ns, receipt.seconds
        self.meter.times.worked(self._trainer.name, "train", *spent, version=receipt.version, rows=len(self._training))
        metrics = self.meter.finish_step(receipt, loop.time(), len(self._training))
        self._training = []
        self.version = receipt.version
        self.steps_done += 1
        self._hooks.call("on_step", step=self.steps_done, metrics=metrics, histograms=self.meter.times.histograms)
        with self._watch.excused():
            await self._periodic(self.steps_done)
        self.meter.begin_step(loop.time(), self.steps_done + 1)
        self.report("rollout", self._fraction)

    def publish(self, weights: str = "latest") -> Coroutine[Any, Any, None]:
        """Bring the trainer's weights (or their average, ``"ema"``) to the generator; used from its next batch on.

        Await it, or make it a task beside which rollouts and the next training step go on: the trainer's weights are
        copied before that step changes them.
        """
        snapshot = self._snapshot = asyncio.get_running_loop().create_future()
        return self._publish(weights, snapshot)

    async def new_weights(self) -> None:
        """Wait until the generator has newer weights than now, or the run ends."""
        version = self._tickets.version
        while self._tickets.version == version and not self.over:
            await self._news.after(self._news.count)

    def finish(self) -> None:
        """Send every slot home: those that wait for work get none, the others end after their present chunk."""
        self.over = True
        self._news.tell()

    # ---- what the engine uses -----------------------------------------------------------------------------------

    def start(self, until: int) -> None:
        """Get ready for a scheduler's ``run``."""
        self.until, self.over = until, False
        self.meter.begin_step(asyncio.get_running_loop().time(), self.steps_done + 1)

    def abandon(self) -> None:
        """Forget calls under way, after a run that went wrong."""
        for batcher in self._batchers:
            batcher.abandon()
        self._busy.clear()
        self._snapshot = None
        self.finish()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Wait until every slot is at its border, and keep them there."""
        self._pauses += 1
        try:
            while self._busy:
                await self._news.after(self._news.count)
            yield
        finally:
            self._pauses -= 1
            self._news.tell()

    async def replace(self, slot: Slot, error: WorkerDied) -> None:
        """Start a slot's dead worker again, outside a chunk step."""
        await self._rollout.replace(slot, error)

    # ---- weights and batches ------------------------------------------------------------------------------------

    async def _publish(self, weights: str, snapshot: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            made, told = await self._timed("publish", self._sent(weights))
        finally:
            if not snapshot.done():
                snapshot.set_result(None)
            if self._snapshot is snapshot:
                self._snapshot = None
        version, times = made.version, self.meter.times
        times.worked(self._trainer.name, "publish", made.began_ns, made.seconds, version=version)
        self._offered = told, version, weights
        await self._timed("publish", asyncio.gather(*map(self.offer, self._generators)))
        if (
            version < self._tickets.version
        ):  # a later one was faster, while a generator in the place of a dead one started
            return
        # A batch that is launched after the offers' receipts swaps first, so these weights act from now on.
        self._tickets.version = version
        self._news.tell()
        self._hooks.call("on_weights_published", policy_version=version, seconds=loop.time() - began)

    async def _sent(self, weights: str) -> tuple[PublishReceipt, Any]:
        """Let the trainer send its weights; returns its receipt and what generators are to be told."""
        tried = self.transport
        try:
            made, told = await self._trainer.call(
                "publish", weights, *(() if tried == "reference" else (tried,)), returns=1
            )
        except TransportError as error:
            if tried == "store":
                raise
            self._leave_transport(error)
            return await self._sent(weights)
        return made, told

    def _leave_transport(self, error: TransportError) -> None:
        """Send by the store from now on. A trainer that sends and a generator that receives may both find out, in any order."""
        if self.transport == "store":
            return
        log.warning("%s; from now on weights go through the object store", error)
        self.transport = "store"

    async def offer(self, generator: Handle) -> None:
        """Bring the newest weights to a generator."""
        assert self._offered is not None, "nothing was published"
        offered = self._offered

        def newest() -> Awaitable[Any]:  # also for one that took the place of another, whatever was offered to that
            nonlocal offered
            assert self._offered is not None, "nothing was published"
            offered = self._offered
            return generator.call("offer", *offered[:2])

        try:
            (receipt,) = await self._surviving(generator, newest)
        except TransportError as error:  # one that took the place of another belongs to no group
            async with self._resending:
                if self._offered is offered:
                    self._leave_transport(error)
                    made, told = await self._sent(offered[2])
                    self._offered = told, made.version, offered[2]
            return await self.offer(generator)
        self.meter.times.worked(generator.name, "offer", receipt.began_ns, receipt.seconds, version=offered[1])

    async def _surviving(self, generator: Handle, calling: Callable[[], Awaitable[R]], anew: bool = False) -> R:
        """Call a generator, and the one that its runtime makes in its place where it dies; ``anew``: that needs weights."""

        def restarted() -> None:
            self.meter.times.restarted(generator.name, asyncio.get_running_loop().time())

        return await surviving(generator, calling, restarted, partial(self.offer, generator) if anew else None)

    def _acting(self, generators: Sequence[Handle]) -> Callable[[Sequence[Slot], int], Coroutine[Any, Any, None]]:
        """Return what a station's batcher calls."""

        async def act(slots: Sequence[Slot], number: int) -> None:
            offered = self._tickets.version
            generator = generators[number]
            choosing = partial(self._rollout.generate, slots, generator)
            receipt = await self._timed("generate", self._surviving(generator, choosing, anew=True), generator.name)
            if receipt.version < offered:  # it took the place of one that died in an offer, and waits for its weights
                await self.offer(generator)
                receipt = await self._timed("generate", self._surviving(generator, choosing, anew=True), generator.name)
            assert receipt.version >= offered, f"version {receipt.version} acted after {offered} was offered"

        return act

    def _border(self, slot: Slot) -> None:
        self._busy.discard(slot.number)
        if self._pauses:
            self._news.tell()

    # ---- what the rollout reports -------------------------------------------------------------------------------

    def played(self, slot: Slot, before: Any, outcome: Any, after: Any, entries: Sequence[Entry]) -> None:
        """Forward a chunk step to the trainer."""
        chunk = before, slot.action, outcome, after, slot.version, entries
        self._trainer.send("record", *chunk, instead=("miss", (entries,)))
        version, versions = slot.version, self._versions
        for entry in entries:
            known = versions.get(entry.ticket)
            if known is None:
                versions[entry.ticket] = version, version
            elif not known[0] <= version <= known[1]:
                versions[entry.ticket] = min(known[0], version), max(known[1], version)

    def stepped(self, receipt: StepReceipt, entries: Sequence[Entry]) -> None:
        """Count a chunk step."""
        self.meter.stepped(receipt, entries)
        if receipt.ended:
            played = {entry.row: entry.ticket for entry in entries}
            rows = self.slots[receipt.slot].rows
            for one in receipt.ended:
                self.feed.ended(played[one.row], rows[one.row].number, one.success)
        for path in receipt.videos:
            self._hooks.call("on_video", step=self.steps_done, path=Path(path))
        self.report("rollout", self._fraction)

    def finished(self, work: Work, ended: Ended | None) -> None:
        """Submit a unit whose last trajectory is complete, if the algorithm keeps it."""
        members = self._members.setdefault(work.ticket, {})
        if ended is not None:
            members[work.member] = ended
        spec = self._algorithm.spec
        if spec.unit == "group" and len(members) < spec.group_size:
            return
        del self._members[work.ticket]
        oldest, newest = self._versions[work.ticket]
        report = UnitReport(
            ticket=work.ticket,
            kind=spec.unit,
            members=tuple(
                Member(one.episode_return, one.success, one.steps)
                for _, one in sorted(members.items())
                if spec.unit == "group"
            ),
            oldest_version=oldest,
            newest_version=newest,
        )
        self.meter.judged(report)
        dropped = self._tickets.finish(report)
        for ticket in dropped:
            self.meter.filtered += 1
            self._versions.pop(ticket)
            self._trainer.send("forget", ticket)
        if dropped or self._tickets.complete or not self._tickets.playing:
            self._news.tell()

    def lost(self, work: Work) -> None:
        """Drop what a dead worker's row had played."""
        self.meter.lost += 1
        if self._algorithm.spec.unit == "window":
            self._versions.pop(work.ticket, None)
        self.feed.lost(work.ticket)
        self._trainer.send("forget", work.ticket, work.member)

    def worked(self, actor: str, phase: str, receipt: SlotReceipt, slots: Sequence[Slot], rows: int) -> None:
        """Count an actor's work."""
        self.meter.times.worked(
            actor,
            phase,
            receipt.began_ns,
            receipt.seconds,
            slots=[slot.number for slot in slots],
            version=receipt.version if isinstance(receipt, GenerateReceipt) else slots[0].version,
            rows=rows,
            cpu_seconds=0.0 if isinstance(receipt, GenerateReceipt) else receipt.cpu_seconds,
            peak_bytes=receipt.peak_bytes if isinstance(receipt, StepReceipt) else 0,
        )

    def replaced(self, slot: Slot) -> None:
        """Count a worker that died."""
        self.meter.times.restarted(slot.actor.name, asyncio.get_running_loop().time())

    # ---- bookkeeping --------------------------------------------------------------------------------------------

    def _next_video(self, work: Work) -> Path | None:
        self.meter.started += 1
        return self._video(self.meter.started - 1)

    async def _timed(self, phase: str, waiting: Awaitable[R], who: str = "") -> R:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._watch(phase, waiting, who)
        finally:
            self.meter.add_time(phase, began, loop.time())

    def _fraction(self) -> float:
        """Return how much of the next step's trajectories is played, in [0, 1]."""
        spec = self._algorithm.spec
        if spec.unit == "window":
            playing = sum(row.work.chunk for slot in self.slots for row in slot.rows if row.work is not None)
            done = self._tickets.survivors + playing / spec.window
        else:
            done = self._tickets.survivors + sum(map(len, self._members.values())) / spec.group_size
        return min(1.0, done / self._units_per_step)

    def report(self, phase: Any, fraction: Callable[[], float]) -> None:
        """Tell listeners how far the present phase is, a few times a second at most."""
        if self._hooks.wants("on_progress") and self.meter.due(phase):
            progress = self.meter.progress(phase, fraction(), self.steps_done, self.until)
            self._hooks.call("on_progress", progress=progress)

    def state(self, trained: int | None = None) -> dict[str, Any]:
        """Return counters and cursors, for a resume; exact where no unit is open.

        Units that are open, or finished and not trained on yet, keep their tickets: a resumed run plays them from their
        start, from the same seeds, and counts those that had begun as lost.

        Args:
            trained: version of the weights that are saved beside; None: ``version``. One more than that: the training
                step under way has ended, and nobody has heard of it.
        """
        done = trained is not None and trained > self.version
        training = [] if done else self._training
        if done and self._training:
            self.feed.trained(self._training)
        outstanding = [*training, *self._tickets.outstanding()]
        return {
            "steps_done": self.steps_done + done,
            "version": self.version + done,
            "feed": self.feed.state(),
            "outstanding": outstanding,
            "begun": len(training) + sum(ticket in self._versions for ticket in outstanding),
            "live": [row.live for slot in self.slots for row in slot.rows],
            "meter": self.meter.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` returned; the rows' episodes are restored apart."""
        self.steps_done = self._tickets.step = state["steps_done"]
        self.version = state["version"]
        self.feed.load_state(state["feed"])
        outstanding = state.get("outstanding", [])
        self.feed.open_again(outstanding)
        self._tickets.open(outstanding)
        self.meter.load_state(state["meter"])
        self.meter.lost += state.get("begun", 0)
