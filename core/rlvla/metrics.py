"""Counting: what a training step produced, how long its parts took, how far the run is.

Names, as the field uses them: ``train/...`` is of the trainer (losses, ratios, staleness), ``rollout/...`` of the
episodes that ended during the step, ``time/...`` of the phases, waits and devices (:mod:`rlvla.timekeeping`),
``workers/...`` of the simulators' processes, ``sim/...`` what simulators count themselves, ``memory/...`` of peaks.
``env_steps`` and ``env_steps_per_second`` count useful env steps only: actions executed while their episode ran.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlvla.receipts import Ended, StepReceipt, TrainReceipt, UnitReport
from rlvla.results import Progress
from rlvla.timekeeping import Timekeeper

if TYPE_CHECKING:
    from torch import Tensor

    from rlvla.assembly import Entry
    from rlvla.batch import Loss

RECENT = 200
"""Finished episodes in the running success rate."""
NO_SUCCESS_STEPS = 20
"""Training steps without a solved episode after which a warning asks whether it can be."""
_PROGRESS_SECONDS = 0.25

log = logging.getLogger(__name__)


class Meter:
    """Counters of a run; the ones of a step start anew with it."""

    def __init__(self, times: Timekeeper | None = None) -> None:
        self.times = times or Timekeeper()
        """Where the time goes."""
        self.env_steps = 0
        self.episodes = 0
        self.started = 0
        """Episodes started, for the choice of videos."""
        self.recent: deque[bool] = deque(maxlen=RECENT)
        self.env_steps_per_second = 0.0
        self._step_seconds: deque[float] = deque(maxlen=20)
        self._last_phases: dict[str, float] = {}
        self._last_progress = -math.inf
        self._last_phase = ""
        self._ever_solved = False
        self._began = -math.inf
        self._start_counters()

    def _start_counters(self) -> None:
        self._env_steps_before = self.env_steps
        self._ended: dict[tuple[int, int, int], Ended] = {}
        self._phases: dict[str, list[tuple[float, float]]] = {}
        self.filtered = 0
        self.lost = 0
        self._groups: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def begin_step(self, now: float, step: int = 1) -> None:
        """Start the clock of a step, in the controller's time; what is counted belongs to it since the last one ended."""
        self._began = now
        self.times.begin(now, step)

    def stepped(self, receipt: StepReceipt, entries: Sequence[Entry]) -> None:
        """Count a chunk step."""
        self.env_steps += receipt.env_steps
        self.episodes += len(receipt.ended)
        self._counts.update(receipt.counts)
        ended = {one.row: one for one in receipt.ended}
        for entry in entries:
            if entry.row in ended:
                self._ended[entry.ticket, entry.member, entry.chunk] = ended[entry.row]

    def judged(self, report: UnitReport) -> None:
        """Count a finished unit: how much of a group succeeded, kept or not."""
        if report.members:
            self._groups[_share(sum(one.success for one in report.members), len(report.members))] += 1

    def add_time(self, phase: str, began: float, ended: float) -> None:
        """Count an interval of the controller's clock; overlapping intervals of a phase count once."""
        self._phases.setdefault(phase, []).append((began, ended))

    def finish_step(self, receipt: TrainReceipt, now: float, units: int) -> dict[str, float]:
        """Return the metrics of a training step that ends now, and start the counters of the next."""
        seconds = now - self._began
        finished = self._finished()
        self.recent.extend(one.success for one in finished)
        self._ever_solved |= any(one.success for one in finished)
        if receipt.version == NO_SUCCESS_STEPS and self.episodes and not self._ever_solved:
            log.warning(
                "no episode was solved in %d training steps: look at a video (run.video_every), the reward, the instruction "
                "and the action's sign, or start from a policy that sometimes succeeds",
                receipt.version,
            )
        env_steps = self.env_steps - self._env_steps_before
        self.env_steps_per_second = env_steps / seconds if seconds > 0 else math.nan
        self._step_seconds.append(seconds)
        self._last_phases = {phase: _union(some, self._began) for phase, some in self._phases.items()}
        metrics = {
            "env_steps": float(self.env_steps),
            "env_steps_per_second": self.env_steps_per_second,
            "policy_version": float(receipt.version),
            "rollout/episodes": float(len(finished)),
            "rollout/success_recent": self.success,
            "rollout/units": float(units),
            "rollout/units_filtered": float(self.filtered),
            "rollout/units_lost": float(self.lost),
            "time/step_s": seconds,
            "time/trainer_s": receipt.seconds,
            **{f"time/{phase}_s": value for phase, value in self._last_phases.items()},
            **{f"sim/{name}": float(count) for name, count in self._counts.items()},
            **receipt.metrics,
            **receipt.memory,
            **self.times.finish(now, seconds, env_steps, receipt.cpu_seconds, receipt.lags),
        }
        if finished:
            metrics |= {
                "rollout/success_once": _mean([one.success for one in finished]),
                "rollout/success_at_end": _mean([one.success_at_end for one in finished]),
                "rollout/return": _mean([one.episode_return for one in finished]),
                "rollout/episode_length": _mean([one.steps for one in finished]),
                "rollout/truncated": _mean([not one.terminated for one in finished]),
            }
        if self._groups:
            groups = sum(self._groups.values())
            metrics |= {f"rollout/groups_{share}": self._groups[share] / groups for share in _SHARES}
        self._start_counters()
        return metrics

    @property
    def success(self) -> float:
        """Success rate of the last episodes; nan before the first."""
        recent = [*self.recent, *(one.success for one in self._finished())][-RECENT:]
        return _mean(recent) if recent else math.nan

    def _finished(self) -> list[Ended]:
        """Return the episodes that ended in this step, by ticket: who played them and who was faster must not matter."""
        return [self._ended[played] for played in sorted(self._ended)]

    def due(self, phase: str) -> bool:
        """Say whether a live display should hear of progress now."""
        now = time.perf_counter()
        if phase == self._last_phase and now - self._last_progress < _PROGRESS_SECONDS:
            return False
        self._last_progress, self._last_phase = now, phase
        return True

    def progress(self, phase: Any, fraction: float, step: int, steps: int) -> Progress:
        """Return what a live display shows."""
        pace = _mean(list(self._step_seconds)) if self._step_seconds else math.nan
        return Progress(
            step=step,
            steps=steps,
            phase=phase,
            fraction=fraction,
            env_steps=self.env_steps,
            episodes=self.episodes,
            success=self.success,
            env_steps_per_second=self.env_steps_per_second,
            seconds=dict(self._last_phases),
            eta_seconds=pace * (steps - step),
        )

    def state(self) -> dict[str, Any]:
        """Return the run's counters, for an exact resume."""
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "started": self.started,
            "recent": [int(one) for one in self.recent],
            "ever_solved": self._ever_solved,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` returned."""
        self.env_steps, self.episodes, self.started = state["env_steps"], state["episodes"], state["started"]
        self.recent = deque(map(bool, state["recent"]), maxlen=RECENT)
        self._ever_solved = state["ever_solved"]
        self._start_counters()


_SHARES = (
    "none_solved",
    "up_to_quarter_solved",
    "up_to_half_solved",
    "up_to_3_quarters_solved",
    "most_solved",
    "all_solved",
)


def _share(solved: int, members: int) -> str:
    """Return the bin of a group in the histogram of group success."""
    if solved in (0, members):
        return "none_solved" if solved == 0 else "all_solved"
    return _SHARES[1 + min(3, (4 * solved - 1) // members)]


def _mean(values: Any) -> float:
    return float(sum(values)) / len(values)


def _union(intervals: list[tuple[float, float]], since: float) -> float:
    """Return the length that intervals cover after ``since``."""
    total, end = 0.0, since
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


class Sums:
    """Sums, counts and distributions of a training step's parts, divided once at the end.

    Light until it is given tensors: the controller's process may have none.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._maxima: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._distributions: dict[str, Tensor] = {}

    def count(self, loss: Loss) -> None:
        """Add a part's metrics, with one transfer from its device."""
        import torch

        names = list(loss.metrics)
        pairs = [torch.as_tensor(one, dtype=torch.float64).detach() for name in names for one in loss.metrics[name]]
        values = torch.stack(pairs).tolist() if pairs else []
        for place, name in enumerate(names):
            self._put(name, values[2 * place], values[2 * place + 1])
        for name, largest in loss.maxima.items():
            self._maxima[name] = max(self._maxima.get(name, -math.inf), float(largest))
        for name, counts in loss.distributions.items():
            self._spread(name, counts.cpu())

    def mean(self, name: str, value: float) -> None:
        """Add one value of a mean."""
        self._put(name, value, 1.0)

    def total(self, name: str, value: float) -> None:
        """Add to what is reported as a sum."""
        self._totals[name] = self._totals.get(name, 0.0) + value

    def add(self, other: Sums) -> None:
        """Add another's."""
        for name, (total, count) in other._sums.items():
            self._put(name, total, count)
        for name, largest in other._maxima.items():
            self._maxima[name] = max(self._maxima.get(name, largest), largest)
        for name, value in other._totals.items():
            self.total(name, value)
        for name, counts in other._distributions.items():
            self._spread(name, counts)

    def add_up_over_ranks(self) -> None:
        """Make them those of all trainer ranks; a name that a rank lacks (it had no such samples) counts nothing there."""
        from rlvla import ranks

        if ranks.world() == 1:
            return
        import torch

        from rlvla.rl.quantiles import BINS

        sums, maxima, totals, spread = ranks.every(
            (list(self._sums), list(self._maxima), list(self._totals), list(self._distributions))
        )
        none = torch.zeros(BINS, dtype=torch.float64)
        pairs = torch.tensor([self._sums.get(name, (0.0, 0.0)) for name in sums], dtype=torch.float64).view(-1, 2)
        whole = torch.tensor([self._totals.get(name, 0.0) for name in totals], dtype=torch.float64)
        counts = torch.stack([none, *(self._distributions.get(name, none) for name in spread)])
        ranks.add_up([pairs, whole, counts])
        self._sums = {name: (total, count) for name, (total, count) in zip(sums, pairs.tolist(), strict=True)}
        self._totals = dict(zip(totals, whole.tolist(), strict=True))
        self._distributions = dict(zip(spread, counts[1:], strict=True))
        self._maxima = {name: ranks.largest(self._maxima.get(name, -math.inf)) for name in maxima}

    def _put(self, name: str, total: float, count: float) -> None:
        before, n = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (before + total, n + count)

    def _spread(self, name: str, counts: Tensor) -> None:
        before = self._distributions.get(name)
        self._distributions[name] = counts if before is None else before + counts

    def means(self) -> dict[str, float]:
        """Return name to mean, quantile, maximum or total."""
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        return means | self._quantiles() | self._maxima | self._totals

    def _quantiles(self) -> dict[str, float]:
        if not self._distributions:
            return {}
        from rlvla.rl.quantiles import PERCENTILES, quantile

        return {
            f"{name}_p{percent:02}": quantile(counts, percent / 100)
            for name, counts in self._distributions.items()
            if counts.any()
            for percent in PERCENTILES
        }
