"""One simulator for most tests: a process compiles shaders for seconds before its first picture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlvla_sim_maniskill.simulator import ManiSkillSimulator

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path (importlib), their helpers by name

from maniskill_world import STATE


@pytest.fixture(scope="session")
def shared() -> Iterator[ManiSkillSimulator]:
    simulator = ManiSkillSimulator(STATE, rows=2)
    yield simulator
    simulator.close()


@pytest.fixture
def simulator(shared: ManiSkillSimulator) -> Iterator[ManiSkillSimulator]:
    yield shared
    shared.record_video([])


@pytest.fixture
def actions() -> np.ndarray:
    """Random chunks: [3 chunks, 2 rows, 4 actions, 7]."""
    return np.random.default_rng(0).uniform(-1, 1, (3, 2, 4, 7)).astype(np.float32)
