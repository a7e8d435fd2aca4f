"""What a Ray runtime does not let in, and what a machine must have."""

import dataclasses
import os
import subprocess
import sys

import pytest
from ray_runs import MARKS, PPO

import rlvla
from rlvla import configs, versions
from rlvla.configs import Choice
from rlvla.errors import ConfigError, SimulatorError
from rlvla.plugin import find
from rlvla.runtimes import cluster

pytestmark = MARKS


@pytest.mark.e2e
def test_a_ray_of_our_own_takes_nobody_without_its_secret(ray):
    """Ray listens on every interface; whoever may call it may run code."""
    import ray as library

    place = library.get_runtime_context().gcs_address
    code = f"import ray; ray.init(address={place!r}, logging_level='error'); print('in')"
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    ended = subprocess.run([sys.executable, "-c", code], env=stranger, capture_output=True, text=True, timeout=250)
    assert ended.returncode != 0
    assert "in" not in ended.stdout.split()
    assert "Failed to connect to Ray cluster" in ended.stderr


def test_a_machine_without_a_package_is_named(ray):
    """The function that looks travels by value: it needs nothing there."""
    import ray as library

    here = versions.everywhere(configs.read({"sim": "fake", "model": "fake", "algo": "ppo", "scheduler": "sync"}))
    assert {"python", "rlvla", "torch", "rlvla-algo-ppo"} <= set(here)
    cluster.check_nodes(library, here)
    with pytest.raises(ConfigError, match=r"node \S+: rlvla-sim-moon is not installed, wanted 0\.1\.0: pip install"):
        cluster.check_nodes(library, {**here, "rlvla-sim-moon": "0.1.0"})


def test_what_a_simulator_misses_is_asked_where_it_is_to_live(tmp_path, ray):
    """In a worker on that machine, before any model is made; here it misses whatever its config has."""
    plugin = dataclasses.replace(find("sim", "fake"), preflight="builtins:dir")
    sim = Choice(plugin, plugin.config(num_envs=5))
    options = {"runtime": "ray", "device": "cpu", "directory": str(tmp_path), "without": ["display", "tensorboard"]}
    with (
        rlvla.build(sim=sim, model="fake", algo=PPO, run=options) as run,
        pytest.raises(SimulatorError, match=r"^node \S+: fake: (.*\n)*num_envs\n"),
    ):
        run.train()
    assert run._engine is None, "it was asked too late"
