"""The fully asynchronous schedule: rollouts never stop, training follows, weights are swapped in under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

import rlvla
from rlvla.specs import SchedulerSpec

if TYPE_CHECKING:
    from rlvla_sched_full_async.scheduler import FullAsyncScheduler

__version__ = "0.1.0"


@rlvla.config
class FullAsyncConfig:
    """Rollouts never stop; training as soon as its units are complete; staleness bounded."""

    max_staleness: Annotated[int, Ge(0)] = 1
    """Versions that a unit's oldest chunk may lie behind the weights that it trains; 0: strictly on-policy."""


def describe(config: FullAsyncConfig) -> SchedulerSpec:
    """Return what it promises: how old a unit may be."""
    return SchedulerSpec(on_policy=config.max_staleness == 0, max_staleness=config.max_staleness, min_slots=4)


plugin: rlvla.Plugin[FullAsyncConfig, FullAsyncScheduler] = rlvla.Plugin(
    config=FullAsyncConfig, target="rlvla_sched_full_async.scheduler:FullAsyncScheduler", describe=describe
)
