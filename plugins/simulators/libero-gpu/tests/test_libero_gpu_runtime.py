"""The tests that need MuJoCo Warp, from an interpreter that cannot hold it: in an environment that lies over this one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rlvla import environments
from rlvla.errors import SimulatorError
from rlvla.plugin import find
from rlvla_sim_libero_gpu import LiberoGpuConfig, packages

HERE = Path(__file__).parent
FILES = ("test_osc.py", "test_judge.py", "test_lamps.py", "test_libero_gpu_descriptor.py")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not packages.missing(), reason="this interpreter has the packages: these tests run here"),
]


@pytest.fixture(scope="module")
def interpreter() -> str:
    """Of an environment with these packages: libero-gpu's own, or that of tabletop's batched backend."""
    said = []
    for name in ("libero-gpu", "tabletop"):
        try:
            return environments.installed(find("sim", name))
        except SimulatorError as error:
            said.append(str(error))
    pytest.skip(said[0])


def test_its_own_tests_pass_there(interpreter: str) -> None:
    files = [str(HERE / file) for file in FILES]
    command = [interpreter, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=HERE.parents[3], env=environments.variables()
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert passed and int(passed[1]) >= 30, done.stdout[-1000:]


def test_workers_start_there() -> None:
    plugin, config = find("sim", "libero-gpu"), LiberoGpuConfig()
    assert environments.runs_apart(plugin, config)
    assert not plugin.describe(config).in_process
