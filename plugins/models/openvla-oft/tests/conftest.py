"""Small checkpoints that several test files share, written once."""

import sys
from pathlib import Path

import pytest
import torch

from rlvla_model_openvla_oft import tiny

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread():
    """Products this small are faster without waiting for a second core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OpenVLA-OFT with three action dimensions and statistics of two data sets."""
    place = tmp_path_factory.mktemp("checkpoint")
    return tiny.write(place, action_dim=3, state_dim=4, data_sets=("reach_no_noops", "other"))


@pytest.fixture(scope="session")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with L1 head and proprio projector, which ``worlds.HEADED`` uses."""
    place = tmp_path_factory.mktemp("headed")
    return tiny.write(place, action_dim=3, state_dim=4, heads=True, data_sets=("reach_no_noops", "other"))
