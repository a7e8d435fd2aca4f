"""One simulator for most tests: building takes seconds and a picture a tenth of one, so they are shared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlvla_sim_libero.simulator import LiberoSimulator

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path (importlib), their helpers by name

from libero_world import CONFIG


@pytest.fixture(scope="session")
def shared() -> Iterator[LiberoSimulator]:
    simulator = LiberoSimulator(CONFIG, rows=2)
    yield simulator
    simulator.close()


@pytest.fixture
def simulator(shared: LiberoSimulator) -> Iterator[LiberoSimulator]:
    yield shared
    shared.record_video([])


@pytest.fixture
def actions() -> np.ndarray:
    """Random chunks: [3 chunks, 2 rows, 8 actions, 7]."""
    return np.random.default_rng(0).uniform(-1, 1, (3, 2, 8, 7)).astype(np.float32)
