"""The actor graph as a scheduler sees it: slots, and a handful of things to wait for.

Everything that decides *what* is computed lives here and in the services below (tickets, canonical order, records,
versions, metrics); a scheduler decides only *when*. The controller's thread runs it; it touches receipts (bytes) and
forwards references to everything else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlvla.algorithm import Algorithm
from rlvla.assembly import Entry
from rlvla.hooks import Hooks
from rlvla.metrics import Meter
from rlvla.receipts import Ended, Member, StepReceipt, UnitReport
from rlvla.rollout import Rollout, Slot
from rlvla.runtimes import Handle
from rlvla.watch import Watch
from rlvla.work import GroupFeed, WindowFeed, Work

R = TypeVar("R")


class Graph:
    """What a scheduler may do. See :class:`rlvla.scheduler.Scheduler` for the loop.

    Args:
        slots: of simulator actors.
        generator: handle.
        trainer: handle.
        algorithm: asked which units to keep; its spec says what a unit is.
        feed: of training units.
        hooks: listeners.
        until: training steps of the run.
        units_per_step: units that a training step consumes.
        periodic: called after each training step (evaluation, checkpoint), with the number of steps done.
        video: path for a training episode's video, or None, by episode number.
    """

    def __init__(
        self,
        *,
        slots: list[Slot],
        generator: Handle,
        trainer: Handle,
        algorithm: Algorithm,
        feed: WindowFeed | GroupFeed,
        hooks: Hooks,
        watch: Watch,
        until: int,
        units_per_step: int,
        periodic: Callable[[int], Awaitable[None]],
        video: Callable[[int], Path | None] = lambda episode: None,
    ) -> None:
        self.slots = slots
        self.until = until
        self.stopping = False
        """Set from outside: finish the step at hand and return."""
        self.steps_done = 0
        self.version = 0
        self.feed = feed
        self._generator = generator
        self._trainer = trainer
        self._algorithm = algorithm
        self._hooks = hooks
        self._watch = watch
        self._units_per_step = units_per_step
        self._periodic = periodic
        self._video = video
        self._rollout = Rollout(slots, generator, feed, self, video=self._next_video)
        self._members: dict[int, dict[int, Ended]] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._survivors: list[int] = []
        self._open: deque[int] = deque()
        """Tickets whose unit is not judged yet, in order."""
        self._reports: dict[int, UnitReport] = {}
        """Finished units that wait for an earlier ticket."""
        self._opened = 0
        """Tickets opened for the step at hand."""
        self._judged = 0
        """Units judged for the step at hand."""
        self.meter = Meter()

    # ---- what schedulers use ------------------------------------------------------------------------------------

    def admit(self) -> int:
        """Open the tickets that the next training step still lacks; returns how many. Zero: train."""
        missing = self._units_per_step - len(self._survivors) - len(self._open)
        if missing <= 0:
            return 0
        self._open.extend(self.feed.open(missing))
        self._opened += missing
        return missing

    async def begin(self, slots: Sequence[Slot]) -> list[Slot]:
        """Give admitted work to free rows and start the episodes it needs; returns the slots that have work."""
        return await self._timed("reset", self._rollout.begin(slots))

    async def generate(self, slots: Sequence[Slot]) -> None:
        """Choose the next chunk for the working rows of these slots, in one batch."""
        receipt = await self._timed("generate", self._rollout.generate(slots))
        self.meter.batches.append(receipt.rows)

    async def step(self, slot: Slot) -> None:
        """Execute the chunk that was chosen for a slot; complete units are submitted by themselves."""
        await self._timed("simulate", self._rollout.step(slot))

    async def train(self) -> None:
        """Do a training step on the oldest surviving units, then what is due (evaluation, checkpoint)."""
        tickets, self._survivors = self._survivors[: self._units_per_step], self._survivors[self._units_per_step :]
        for ticket in tickets:
            self._versions.pop(ticket, None)
        self.report("train", 0.0)
        (receipt,) = await self._timed(
            "train", self._watch("trainer", self._trainer.call("train", tickets, self.steps_done))
        )
        self._opened = self._judged = 0
        self.version = receipt.version
        self.steps_done += 1
        metrics = self.meter.finish_step(receipt, self.steps_done, len(tickets))
        self._hooks.call("on_step", step=self.steps_done, metrics=metrics)
        await self._periodic(self.steps_done)
        self.meter.begin_step()
        self.report("rollout", 0.0)

    async def publish(self, weights: str = "latest") -> None:
        """Bring the trainer's weights (or their average, ``"ema"``) to the generator; used from its next batch on."""
        began = asyncio.get_running_loop().time()
        version, tensors = await self._timed("publish", self._trainer.call("publish", weights, returns=1))
        await self._timed("publish", self._generator.call("offer", tensors, version))
        self._hooks.call(
            "on_weights_published", policy_version=version, seconds=asyncio.get_running_loop().time() - began
        )

    # ---- what the rollout reports -------------------------------------------------------------------------------

    def played(self, slot: Slot, before: Any, outcome: Any, after: Any, entries: Sequence[Entry]) -> None:
        """Forward a chunk step to the trainer."""
        self._trainer.send("record", before, slot.action, outcome, after, slot.version, entries)
        for entry in entries:
            oldest, newest = self._versions.get(entry.ticket, (slot.version, slot.version))
            self._versions[entry.ticket] = min(oldest, slot.version), max(newest, slot.version)

    def stepped(self, receipt: StepReceipt) -> None:
        """Count a chunk step."""
        self.meter.stepped(receipt)
        for path in receipt.videos:
            self._hooks.call("on_video", step=self.steps_done, path=Path(path))
        self.report("rollout", self._fraction())

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
        self._reports[work.ticket] = report
        while self._open and self._open[0] in self._reports:
            self._judge(self._reports.pop(self._open.popleft()))

    def _judge(self, report: UnitReport) -> None:
        """Keep or drop a finished unit; in ticket order, so that the budget does not depend on who finished first."""
        budget = self._algorithm.spec.refill_budget
        spent = budget is not None and self._judged >= budget * self._units_per_step
        self._judged += 1
        if spent or self._algorithm.keep(report):
            self._survivors.append(report.ticket)
        else:
            self.meter.filtered += 1
            self._versions.pop(report.ticket)
            self._trainer.send("forget", report.ticket)

    def lost(self, work: Work) -> None:
        """Drop what a dead worker's row had played."""
        self.meter.lost += 1
        self._trainer.send("forget", work.ticket, work.member)

    # ---- bookkeeping --------------------------------------------------------------------------------------------

    def _next_video(self, work: Work) -> Path | None:
        self.meter.started += 1
        return self._video(self.meter.started - 1)

    async def _timed(self, phase: str, waiting: Awaitable[R]) -> R:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._watch(phase, waiting)
        finally:
            self.meter.add_time(phase, began, loop.time())

    def _fraction(self) -> float:
        """Return how much of the step's trajectories is played, in [0, 1]."""
        spec = self._algorithm.spec
        chunks = spec.window if spec.unit == "window" else spec.group_size
        wanted = max(1, self._opened) * chunks
        playing = [row.work for slot in self.slots for row in slot.rows if row.work is not None]
        if spec.unit == "window":
            done = len(self._survivors) * chunks + sum(work.chunk for work in playing)
        else:
            done = len(self._survivors) * chunks + sum(map(len, self._members.values()))
        return min(1.0, done / wanted)

    def report(self, phase: Any, fraction: float) -> None:
        """Tell listeners how far the present phase is, a few times a second at most."""
        if self._hooks.wants("on_progress") and self.meter.due(phase):
            self._hooks.call("on_progress", progress=self.meter.progress(phase, fraction, self.steps_done, self.until))

    def state(self) -> dict[str, Any]:
        """Return counters and cursors between two training steps, for an exact resume."""
        assert not self._survivors and not self._open, "a checkpoint between two steps has no open units"
        return {
            "steps_done": self.steps_done,
            "version": self.version,
            "feed": self.feed.state(),
            "live": [row.live for slot in self.slots for row in slot.rows],
            "meter": self.meter.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` returned; the rows' episodes are restored apart."""
        self.steps_done = state["steps_done"]
        self.version = state["version"]
        self.feed.load_state(state["feed"])
        self.meter.load_state(state["meter"])
