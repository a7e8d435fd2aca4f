"""PutOnPlateInScene25...: what is drawn, which files are missing, and the tasks themselves on generated stand-in assets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plate25_standins
import pytest
import torch

from rlvla.configs import Choice
from rlvla.errors import ConfigError, SimulatorError
from rlvla.plugin import find
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator
from rlvla_sim_maniskill import ManiSkillConfig, describe, doctor, instance, plate25
from rlvla_sim_maniskill.plate25 import VARIANTS, Range, draw

pytestmark = pytest.mark.timeout(600)
MAIN = "PutOnPlateInScene25Main-v3"
_HERE = Path(__file__).parent


def drawn(name: str, objects: str, number: int = 300) -> list[plate25.Episode]:
    return [draw(VARIANTS[name], objects, np.random.RandomState(seed)) for seed in range(number)]  # type: ignore[arg-type]


# What an episode draws


def test_there_are_the_published_tasks() -> None:
    assert len(VARIANTS) == 14
    assert all(describe(ManiSkillConfig(task=name, backend="cpu")).tasks[0].suite == "plate25" for name in VARIANTS)


def test_training_draws_from_the_first_sixteen_objects_and_tables() -> None:
    episodes = drawn(MAIN, "train")
    assert {one.object_ for one in episodes} == set(range(16)) == {one.table for one in episodes}
    assert {one.plate for one in episodes} == {0}
    assert {one.turn for one in episodes} == set(plate25.TURNS)


def test_held_out_objects_and_tables_were_never_trained_on() -> None:
    episodes = drawn(MAIN, "test")
    assert {one.object_ for one in episodes} == set(range(16, 25))
    assert {one.table for one in episodes} == set(range(16, 21))
    assert plate25.Split(Range(0, 16), Range(16, 9)).of("all") == Range(0, 25)


def test_each_variant_changes_its_one_thing() -> None:
    inside = {plate25._cell(x, y) for x in range(6) for y in range(6)}
    for name, variant in VARIANTS.items():
        train, test = drawn(name, "train"), drawn(name, "test")
        new_objects = {one.object_ for one in test} - set(range(16))
        new_tables = {one.table for one in test} - set(range(16))
        assert bool(new_objects) == (variant.objects is plate25._NEW_OBJECTS), name
        assert bool(new_tables) == (
            name in (MAIN, "PutOnPlateInScene25VisionImage-v1", "PutOnPlateInScene25MultiPlate-v1")
        )
        assert ({one.plate for one in test} != {0}) == (variant.plates is plate25._NEW_PLATES), name
        assert all(set(one.places) <= inside for one in train), name
        assert any(set(one.places) <= inside for one in test) == (variant.places != "around"), name
        assert any(any(one.joints) for one in test) == variant.robot_pose and not any(any(one.joints) for one in train)
        assert ({one.words for one in test} != {plate25.OWN_WORDS}) == variant.wording
        assert {one.words for one in train} == {plate25.OWN_WORDS}


def test_things_never_lie_on_each_other_and_distractors_are_others() -> None:
    for name, variant in VARIANTS.items():
        for one in drawn(name, "test"):
            assert plate25._distance(*one.places[:2]) > 0.070, name
            assert (one.second is not None) == (variant.distractor is not None)
            if variant.distractor == "object":
                assert one.second != one.object_ and one.second in range(16, 25)
                assert plate25._distance(one.places[0], one.places[2]) > 0.15
            if variant.distractor == "plate":
                assert one.second != one.plate and one.second in range(1, 17)
                assert plate25._distance(one.places[1], one.places[2]) > 0.15


def test_the_arm_leans_no_farther_than_its_hand_stays_above_the_table() -> None:
    for one in drawn("PutOnPlateInScene25EEPose-v1", "test"):
        assert abs(one.joints[1] + one.joints[2]) <= 0.25 and any(one.joints)


def test_grasping_and_placing_is_worth_its_published_parts() -> None:
    flags = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    info = dict(zip(("is_src_obj_grasped", "consecutive_grasp", "success"), flags.T, strict=True))
    assert instance.grasp_and_place(info).tolist() == pytest.approx([0.0, 0.1, 0.2, 1.2, 0.0])


# Files


def test_every_missing_file_is_named_with_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "maniskill"))
    config = ManiSkillConfig(task=MAIN, backend="cpu", assets=str(tmp_path / "data"))
    with pytest.raises(SimulatorError) as caught:
        instance.made(config, 1, "cpu")
    message = str(caught.value)
    assert message.startswith("5 files are missing: ")
    for name in ("robots/widowx/wx250s.urdf", "stages/bridge_table_1_v1.glb", "carrot/more_plate/model_db.json"):
        assert name in message
    assert f"hf download --repo-type dataset RLinf/maniskill_assets --local-dir {tmp_path / 'data'}" in message
    assert "python -m mani_skill.utils.download_asset bridge_v2_real2sim" in message
    assert "python -m mani_skill.utils.download_asset widowx250s" in message
    found = [check.found for check in doctor.checks(config) if check.name == "assets"]
    assert found == [message]


def test_lists_that_are_there_tell_of_further_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "maniskill"))
    plate25_standins.write(tmp_path / "maniskill", tmp_path / "data")
    assert plate25.missing(str(tmp_path / "data")) == []
    gone = [
        tmp_path / "data/carrot/more_carrot/thing_03/collision.obj",
        tmp_path / "data/carrot/more_plate/plate_00/textured.glb",
        tmp_path / "data/carrot/more_table/textures/texture_020.png",
    ]
    for path in gone:
        path.unlink()
    found = plate25.missing(str(tmp_path / "data"))
    assert [path.parent.name + path.stem for path in found] == [path.parent.name + path.stem for path in gone]
    (tmp_path / "data/carrot/more_table/model_db.json").write_text("{}")
    assert "0 entries, wanted 21" in plate25.damages(str(tmp_path / "data"))[0]


def test_a_damaged_robot_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "maniskill"))
    plate25_standins.write(tmp_path / "maniskill", tmp_path / "data")
    file = tmp_path / "maniskill/data/robots/widowx/wx250s.urdf"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(
        SimulatorError, match=r"wx250s\.urdf is no XML .*: python -m mani_skill.utils.download_asset widowx"
    ):
        instance.made(ManiSkillConfig(task=MAIN, backend="cpu", assets=str(tmp_path / "data")), 1, "cpu")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("more_carrot", "{not json", r"more_carrot/model_db\.json cannot be read: .*download it again"),
        ("more_plate", "[1, 2]", r"more_plate/model_db\.json holds a list, wanted an object"),
        ("more_carrot", '{"a": 3}', r"model_db\.json is damaged.*\n +a: got 3, wanted a dictionary"),
        ("more_carrot", '{"a": {"name": "a"}}', r"a\.bbox: missing"),
        ("more_plate", '{"a": {"name": "a", "bbox": {"min": [0, 0], "max": [1, 1, 1]}}}', r"a\.bbox\.min\.2: missing"),
        (
            "more_plate",
            '{"a": {"name": "a", "bbox": {"min": [0, 0, NaN], "max": [1, 1, 1]}}}',
            r"min\.2: got nan, wanted a fin",
        ),
        ("more_table", '{"a.png": {"mix": 1.0}}', r"a\.png\.texture: missing"),
        ("more_table", '{"a.png": {"texture": "t.png", "mix": "much"}}', r"a\.png\.mix: got 'much'"),
        (
            "more_table",
            '{"a.png": {"texture": "../../t.png", "mix": 1}}',
            r"names '\.\./\.\./t\.png', wanted names of files",
        ),
        ("more_carrot", '{"../a": {}}', r"names '\.\./a', wanted names of files beside it"),
    ],
)
def test_damaged_lists_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, words: str
) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "maniskill"))
    plate25_standins.write(tmp_path / "maniskill", tmp_path / "data")
    (tmp_path / "data/carrot" / kind / "model_db.json").write_text(text)
    config = ManiSkillConfig(task=MAIN, backend="cpu", assets=str(tmp_path / "data"))
    with pytest.raises(SimulatorError, match=words):
        instance.made(config, 1, "cpu")
    assert any(re.search(words, one.found) for one in doctor.checks(config) if one.name == "assets")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": MAIN, "image_size": 128}, "pictures of this task are 640x480"),
        ({"objects": "test"}, "PushCube-v1 has no use for it"),
        ({"assets": "/data"}, "PushCube-v1 has no use for it"),
        ({"reward": "grasp_and_place"}, "PushCube-v1 has normalized_dense"),
        ({"task": "PutOnPlateInScene25Main-v1"}, "Did you mean 'PutOnPlateInScene25Main-v3'?"),
    ],
)
def test_settings_that_do_not_belong_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(ManiSkillConfig(backend="cpu", **options))
    assert words in str(caught.value)


# The tasks, on stand-ins


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("plate25")
    plate25_standins.write(root / "maniskill", root / "data")
    before = os.environ.get("MS_ASSET_DIR")
    os.environ["MS_ASSET_DIR"] = str(root / "maniskill")  # ManiSkill looks once, when it is imported: in new processes
    yield root
    if before is None:
        del os.environ["MS_ASSET_DIR"]
    else:
        os.environ["MS_ASSET_DIR"] = before


@pytest.fixture(scope="module")
def outcomes(standins: Path) -> dict[str, Any]:
    """Return what ``plate25_checks`` found, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(_HERE / "plate25_checks.py"), str(standins / "data")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_whole_contract(outcomes: dict[str, Any]) -> None:
    assert outcomes["contract"] == ""


def test_tasks_do_what_they_are_for(outcomes: dict[str, Any]) -> None:
    assert len(outcomes["tasks"]) == 5
    assert {check: said for check, said in outcomes["tasks"].items() if said} == {}


def test_damaged_files_are_named(outcomes: dict[str, Any]) -> None:
    files = {
        "carrot/more_carrot/thing_03/collision.obj": "thing_03/collision.obj holds no mesh that can be read: download it",
        "carrot/more_plate/plate_00/textured.glb": "plate_00/textured.glb holds no mesh that can be read",
        "carrot/more_table/imgs/*.png": ".png is no picture that can be read: download it again",
    }
    said = outcomes["damaged"]
    assert {file: words for file, words in files.items() if words not in said[file]} == {}, said


def test_a_worker_plays_a_held_out_variant(standins: Path) -> None:
    plugin = find("sim", "maniskill")
    name = "PutOnPlateInScene25MultiCarrot-v1"
    config = plugin.config(task=name, assets=str(standins / "data"), objects="test", backend="cpu", observation="state")
    worker = SubprocessSimulator(Choice(plugin, config), 1, 8)
    try:
        observation = worker.wait_ready().reset([0], [3], [Start(0)])
        assert observation.instruction[0].startswith("put thing ") and observation.instruction[0].endswith(
            " on plate 0"
        )
        result = worker.step(np.zeros((1, 8, 7), np.float32), np.array([True]))
        assert result.valid.all() and not result.reward.any()
    finally:
        worker.close()
