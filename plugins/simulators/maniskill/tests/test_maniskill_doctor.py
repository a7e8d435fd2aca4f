"""The doctor's words, and one real picture."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from rlvla.cli.doctor import line
from rlvla.specs import Check
from rlvla_sim_maniskill import ManiSkillConfig, backends, doctor, startup

STATE = ManiSkillConfig(observation="state", backend="cpu")


def found(config: ManiSkillConfig) -> dict[str, Check]:
    return {check.name: check for check in doctor.checks(config)}


def test_a_machine_that_works_passes_by_really_drawing() -> None:
    checks = found(STATE)
    assert set(checks) == {"settings", "licence", "physics on the GPU", "packages", "Vulkan", "task"}
    assert all(check.ok or check.warning for check in checks.values()), checks
    assert "CC BY-NC 4.0" in checks["licence"].found
    assert checks["task"].found == "PushCube-v1 stands"


def test_settings_come_first() -> None:
    checks = list(doctor.checks(ManiSkillConfig(task="PushCub-v1", backend="cpu")))
    assert [check.ok for check in checks] == [False]
    assert "Did you mean 'PushCube-v1'?" in checks[0].found


def test_a_driver_that_is_not_there_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "icd.json"
    broken.write_text(
        '{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere.so", "api_version": "1.3.0"}}'
    )
    monkeypatch.setenv("VK_ICD_FILENAMES", str(broken))
    checks = found(STATE)
    assert "SAPIEN finds no usable Vulkan device" in checks["Vulkan"].found and not checks["Vulkan"].ok
    assert "task" not in checks
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "other.json"))
    assert "no such file" in found(STATE)["Vulkan"].found


def test_other_versions_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "version", lambda name: {"sapien": "2.2.2"}.get(name, ""))
    checks = [check for check in doctor.checks(STATE) if check.name == "packages"]
    assert [check.found for check in checks] == [
        "mani-skill 3.0.1 expected, found none: pip install mani-skill==3.0.1",
        "sapien 3.0.3 expected, found 2.2.2: pip install sapien==3.0.3",
    ]


@pytest.mark.parametrize(("backend", "state"), [("cpu", "ok"), ("auto", "warn"), ("gpu", "FAIL")])
def test_physics_on_the_gpu_is_missed_by_those_who_want_it(
    backend: Literal["cpu", "auto", "gpu"], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "missing", lambda: "no library")
    check = doctor._physics(ManiSkillConfig(backend=backend))
    assert line(check).split()[0] == state
    assert "physics runs on the CPU: no library" in check.found
