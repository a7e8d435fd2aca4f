"""The batched backend from an interpreter that cannot hold its packages: in the environment of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tabletop_world import GPU, random_chunk

from rlvla import environments
from rlvla.configs import Choice
from rlvla.errors import SimulatorError
from rlvla.plugin import find
from rlvla.specs import Start
from rlvla.worker.client import open_simulator
from rlvla_sim_tabletop import TabletopConfig, backends

HERE = Path(__file__).parent
FILES = ("test_worlds.py", "test_order.py", "test_tabletop_batched.py", "test_tabletop_batched_conformance.py")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not backends.missing(), reason="this interpreter has the packages of backend gpu: its tests run here"
    ),
]


@pytest.fixture(scope="module")
def interpreter() -> str:
    try:
        return environments.installed(find("sim", "tabletop"))
    except SimulatorError as error:
        pytest.skip(str(error))


def test_its_own_tests_pass_there(interpreter: str) -> None:
    command = [
        interpreter,
        "-m",
        "pytest",
        "-n0",
        "-q",
        "-p",
        "no:cacheprovider",
        *(str(HERE / file) for file in FILES),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=HERE.parents[3], env=environments.variables()
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert passed and int(passed[1]) >= 40, done.stdout[-1000:]


def test_what_it_shows_travels_through_shared_memory(interpreter: str) -> None:
    plugin, config = find("sim", "tabletop"), TabletopConfig(**GPU)
    assert not plugin.describe(config).in_process
    assert environments.interpreter(plugin, config) == interpreter
    with open_simulator(Choice(plugin, config), rows=2, horizon=2) as there:
        shown = there.reset([0, 1], [4, 4], [Start(1), Start(1)])
        assert shown.images["front"].std() > 10 and (shown.images["front"][0] == shown.images["front"][1]).all()
        result = there.step(random_chunk(2, 2, seed=0), np.array([True, False]))
        assert result.valid.tolist() == [[True, True], [False, False]]
        assert there.versions()["mujoco-warp"] and result.counts == {"contacts_left_out": 0.0, "worlds_diverged": 0.0}


def test_the_cpu_backend_stays_here() -> None:
    assert environments.interpreter(find("sim", "tabletop"), TabletopConfig()) is None


def test_without_the_packages_the_extra_is_named() -> None:
    with pytest.raises(
        SimulatorError, match=r"needs .*: pip install 'rlvla-sim-tabletop\[gpu\]'.*simulators install tabletop"
    ):
        backends.simulator(TabletopConfig(**GPU), 1)
