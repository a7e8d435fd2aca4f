"""Conformance suites to subclass, the same checks for a notebook, and worlds with known answers.

from rlvla.testing import AlgorithmConformance, check_algorithm

class TestMine(AlgorithmConformance):         # pytest
    name = "mine"

check_algorithm("mine", {"clip_low": 0.1})    # notebook
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvla.testing.algorithm import AlgorithmConformance as AlgorithmConformance
    from rlvla.testing.algorithm import check_algorithm as check_algorithm
    from rlvla.testing.model import ModelConformance as ModelConformance
    from rlvla.testing.model import check_model as check_model
    from rlvla.testing.scheduler import SchedulerConformance as SchedulerConformance
    from rlvla.testing.scheduler import check_scheduler as check_scheduler
    from rlvla.testing.simulator import SimulatorConformance as SimulatorConformance
    from rlvla.testing.simulator import check_simulator as check_simulator
    from rlvla.testing.suite import Conformance as Conformance
    from rlvla.testing.suite import check as check
    from rlvla.testing.suite import recorded_reads as recorded_reads
    from rlvla.testing.worlds import GuessingGame as GuessingGame
    from rlvla.testing.worlds import better_and_worse as better_and_worse
    from rlvla.testing.worlds import random_trajectories as random_trajectories

# name: module. Imported on first use, so that a suite for one kind does not import what another needs.
_EXPORTS = {
    "AlgorithmConformance": "algorithm",
    "Conformance": "suite",
    "GuessingGame": "worlds",
    "ModelConformance": "model",
    "SchedulerConformance": "scheduler",
    "SimulatorConformance": "simulator",
    "better_and_worse": "worlds",
    "check": "suite",
    "check_algorithm": "algorithm",
    "check_model": "model",
    "check_scheduler": "scheduler",
    "check_simulator": "simulator",
    "random_trajectories": "worlds",
    "recorded_reads": "suite",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlvla.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlvla.testing.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
