"""What a run tells its listeners: who it is, how far it is, how well it does. Light: no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rlvla.configs import RunConfig


@dataclass(frozen=True)
class RunInfo:
    """Who a run is."""

    name: str
    directory: Path
    config: RunConfig
    manifest: Mapping[str, Any]
    """Versions of everything that changes numbers: packages, renderer, checkpoint, seeds."""


@dataclass(frozen=True)
class Progress:
    """How far a run is; what a live display shows."""

    step: int
    """Training steps done."""
    steps: int
    """Training steps wanted."""
    phase: Literal["start", "rollout", "train", "evaluate", "save", "end"]
    fraction: float
    """Of the present phase, in [0, 1]."""
    env_steps: int
    """Useful env steps so far."""
    episodes: int
    """Finished episodes so far."""
    success: float
    """Of the last 200 finished training episodes; nan before the first."""
    env_steps_per_second: float
    """Useful env steps a second over the last training step, training included."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Phase to seconds of the last training step."""
    eta_seconds: float = math.nan
    """To the last training step."""


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a success rate (Wilson 1927); 95 % by default, (0, 1) without data."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (low if successes else 0.0), (high if successes < n else 1.0)  # rounding must not move exact ends


@dataclass(frozen=True)
class EvalEpisode:
    """One episode of an evaluation."""

    index: int
    task: int
    task_name: str
    state: int | None
    """Stored initial state; None where the scene was drawn from the seed."""
    seed: int
    success: bool
    """Solved at any time."""
    success_at_end: bool
    steps: int
    episode_return: float
    video: str | None = None
    suite: str = ""
    """Of the task; empty: the simulator has none."""


@dataclass(frozen=True)
class EvalResults:
    """Success with its interval, and the protocol that it was measured with."""

    episodes: tuple[EvalEpisode, ...]
    protocol: Mapping[str, Any]
    """Simulator settings, tasks, initial states, seeds, step limit, greedy or sampled, versions."""
    policy_version: int
    seconds: float

    @property
    def success(self) -> float:
        """Fraction of episodes solved at any time; nan without episodes."""
        return self._rate(self.episodes)

    @property
    def success_at_end(self) -> float:
        return sum(one.success_at_end for one in self.episodes) / len(self.episodes) if self.episodes else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of ``success``."""
        return wilson(sum(one.success for one in self.episodes), len(self.episodes))

    @property
    def env_steps(self) -> int:
        return sum(one.steps for one in self.episodes)

    def by_task(self) -> dict[str, tuple[EvalEpisode, ...]]:
        """Return the episodes of each task, in task order."""
        return self._by(lambda one: one.task_name)

    def by_suite(self) -> dict[str, tuple[EvalEpisode, ...]]:
        """Return the episodes of each suite, in task order; none where the simulator has no suites."""
        return self._by(lambda one: one.suite) if all(one.suite for one in self.episodes) else {}

    def _by(self, name: Callable[[EvalEpisode], str]) -> dict[str, tuple[EvalEpisode, ...]]:
        found: dict[str, list[EvalEpisode]] = {}
        for one in sorted(self.episodes, key=lambda one: (one.task, one.index)):
            found.setdefault(name(one), []).append(one)
        return {key: tuple(some) for key, some in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {
            "success": self.success,
            "success_at_end": self.success_at_end,
            "interval_95": list(self.interval),
            "n": len(self.episodes),
            "policy_version": self.policy_version,
            "seconds": self.seconds,
            "env_steps": self.env_steps,
            "protocol": dict(self.protocol),
            "suites": {name: self._summary(some) for name, some in self.by_suite().items()},
            "tasks": {name: self._summary(some) for name, some in self.by_task().items()},
            "episodes": [asdict(one) for one in self.episodes],
        }

    @classmethod
    def _summary(cls, some: tuple[EvalEpisode, ...]) -> dict[str, Any]:
        low, high = wilson(sum(one.success for one in some), len(some))
        return {"success": cls._rate(some), "n": len(some), "interval_95": [low, high]}

    @staticmethod
    def _rate(episodes: tuple[EvalEpisode, ...]) -> float:
        return sum(one.success for one in episodes) / len(episodes) if episodes else math.nan

    def __str__(self) -> str:
        low, high = self.interval
        return f"success {self.success:.3f} (95 % interval {low:.3f} to {high:.3f}, {len(self.episodes)} episodes)"


@dataclass(frozen=True)
class Difference:
    """How often one policy solved the same episodes in two evaluations."""

    name: str
    """Of the task."""
    n: int
    """Episodes that both played: the same task, initial state and seed."""
    first: int
    """Solved in the first evaluation."""
    second: int
    only_first: int
    """Solved in the first and not in the second."""
    only_second: int


def differences(first: EvalResults, second: EvalResults) -> list[Difference]:
    """Compare two evaluations of one policy episode by episode; one entry a task, then one of all."""
    others = {(one.task_name, one.state, one.seed): one for one in second.episodes}
    found = []
    pairs_of_all: list[tuple[bool, bool]] = []
    for name, episodes in first.by_task().items():
        keys = [(one, others.get((one.task_name, one.state, one.seed))) for one in episodes]
        pairs = [(one.success, other.success) for one, other in keys if other is not None]
        pairs_of_all += pairs
        found.append(_difference(name, pairs))
    return [*found, _difference("all", pairs_of_all)]


def _difference(name: str, pairs: list[tuple[bool, bool]]) -> Difference:
    return Difference(
        name=name,
        n=len(pairs),
        first=sum(a for a, _ in pairs),
        second=sum(b for _, b in pairs),
        only_first=sum(a and not b for a, b in pairs),
        only_second=sum(b and not a for a, b in pairs),
    )
