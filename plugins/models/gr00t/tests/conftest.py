"""Small checkpoints that several test files share, written once."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from rlvla_model_gr00t import tiny

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
    """A tiny GR00T with three action and four state dimensions, two robots, and a value head."""
    place = tmp_path_factory.mktemp("checkpoint")
    return tiny.write(place, action_dim=3, state_dim=4, tags=("new_embodiment", "gr1"), values=1)


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))
