"""What is known without importing LIBERO, MuJoCo, warp or torch, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rlvla import environments
from rlvla.configs import read_choice
from rlvla.errors import ConfigError, SimulatorError
from rlvla.plugin import find
from rlvla_sim_libero import LiberoConfig
from rlvla_sim_libero import describe as describe_libero
from rlvla_sim_libero_gpu import LiberoGpuConfig, describe, packages


def test_describing_imports_no_simulator() -> None:
    code = (
        "import sys, rlvla_sim_libero_gpu as one; one.describe(one.LiberoGpuConfig(suite='libero_130'));"
        "assert not {'libero', 'mujoco', 'robosuite', 'torch', 'numpy', 'warp'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_policies_of_libero_fit_without_a_change() -> None:
    here, there = describe(LiberoGpuConfig(suite="libero_10")), describe_libero(LiberoConfig(suite="libero_10"))
    for name in ("cameras", "state", "action", "control_hz", "max_episode_steps", "tasks", "max_instruction_bytes"):
        assert getattr(here, name) == getattr(there, name), name
    assert (here.device, here.restorable, here.builds_tasks) == ("gpu", True, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"suite": "libero_spatail"}, "Did you mean 'libero_spatial'?"),
        ({"tasks": (3, 10)}, "got \\[10\\], wanted numbers from 0 to 9"),
        *(({"device": one}, f"device: got {one!r}, wanted 'cuda'") for one in ("cuda:x", "cuda:", "cuda:-1")),
        ({"device": "gpu"}, "device: got 'gpu', wanted 'cuda', 'cuda:N' \\(N from 0\\) or 'cpu'"),
        ({"bddl_file": "/nowhere/task.bddl"}, "wanted an existing task file"),
    ],
)
def test_settings_that_cannot_work_are_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe(LiberoGpuConfig(**options))


@pytest.mark.parametrize("options", [{"num_env": 3}, {"stock_path": True}, {"texture_size": 8}, {"layouts": 0}])
def test_options_that_it_does_not_have_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        read_choice("sim", {"use": "libero-gpu", **options})


def test_missing_packages_are_named_with_what_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing", lambda: ["mujoco>=3.13 (found 3.3.7)"])
    assert packages.runs_apart(LiberoGpuConfig())
    with pytest.raises(SimulatorError, match=r"mujoco>=3.13 \(found 3.3.7\): rlvla simulators install libero-gpu"):
        packages.simulator(LiberoGpuConfig(), 2)


def test_its_environment_lies_over_this_interpreter() -> None:
    plugin = find("sim", "libero-gpu")
    assert plugin.environment is not None and plugin.environment.over
    assert plugin.environment.packages["gpu"] == packages.REQUIREMENTS
    wanted = environments.requirements(plugin, "gpu")
    assert not [
        one for one in wanted if one.startswith("rlvla-sim-libero")
    ]  # it is below, and would bring mujoco 3.3.7


@pytest.mark.skipif(bool(packages.missing()), reason="needs the packages of the extra gpu")
@pytest.mark.timeout(300)
class TestRefusedAtTheStart:
    def test_without_a_gpu(self) -> None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is one")
        with pytest.raises(SimulatorError, match="'cuda', but this process sees 0 CUDA devices.*CPU backend"):
            packages.simulator(LiberoGpuConfig(), 2)

    def test_a_task_file_whose_goal_cannot_be_judged(self, tmp_path: Any) -> None:
        from rlvla_sim_libero import startup
        from rlvla_sim_libero.tasks import SUITES

        text = startup.task_file(SUITES["libero_goal"][8]).read_text()
        own = tmp_path / "lift.bddl"
        own.write_text(text.replace("(On akita_black_bowl_1 plate_1)", "(Up akita_black_bowl_1)"))
        with pytest.raises(SimulatorError, match=r"goal \(up akita_black_bowl_1\): predicate 'up' cannot be judged"):
            packages.simulator(LiberoGpuConfig(bddl_file=str(own), device="cpu"), 2)

    def test_more_worlds_than_fit(self) -> None:
        import mujoco
        import torch

        from rlvla.mujoco_warp.room import room_for

        model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
        with pytest.raises(SimulatorError, match="worlds take about .* fit at most"):
            room_for(model, mujoco.MjData(model), 10**6, 200, 600, 0, torch.device("cpu"), 2**30)

    def test_doctor_reckons_what_the_chosen_limits_take(self) -> None:
        from rlvla_sim_libero_gpu.doctor import checks

        def memory(**options: Any) -> Any:
            return list(checks(LiberoGpuConfig(device="cpu", **options)))[-1]

        found = memory(num_envs=2, image_size=64)
        assert found.ok and "2 worlds of one task need about" in found.found
        found = memory(num_envs=8192, image_size=1024, contacts=2000)
        assert not found.ok and "fit at most" in found.found and "lower contacts or constraints" in found.found
