"""How far a chunk is, where the toy's arms reach, drivers, and what is wrong with an interpreter."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rlvla.errors import SimulatorError
from rlvla_sim_robotwin import RoboTwinConfig, doctor, startup, toy_assets, vulkan
from rlvla_sim_robotwin.episode import Way
from rlvla_sim_robotwin.simulator import _refuse_blank


def way(points: tuple[int, int], passed: tuple[int, int]) -> Way:
    return Way(10, dict(zip(("left", "right"), points, strict=True)), dict(zip(("left", "right"), passed, strict=True)))


@pytest.mark.parametrize(
    ("passed", "begun", "done"),
    [((0, 0), 1, 0), ((1, 1), 1, 0), ((10, 5), 1, 1), ((11, 6), 2, 1), ((99, 49), 10, 9), ((100, 50), 10, 10)],
)
def test_actions_begin_and_end_with_their_part_of_the_way(passed: tuple[int, int], begun: int, done: int) -> None:
    assert (way((100, 50), passed).begun, way((100, 50), passed).done) == (begun, done)


def test_an_action_is_left_behind_by_both_arms() -> None:
    assert (way((100, 50), (30, 10)).begun, way((100, 50), (30, 10)).done) == (3, 2)


@pytest.mark.parametrize(("side", "tip"), [("left", (-0.15, -0.03, 0.78)), ("right", (0.2, -0.15, 0.8))])
def test_the_toys_fingertips_are_where_they_were_sent(side: str, tip: tuple[float, float, float]) -> None:
    turn, shoulder, elbow, wrist, *_ = toy_assets.reach(side, tip)
    pitch = np.cumsum([shoulder, elbow, wrist])
    lengths = np.array([toy_assets.UPPER, toy_assets.FORE, toy_assets.HAND])
    along = float(lengths @ np.cos(pitch))
    way_there = [-math.sin(turn) * along, math.cos(turn) * along, -float(lengths @ np.sin(pitch))]
    found = np.add(toy_assets.BASE[side], way_there)
    assert np.allclose(found, tip) and pitch[-1] == pytest.approx(math.pi / 2)


def test_what_is_out_of_reach_is_said() -> None:
    with pytest.raises(ValueError, match="out of the left arm's reach"):
        toy_assets.reach("left", (0.6, 0.5, 0.8))


def test_this_interpreter_is_none_for_the_runtime() -> None:
    found = startup.package_problems()
    assert found[0].startswith("rlinf-robotwin-runtime 0.1.3 needs Python 3.10 or 3.11 and numpy < 2; found Python 3.")
    assert "rlinf-robotwin-runtime 0.1.3 expected, found none" in found[1]
    assert all("rlvla simulators install robotwin" in one for one in found)


def test_curobo_is_not_the_package_of_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert startup.planner_problems(RoboTwinConfig()) == []
    (found,) = startup.planner_problems(RoboTwinConfig(planner="curobo"))
    assert "curobo is not importable (it is not the package of that name" in found and found.endswith("use mplib")
    (tmp_path / "curobo").mkdir()
    (tmp_path / "curobo/__init__.py").touch()  # the placeholder
    monkeypatch.syspath_prepend(str(tmp_path))
    assert startup.planner_problems(RoboTwinConfig(planner="curobo"))


def test_ray_tracing_on_a_software_driver_is_refused_before_it_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "visible_gpus", lambda: 0)
    assert vulkan.NO_RAY_TRACING in startup.problems(RoboTwinConfig())
    assert vulkan.NO_RAY_TRACING not in startup.problems(RoboTwinConfig(shader="default"))
    monkeypatch.setattr(vulkan, "visible_gpus", lambda: 1)
    assert vulkan.NO_RAY_TRACING not in startup.problems(RoboTwinConfig())


def test_drivers_are_the_users_then_the_unpacked_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vulkan, "visible_gpus", lambda: 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in vulkan.VARIABLES:
        monkeypatch.setenv(name, "")
    assert vulkan.set_environment() == ""
    own = tmp_path / "rlvla/cpu-vulkan/icd.json"
    own.parent.mkdir(parents=True)
    own.touch()
    assert vulkan.set_environment() == str(own)
    (tmp_path / "mine.json").touch()
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "mine.json"))
    assert vulkan.set_environment() == str(tmp_path / "mine.json")
    monkeypatch.setenv("VK_ICD_FILENAMES", "/no/icd.json")
    with pytest.raises(SimulatorError, match=r"VK_ICD_FILENAMES=/no/icd.json: no such file /no/icd.json"):
        vulkan.set_environment()
    assert any("VK_ICD_FILENAMES=/no/icd.json" in one for one in startup.problems(RoboTwinConfig()))


def test_doctor_stops_at_settings_that_cannot_work() -> None:
    (only,) = doctor.checks(RoboTwinConfig(task="nothing"))
    assert not only.ok and "no task 'nothing'" in only.found


def test_doctor_without_the_runtime_draws_nothing() -> None:
    names = [check.name for check in doctor.checks(RoboTwinConfig())]
    assert names == ["settings", "packages", "packages", "assets", "planner", "seeds"]


def test_a_picture_of_nothing_is_refused() -> None:
    blank, drawn = np.zeros((4, 4, 3), np.uint8), np.eye(4, dtype=np.uint8)[..., None].repeat(3, 2)
    with pytest.raises(SimulatorError, match="camera head shows nothing but 0: the driver does not draw"):
        _refuse_blank({"head": blank})
    _refuse_blank({"head": drawn})
    _refuse_blank({"left_wrist": blank})  # a table alone may look like that
