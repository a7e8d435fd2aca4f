"""What the controller sees: a few bytes about each call, never its pictures. Light: no torch."""

from __future__ import annotations

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
class StepReceipt:
    """What one chunk step of a slot did."""

    slot: int
    env_steps: int
    """Useful env steps: actions executed while their episode ran."""
    ended: tuple[Ended, ...]
    seconds: float
    """Inside the simulator worker."""
    videos: tuple[str, ...] = ()


@dataclass(frozen=True)
class GenerateReceipt:
    """What one batch of the generator did."""

    rows: int
    version: int
    seconds: float


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
