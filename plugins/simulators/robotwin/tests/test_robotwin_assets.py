"""Assets that are missing in part or as a whole, and variables that name something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvla_sim_robotwin import RoboTwinConfig, assets


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (assets.ROOT, assets.LEGACY):
        monkeypatch.delenv(name, raising=False)


GLB = b"glTF" + (2).to_bytes(4, "little") + (16).to_bytes(4, "little") + bytes(4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root that has what every task needs."""
    robot = tmp_path / "assets/embodiments/aloha-agilex"
    robot.mkdir(parents=True)
    for name in ("curobo_left_tmp.yml", "curobo_right_tmp.yml"):
        (robot / name).touch()
    (robot / "arms.urdf").write_text("<robot/>")
    (robot / "config.yml").write_text("urdf_path: ./arms.urdf\n")
    (tmp_path / "assets/objects").mkdir()
    (tmp_path / "assets/background_texture").mkdir()
    return tmp_path


def problem(root: Path, **options: object) -> str:
    (found,) = assets.problems(RoboTwinConfig(assets=str(root), **options))  # type: ignore[arg-type]
    return found


def test_a_root_with_everything_is_fine(root: Path) -> None:
    assert assets.problems(RoboTwinConfig(assets=str(root))) == []


def test_without_a_root_the_command_that_brings_assets_is_named() -> None:
    (found,) = assets.problems(RoboTwinConfig())
    assert found.startswith(
        "RoboTwin assets not found (sim.assets and ROBOTWIN_ASSETS_ROOT are not set). They are in no"
    )
    assert "robotwin-download-assets --output DIR and set ROBOTWIN_ASSETS_ROOT=DIR" in found


def test_a_folder_without_assets_lists_what_is_missing(tmp_path: Path) -> None:
    found = problem(tmp_path)
    for name in ("background_texture", "objects", "embodiments/aloha-agilex/config.yml"):
        assert f"assets/{name}" in found


def test_a_robots_missing_files_are_named(root: Path) -> None:
    (root / "assets/embodiments/aloha-agilex/arms.urdf").unlink()
    (root / "assets/embodiments/aloha-agilex/curobo_left_tmp.yml").unlink()
    found = problem(root)
    assert "aloha-agilex/arms.urdf" in found and "aloha-agilex/curobo_left_tmp.yml" in found
    assert "assets/embodiments/piper/config.yml" in problem(root, embodiment=("piper", "piper"))


def test_a_robot_with_one_arm_needs_another_one(root: Path) -> None:
    config = root / "assets/embodiments/aloha-agilex/config.yml"
    config.write_text("urdf_path: ./arms.urdf\ndual_arm: false\n")
    assert "embodiment: aloha-agilex has one arm (its config.yml); wanted a two-armed robot, or two" in problem(root)
    assert assets.problems(RoboTwinConfig(assets=str(root), embodiment=("aloha-agilex", "aloha-agilex"))) == []


def test_the_folder_assets_itself_is_not_the_root(root: Path) -> None:
    assert f"is the folder assets/ itself; wanted the one it lies in: {root}" in problem(root / "assets")


def test_textures_and_clutter_are_asked_for_where_they_are_used(root: Path) -> None:
    assert "assets/background_texture/seen/*.png" in problem(root, random_background=True, textures="seen")
    found = problem(root, cluttered_table=True)
    assert "assets/objects/objaverse/list.json" in found and "assets/objects/same.json" in found


def test_objects_need_a_mesh_and_their_data(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "objects_of", lambda task: ["050_bell"])
    assert "missing: assets/objects/050_bell)" in problem(root)
    bell = root / "assets/objects/050_bell"
    (bell / "visual").mkdir(parents=True)
    assert "050_bell/model_data*.json, assets/objects/050_bell/visual/*.glb" in problem(root)
    (bell / "collision").mkdir()
    (bell / "collision/base0.glb").write_bytes(GLB)
    (bell / "model_data0.json").write_text("{}")
    assert "missing: assets/objects/050_bell/visual/*.glb)" in problem(root)
    (bell / "visual/base0.glb").write_bytes(GLB)
    assert assets.problems(RoboTwinConfig(assets=str(root))) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("objects/050_bell/model_data0.json", b"{"),
        ("objects/050_bell/visual/base0.glb", GLB[:-1]),
        ("embodiments/aloha-agilex/arms.urdf", b"no XML"),
        ("embodiments/aloha-agilex/config.yml", b"[1, 2]"),
        ("embodiments/aloha-agilex/config.yml", b"a: [1"),
    ],
)
def test_damaged_files_are_named(root: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: bytes) -> None:
    monkeypatch.setattr(assets, "objects_of", lambda task: ["050_bell"])
    bell = root / "assets/objects/050_bell"
    (bell / "visual").mkdir(parents=True)
    (bell / "model_data0.json").write_text("{}")
    (bell / "visual/base0.glb").write_bytes(GLB)
    (root / "assets" / file).write_bytes(content)
    assert f"missing: assets/{file} (damaged" in problem(root)


def test_another_revision_is_named(root: Path) -> None:
    (root / assets.MANIFEST).write_text(json.dumps({"revision": "abc"}))
    assert f"are revision abc, the runtime wants {assets.REVISION}" in problem(root)
    (root / assets.MANIFEST).write_text("{")
    assert "is not JSON" in problem(root)
    (root / assets.MANIFEST).write_text(json.dumps({"revision": assets.REVISION}))
    assert assets.problems(RoboTwinConfig(assets=str(root))) == []


def test_either_variable_names_the_root_and_both_must_agree(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(assets.LEGACY, str(root))
    assert assets.problems(RoboTwinConfig()) == []
    monkeypatch.setenv(assets.ROOT, str(root / "."))
    assert assets.problems(RoboTwinConfig()) == []
    monkeypatch.setenv(assets.ROOT, str(root.parent))
    found = assets.problems(RoboTwinConfig())
    assert any(f"{assets.LEGACY}={root} name two folders" in one for one in found)
    assert assets.problems(RoboTwinConfig(assets=str(root))) == []


def test_the_runtime_is_told_by_both_variables(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(assets.ROOT, "/elsewhere")
    monkeypatch.setenv(assets.LEGACY, "/elsewhere")
    assets.set_environment(root)
    assert assets.root(RoboTwinConfig()) == root
    assert assets.os.environ[assets.LEGACY] == str(root)
