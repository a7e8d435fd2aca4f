"""Where a run's time goes: how busy each device is, how fast it could be, who waits, which worker is slow.

Everything comes from the spans that actors measured themselves. In a training step of S seconds

* a device is **busy** while one of its actors works: a GPU with all that runs on it, the CPU cores (processor time of the
  workers and of this process over S x cores), and each actor, which does one thing at a time;
* the **device bound** is useful env steps over the busy seconds of the busiest device: nothing that keeps these calls and
  batch sizes is faster;
* the **schedule bound** is useful env steps over the seconds that the schedule's own dependencies need. It says in its spec
  which roles overlap and what comes in turn (``SchedulerSpec.phases``). A phase of one role takes as long as it works; a
  phase of several as long as the busiest device works for them, or as the longest chain of a slot's own batches and chunk
  steps if it holds both. Phases add up; with staleness e, 1 + e training steps may be under way at once. And no schedule is
  faster than the device bound, or than a slot's own chain;
* **overlap efficiency** is the step's rate over the schedule bound.

Where actors share a device at the same time their calls get slower, so their seconds must not be added: the device's busy
seconds are the time in which any of them works, which under fair sharing is the sum of what each would need alone.

A call belongs to the step in which it ended. A single step of a schedule that overlaps may thus lie a call above its bound;
the numbers of the run (``run``: all steps but the first 1 + max_staleness, which fill pipes and compile) do not.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from rlvla.histograms import Histogram, summary
from rlvla.specs import Activity, SchedulerSpec
from rlvla.tracing import Span

log = logging.getLogger(__name__)

ROLE: dict[str, Activity] = {
    "reset": "simulate",
    "simulate": "simulate",
    "generate": "generate",
    "publish": "publish",
    "offer": "publish",
    "train": "train",
}
"""What a call counts as, by the phase of its span; others (evaluation) are outside training."""
KIND = {
    "reset": "simulators",
    "simulate": "simulators",
    "generate": "generator",
    "offer": "generator",
    "publish": "trainer",
    "train": "trainer",
}
"""What kind of actor does it."""
CORES = "cores"
SLOW_FACTOR = 4.0
"""A worker whose chunk steps take this many times as long as its peers' is named."""
_SLOW_SAMPLES = 16
"""Chunk steps of a worker before it is judged."""
_SLOW_AT_LEAST_S = 0.01
"""Seconds of a chunk step below which nobody is slow: a busy machine's own jitter."""
Interval = tuple[int, int]


class Spans(Protocol):
    """Where spans go: :class:`rlvla.tracing.SpanFile`, or a list in a test."""

    def add(self, span: Span) -> None: ...
    def flush(self) -> None: ...


@dataclass
class Loads:
    """Seconds of work in one step, or in several."""

    devices: dict[str, float] = field(default_factory=dict)
    chains: dict[str, float] = field(default_factory=dict)
    """Slot, or the first of a stage, to the seconds of its own batches, chunk steps and resets, one after another."""
    phases: list[dict[str, float]] = field(default_factory=list)
    """For each phase: device or slot to the seconds that it works in it."""

    def add(self, other: Loads) -> None:
        """Add another's."""
        self.phases = self.phases or [{} for _ in other.phases]
        pairs = [
            (self.devices, other.devices),
            (self.chains, other.chains),
            *zip(self.phases, other.phases, strict=True),
        ]
        for mine, theirs in pairs:
            for name, seconds in theirs.items():
                mine[name] = mine.get(name, 0.0) + seconds

    def device_seconds(self) -> float:
        """Return the work of the busiest device."""
        return max(self.devices.values(), default=0.0)

    def schedule_seconds(self, max_staleness: int) -> float:
        """Return the seconds that the schedule's dependencies need."""
        in_turn = sum(max(phase.values(), default=0.0) for phase in self.phases) / (1 + max_staleness)
        return max(self.device_seconds(), max(self.chains.values(), default=0.0), in_turn)


class Timekeeper:
    """Takes spans and waits, and makes a step's metrics of them.

    Args:
        scheduler: says what overlaps.
        spans: where spans are written.
        devices: actor to the devices that it shares with others; who is not in it has one of its own.
        cores: CPU cores that all share; None: processor time is not looked at.
        cpu: processor seconds of this process so far.
    """

    def __init__(
        self,
        scheduler: SchedulerSpec | None = None,
        spans: Spans | None = None,
        devices: Mapping[str, Sequence[str]] | None = None,
        cores: float | None = None,
        cpu: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.step = 0
        """Training step under way, from 1; 0: none."""
        self.histograms: dict[str, Histogram] = {}
        """Of the last step."""
        self._scheduler = scheduler or SchedulerSpec(on_policy=True)
        self._spans = spans
        self._devices = dict(devices or {})
        self._cores = cores
        self._cpu = cpu
        self._peaks: dict[str, int] = {}
        """Worker to the most bytes that it has had."""
        self._steps = 0
        self._run = Loads()
        self._run_schedule_seconds = 0.0
        self._run_seconds = 0.0
        self._run_env_steps = 0
        self._actors: dict[str, str] = {}
        """Actor to its kind."""
        self._slots: set[int] = set()
        self._workers = Workers()
        self._pause: tuple[int, float] = (0, 0.0)
        """Between the last step's end and this step's beginning."""
        self._cpu_began = 0.0
        self._clear()

    def _clear(self) -> None:
        self._work: dict[tuple[str, Activity], list[Interval]] = {}
        self._by_actor: Counter[str] = Counter()
        self._processor: dict[Activity, float] = {}
        self._chains: defaultdict[int, list[Interval]] = defaultdict(list)
        self._stages: dict[int, int] = {}
        """Slot to the first of those that it asks together with."""
        self._queue_s: list[float] = []
        self._wait_s: list[float] = []
        self._batches: list[int] = []

    # ---- what is told -------------------------------------------------------------------------------------------

    def worked(
        self,
        actor: str,
        phase: str,
        began_ns: int,
        seconds: float,
        *,
        slots: Sequence[int] = (),
        version: int = -1,
        rows: int = 0,
        cpu_seconds: float = 0.0,
        peak_bytes: int = 0,
    ) -> None:
        """Count a call, as its actor measured it.

        Args:
            actor: its name.
            phase: what it did.
            began_ns: on the controller's clock (:func:`time.monotonic_ns`, or virtual time).
            seconds: until it ended.
            slots: whose chunk it was for.
            version: of weights.
            rows: environments, or units.
            cpu_seconds: processor time outside this process.
            peak_bytes: most memory that the actor's own process has had; 0: it has none.
        """
        ended_ns = began_ns + round(seconds * 1e9)
        if self._spans is not None:
            slot = slots[0] if len(slots) == 1 else -1
            self._spans.add(Span(actor, phase, began_ns, ended_ns, self.step, slot, version, rows, cpu_seconds))
        role = ROLE.get(phase)
        if role is None:
            return
        self._actors[actor] = KIND[phase]
        pieces = self._outside_pause(began_ns, ended_ns)
        self._work.setdefault((actor, role), []).extend(pieces)
        own = sum(stop - start for start, stop in pieces)
        self._by_actor[actor] += own
        share = own / (ended_ns - began_ns) if ended_ns > began_ns else 1.0
        self._processor[role] = self._processor.get(role, 0.0) + share * cpu_seconds
        if role in ("generate", "simulate"):
            for one in slots:
                self._chains[self._stages.get(one, one)].extend(pieces)
        if phase == "simulate":
            self._slots.update(slots)
            self._workers.add(actor, seconds)
            self._peaks[actor] = peak_bytes
        elif phase == "generate":
            self._batches.append(rows)

    def _outside_pause(self, began_ns: int, ended_ns: int) -> list[Interval]:
        """Return the parts of an interval before and after the pause."""
        before = began_ns, min(ended_ns, self._pause[0])
        after = round(min(max(began_ns, self._pause[1]), ended_ns)), ended_ns  # a pause may not have ended
        return [(start, stop) for start, stop in (before, after) if stop > start]

    def together(self, slots: Sequence[int]) -> None:
        """Slots ask for chunks together, so that each waits for the slowest of them."""
        first = self._stages.get(slots[0], slots[0])
        for slot in slots:
            self._stages[slot] = first

    def waited(self, queue_s: float, wait_s: float) -> None:
        """Count a slot's wait for its chunk.

        Args:
            queue_s: from its request to the launch of its batch.
            wait_s: from its request to its chunk.
        """
        self._queue_s.append(queue_s)
        self._wait_s.append(wait_s)

    def restarted(self, actor: str, now: float) -> None:
        """Count the restart of a dead worker."""
        self._workers.restarts += 1
        self.worked(actor, "restart", round(now * 1e9), 0.0)

    # ---- steps --------------------------------------------------------------------------------------------------

    def begin(self, now: float, step: int) -> None:
        """Start the clock of a training step."""
        self.step = step
        self._pause = (self._pause[0], now * 1e9)
        self._cpu_began = self._cpu()

    def finish(
        self, now: float, seconds: float, env_steps: int, train_cpu: float, lags: Iterable[int]
    ) -> dict[str, float]:
        """Return the metrics of the step that ends now.

        Args:
            now: on the event loop's clock.
            seconds: of the step.
            env_steps: useful ones of the step.
            train_cpu: processor seconds of this process inside the trainer.
            lags: samples that lay 0, 1, 2, ... versions behind.
        """
        if self._cores is not None:
            # of this process: what is not the trainer's is the generator's, the controller's and of whoever hands on chunks
            self._processor["train"] = train_cpu
            self._processor["generate"] = max(0.0, self._cpu() - self._cpu_began - train_cpu)
        loads = self._loads()
        metrics = {
            **self._bounds(loads, seconds, env_steps),
            **self._busy(loads, seconds),
            **self._waits(seconds),
            **self._distributions(dict(enumerate(lags))),
            **self._workers.metrics(),
            **self._worker_memory(),
        }
        self._pause = (round(now * 1e9), math.inf)
        self._clear()
        self.flush()
        return metrics

    def flush(self) -> None:
        """Write the spans that are kept in memory."""
        if self._spans is not None:
            self._spans.flush()

    def _loads(self) -> Loads:
        loads = Loads(chains={f"slot {slot}": _covered(some) for slot, some in self._chains.items()})
        roles = set(ROLE.values())
        loads.devices = self._worked_for(roles)
        for phase in self._scheduler.phases:
            found = self._worked_for(set(phase))
            if len(phase) == 1:  # nothing else goes on: it takes as long as anybody works
                intervals = [some for (_, role), some in self._work.items() if role in phase]
                found["all"] = _covered([one for some in intervals for one in some])
            elif {"generate", "simulate"} <= set(phase):
                found |= loads.chains
            loads.phases.append(found)
        return loads

    def _worked_for(self, roles: set[Activity]) -> dict[str, float]:
        """Return device to the seconds that it works for some roles."""
        intervals: dict[str, list[Interval]] = {}
        for (actor, role), some in self._work.items():
            if role in roles:
                for device in self._devices.get(actor, (actor,)):
                    intervals.setdefault(device, []).extend(some)
        found = {device: _covered(some) for device, some in intervals.items()}
        if self._cores is not None:
            found[CORES] = sum(self._processor.get(role, 0.0) for role in roles) / self._cores
        return found

    def _bounds(self, loads: Loads, seconds: float, env_steps: int) -> dict[str, float]:
        self._steps += 1
        staleness = self._scheduler.max_staleness
        schedule_s = loads.schedule_seconds(staleness)
        found = _rates("", env_steps, seconds, loads.device_seconds(), schedule_s)
        if self._steps > 1 + staleness:
            self._run.add(loads)
            self._run_seconds += seconds
            self._run_env_steps += env_steps
            self._run_schedule_seconds += schedule_s
            of_run = self._run.schedule_seconds(staleness) if staleness else self._run_schedule_seconds
            found |= _rates("run_", self._run_env_steps, self._run_seconds, self._run.device_seconds(), of_run)
            found["env_steps_per_second_run"] = self._run_env_steps / self._run_seconds if self._run_seconds else 0.0
        return found

    def _busy(self, loads: Loads, seconds: float) -> dict[str, float]:
        if seconds <= 0:
            return {}
        found = {}
        for kind in ("simulators", "generator", "trainer"):
            if actors := [actor for actor, its in self._actors.items() if its == kind]:
                found[f"time/busy_{kind}"] = fmean(self._by_actor[actor] / 1e9 for actor in actors) / seconds
        shared = {CORES, *(device for some in self._devices.values() for device in some)}
        return found | {f"time/busy_{name}": s / seconds for name, s in loads.devices.items() if name in shared}

    def _worker_memory(self) -> dict[str, float]:
        whole = sum(self._peaks.values())
        return {"memory/workers_peak_gib": whole / 2**30} if whole else {}

    def _waits(self, seconds: float) -> dict[str, float]:
        """Return the shares of the slots' time in which they wait."""
        whole = seconds * len(self._slots)
        if whole <= 0:
            return {}
        workers = [actor for actor, kind in self._actors.items() if kind == "simulators"]
        for_chunks = sum(self._wait_s) / whole
        working = sum(self._by_actor[actor] for actor in workers) / 1e9 / whole
        return {
            "time/slots_wait_for_chunks": for_chunks,
            "time/slots_wait_for_work": max(0.0, 1.0 - for_chunks - working),
        }

    def _distributions(self, lags: Mapping[int, int]) -> dict[str, float]:
        self.histograms = {}
        found: dict[str, float] = {}
        for name, values in (("time/queue_delay_s", self._queue_s), ("time/slot_wait_s", self._wait_s)):
            if values:
                self.histograms[name] = Histogram.of_seconds(values)
                found |= summary(name, values)
        if self._batches:
            self.histograms["rollout/generator_batch"] = Histogram.of_numbers(self._batches)
            found |= summary("rollout/generator_batch", self._batches)
        if lags:
            self.histograms["train/staleness"] = Histogram.of_numbers(lags)
            found |= summary("train/staleness", lags)
        return found


class Workers:
    """Which simulator workers are slow against their peers, and how often one was started again."""

    def __init__(self) -> None:
        self.restarts = 0
        """In this step."""
        self._seconds: dict[str, deque[float]] = {}
        self._named: set[str] = set()

    def add(self, actor: str, seconds: float) -> None:
        """Count a chunk step."""
        self._seconds.setdefault(actor, deque(maxlen=2 * _SLOW_SAMPLES)).append(seconds)

    def metrics(self) -> dict[str, float]:
        """Return ``workers/...``, and warn once of each slow worker."""
        found = {"workers/restarts": float(self.restarts)}
        self.restarts = 0
        ratios = slowness(self._seconds)
        if ratios:
            found["workers/slowest_ratio"] = max(ratios.values())
        slow = [actor for actor, ratio in ratios.items() if ratio >= SLOW_FACTOR]
        found["workers/slow"] = float(len(slow))
        for actor in slow:
            if actor not in self._named:
                self._named.add(actor)
                log.warning(
                    "%s is slow: its chunk steps take %.0f ms, %.1f times as long as those of the other workers; look at "
                    "its log in workers/, at what else runs on its cores, and at memory",
                    actor,
                    1000 * _typical(self._seconds[actor]),
                    ratios[actor],
                )
        return found


def slowness(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return how many times as long as its peers' a worker's chunk steps take.

    Its mean over the last ones (the longest left out: a hiccup is not slowness) against the median of the other workers'
    means.

    Args:
        seconds: worker to its last chunk steps; who has fewer than 16 is left out.
    """
    means = {one: _typical(some) for one, some in seconds.items() if len(some) >= _SLOW_SAMPLES}
    if len(means) < 2:
        return {}
    ordered, least = sorted(means.values()), _SLOW_AT_LEAST_S / SLOW_FACTOR
    return {one: mean / max(_median_of_others(ordered, mean), least) for one, mean in means.items()}


def _median_of_others(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values without one of them; thousands of workers are compared in each training step."""
    place, others = bisect_left(ordered, value), len(ordered) - 1
    low, high = (others - 1) // 2, others // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def _typical(seconds: Sequence[float]) -> float:
    return (sum(seconds) - max(seconds)) / (len(seconds) - 1)


def _rates(prefix: str, env_steps: int, seconds: float, device_s: float, schedule_s: float) -> dict[str, float]:
    """Return both bounds in useful env steps/s, and overlap efficiency."""
    if not device_s or not seconds:
        return {}
    return {
        f"env_steps_per_second_{prefix}device_bound": env_steps / device_s,
        f"env_steps_per_second_{prefix}schedule_bound": env_steps / schedule_s,
        f"time/{prefix}overlap_efficiency": schedule_s / seconds,
    }


def _covered(intervals: list[Interval]) -> float:
    """Return the seconds that intervals of nanoseconds cover."""
    total, end = 0, 0
    for start, stop in sorted(intervals):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e9
