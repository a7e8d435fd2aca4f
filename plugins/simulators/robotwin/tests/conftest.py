"""The runtime's interpreter, and assets of own geometry, made once; tests that need them say what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlvla import environments
from rlvla.errors import SimulatorError
from rlvla.plugin import find

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path (importlib), their helpers by name


@pytest.fixture(scope="session")
def interpreter() -> str:
    """Return the interpreter of the environment; skip where it is not installed."""
    try:
        return environments.installed(find("sim", "robotwin"))
    except SimulatorError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def toy(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an asset root."""
    root = tmp_path_factory.mktemp("robotwin") / "toy"
    subprocess.run([interpreter, "-m", "rlvla_sim_robotwin.toy_assets", str(root)], check=True, capture_output=True)
    return str(root)
