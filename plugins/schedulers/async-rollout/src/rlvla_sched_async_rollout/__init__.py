"""The schedule of asynchronous rollouts: publish, roll out with each slot at its own pace, train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rlvla
from rlvla.specs import SchedulerSpec

if TYPE_CHECKING:
    from rlvla_sched_async_rollout.scheduler import AsyncRolloutScheduler

__version__ = "0.1.0"


@rlvla.config
class AsyncRolloutConfig:
    """Each slot at its own pace, then training; strictly on-policy."""


def describe(config: AsyncRolloutConfig) -> SchedulerSpec:
    """Return what it promises: every chunk is produced by the weights that are trained next."""
    return SchedulerSpec(on_policy=True, max_staleness=0, min_slots=4)


plugin: rlvla.Plugin[AsyncRolloutConfig, AsyncRolloutScheduler] = rlvla.Plugin(
    config=AsyncRolloutConfig, target="rlvla_sched_async_rollout.scheduler:AsyncRolloutScheduler", describe=describe
)
