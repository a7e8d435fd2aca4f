"""What the controller sees: a few bytes about each call, never its pictures. Light: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Ended:
    """An episode that came to its end, or that its window gave up (without partial reset)."""

    row: int
    terminated: bool
    success: bool
    """Solved at any time in the episode."""
    success_at_end: bool
    """Solved by its last chunk."""
    steps: int
    """Env steps of the episode."""
    episode_return: float


@dataclass(frozen=True)
class CallReceipt:
    """When an actor worked on a call, by its own clock: without the wait for its turn."""

    began_ns: int = 0
    """On the monotonic clock of its machine, which all of the machine's processes share."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of processor time, in the actor's own process if it has one."""


@dataclass(frozen=True)
class StepReceipt:
    """What one chunk step of a slot did."""

    slot: int
    env_steps: int
    """Useful env steps: actions executed while their episode ran."""
    ended: tuple[Ended, ...]
    seconds: float
    """Of the actor: its worker, and what goes there and comes back."""
    videos: tuple[str, ...] = ()
    began_ns: int = 0
    cpu_seconds: float = 0.0
    """Of processor time, in the worker process."""
    peak_bytes: int = 0
    """Most memory that the worker process has had."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """``ChunkResult.counts``."""


@dataclass(frozen=True)
class GenerateReceipt:
    """What one batch of the generator did."""

    rows: int
    version: int
    seconds: float
    began_ns: int = 0


SlotReceipt = CallReceipt | StepReceipt | GenerateReceipt
"""Of a call for some slots: a reset, a chunk step, a batch."""


@dataclass(frozen=True)
class Member:
    """One rollout of a unit."""

    episode_return: float
    success: bool
    steps: int


@dataclass(frozen=True)
class UnitReport:
    """A finished unit."""

    ticket: int
    kind: Literal["window", "group", "demonstration"]
    members: tuple[Member, ...]
    """Rollouts of a group; empty for a window."""
    oldest_version: int
    newest_version: int


@dataclass(frozen=True)
class TrainReceipt:
    """What one training step did."""

    version: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    began_ns: int = 0
    cpu_seconds: float = 0.0
    """Of processor time, in the trainer's process."""
    lags: tuple[int, ...] = ()
    """Samples that lay 0, 1, 2, ... versions behind."""
    memory: dict[str, float] = field(default_factory=dict)
    """Peaks of the trainer's process, by the names of their metrics."""
    lost: int = 0
    """Units that it left out: a chunk of theirs was lost with the machine that held it."""


@dataclass(frozen=True)
class PublishReceipt:
    """What the trainer's part of a publication did."""

    version: int
    began_ns: int = 0
    seconds: float = 0.0
