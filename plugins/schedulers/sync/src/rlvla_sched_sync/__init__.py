"""The synchronous schedule: publish, roll out with all slots in phase, train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rlvla
from rlvla.specs import SchedulerSpec

if TYPE_CHECKING:
    from rlvla_sched_sync.scheduler import SyncScheduler

__version__ = "0.1.0"


@rlvla.config
class SyncConfig:
    """All slots in phase, then training; strictly on-policy."""


def describe(config: SyncConfig) -> SchedulerSpec:
    """Return what it promises: every chunk is produced by the weights that are trained next."""
    return SchedulerSpec(
        on_policy=True, max_staleness=0, phases=(("publish",), ("generate",), ("simulate",), ("train",))
    )


plugin: rlvla.Plugin[SyncConfig, SyncScheduler] = rlvla.Plugin(
    config=SyncConfig, target="rlvla_sched_sync.scheduler:SyncScheduler", describe=describe
)
