"""The hybrid schedule: stages of each simulator alternate with the generators; then training, on all devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

import rlvla
from rlvla.specs import SchedulerSpec

if TYPE_CHECKING:
    from rlvla_sched_hybrid.scheduler import HybridScheduler

__version__ = "0.1.0"


@rlvla.config
class HybridConfig:
    """Stages of each simulator alternate with the generators; strictly on-policy."""

    stages: Annotated[int, Ge(1)] | None = None
    """Parts of each simulator device's environments that take turns; None: 1, 2 or 4, from what generation and simulation
    took in the step before."""


def describe(config: HybridConfig) -> SchedulerSpec:
    """Return what it promises, and how many slots it splits a device into."""
    return SchedulerSpec(
        on_policy=True,
        max_staleness=0,
        min_slots=config.stages or 4,
        stages=config.stages or 1,
        alternates=True,
        phases=(
            ("publish",),
            ("generate", "simulate"),
            ("train",),
        ),  # also with one stage: devices do not wait for others
    )


plugin: rlvla.Plugin[HybridConfig, HybridScheduler] = rlvla.Plugin(
    config=HybridConfig, target="rlvla_sched_hybrid.scheduler:HybridScheduler", describe=describe
)
