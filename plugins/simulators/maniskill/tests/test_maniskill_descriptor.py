"""What is known without importing ManiSkill, and settings that cannot work."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvla.checks import check
from rlvla.configs import read, read_choice
from rlvla.errors import ConfigError
from rlvla_sim_maniskill import ManiSkillConfig, backends, describe, header, instructions, plugin


def made(**options: Any) -> ManiSkillConfig:
    return ManiSkillConfig(backend="cpu", **options)


def test_describing_imports_no_simulator() -> None:
    code = (
        "import sys, rlvla_sim_maniskill as one; one.describe(one.ManiSkillConfig(task='StackCube-v1'));"
        "assert not {'mani_skill', 'sapien', 'torch', 'gymnasium', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spec_says_what_an_action_and_a_state_hold() -> None:
    spec = describe(made(task="PickCube-v1"))
    assert (spec.action_dim, spec.state_dim, spec.control_hz, spec.max_episode_steps) == (7, 29, 20.0, 50)
    assert [(part.name, part.size, part.scale) for part in spec.action[:2]] == [
        ("position", 3, 0.1),
        ("rotation", 3, -0.1),
    ]
    assert spec.action[2].closes_at == "low"
    assert [(part.name, part.unit) for part in spec.state[:2]] == [("agent/qpos/0", "rad"), ("agent/qpos/1", "m")]
    assert spec.restorable and not spec.in_process


@pytest.mark.parametrize(
    ("task", "size"), [("PushCube-v1", 35), ("PickCube-v1", 42), ("StackCube-v1", 48), ("PegInsertionSide-v1", 43)]
)
def test_state_is_maniskills_own(task: str, size: int) -> None:
    spec = describe(made(task=task, observation="state", control_mode="pd_joint_delta_pos"))
    assert (spec.cameras, spec.state_dim, spec.action_dim) == ((), size, 8)


def test_controllers_that_remember_a_target_show_it() -> None:
    spec = describe(made(task="StackCube-v1", observation="state", control_mode="pd_ee_target_delta_pose"))
    assert spec.state_dim == 48 + 7
    assert spec.state[-1].rotation == "quaternion_wxyz"


def test_cameras_have_roles() -> None:
    assert [(one.name, one.role) for one in describe(made(task="StackCube-v1")).cameras] == [
        ("base_camera", "primary"),
        ("hand_camera", "wrist"),
    ]
    assert [one.role for one in describe(made(task="TwoRobotPickCube-v1")).cameras] == [
        "primary",
        "wrist_left",
        "wrist_right",
    ]
    (only,) = describe(made(task="StackCube-v1", cameras=("hand_camera",), image_size=64)).cameras
    assert (only.role, only.height, only.width) == ("primary", 64, 64)


def test_every_task_of_the_table_can_be_described() -> None:
    for name, task in header.tasks(None).items():
        options = {"observation": "rgb" if task.cameras else "state", "max_episode_steps": 10}
        for mode, about in task.control_modes.items():
            if about.parts:
                spec = describe(made(task=name, control_mode=mode, **options))
                assert spec.action_dim > 0 and spec.state_dim > 0 and spec.tasks[0].instruction, (name, mode)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "PushCub-v1"}, "no task 'PushCub-v1'. Did you mean 'PushCube-v1'?"),
        ({"task": "Fly"}, "no task 'Fly'; there is: DrawTriangle-v1"),
        ({"task": "PickSingleYCB-v1"}, "python -m mani_skill.utils.download_asset ycb, then"),
        (
            {"task": "DrawSVG-v1"},
            "needs svgpathtools: pip install svgpathtools, then python -m rlvla_sim_maniskill DrawSVG-v1",
        ),
        ({"control_mode": "pd_ee_delta_pse"}, "Did you mean 'pd_ee_delta_pos"),
        (
            {"task": "MS-AntWalk-v1", "reward": "sparse"},
            "got 'sparse', MS-AntWalk-v1 has normalized_dense, dense, none",
        ),
        ({"cameras": ("base_camera", "left")}, "wanted one or more of ('base_camera',)"),
        ({"cameras": ()}, "wanted one or more of"),
        ({"observation": "state", "image_size": 64}, "the observation 'state' has no pictures"),
        ({"renderer": "none"}, "but the observation 'rgb' has pictures"),
        (
            {"task": "PushT-v1", "observation": "state", "renderer": "none"},
            "PushT-v1 cannot be made where nothing draws",
        ),
        ({"task": "UnitreeG1Stand-v1"}, "UnitreeG1Stand-v1 has no cameras: take 'state'"),
        ({"task": "Empty-v1"}, "Empty-v1 has no limit of its own"),
        ({"control_mode": ""}, "control_mode: got '', PushCube-v1 has pd_joint_delta_pos"),
        ({"task_file": ""}, "no such file; wanted a file that"),
        ({"task_file": "/nowhere.json"}, "/nowhere.json: no such file; wanted a file that"),
    ],
)
def test_settings_that_cannot_work_say_what_would(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(made(**options))
    assert words in str(caught.value)


def test_videos_of_a_simulator_that_draws_nothing_are_refused_before_it_starts() -> None:
    sim = {"use": "maniskill", "observation": "state", "renderer": "none", "backend": "cpu"}
    model = {"use": "tiny", "cameras": []}
    recipe = {"sim": sim, "model": model, "algo": "ppo", "scheduler": "sync"}
    with pytest.raises(ConfigError) as caught:
        check(read({**recipe, "eval": {"videos": 2}, "run": {"video_every": 5}}))
    for words in ("eval.videos: got 2, but maniskill draws nothing", "run.video_every: got 5, but maniskill draws"):
        assert words in str(caught.value)
    check(read(recipe))
    check(read({**recipe, "sim": {**sim, "renderer": "cpu"}, "eval": {"videos": 2}}))


@pytest.mark.parametrize("options", [{"image_size": 0}, {"num_envs": 0}, {"backend": "tpu"}, {"max_episode_steps": 0}])
def test_values_out_of_range_are_refused_before_anything_starts(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"sim.{next(iter(options))}.*wanted"):
        read_choice("sim", {"use": "maniskill", **options})


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        describe(made(control_mode="fly", reward="none", cameras=("x",), task="DrawTriangle-v1"))
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"format": 0}', '{"format": 1, "tasks": {"A": {}}, "actions": {}}'])
def test_a_file_that_is_no_header_says_what_writes_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "task.json"
    file.write_text(text)
    with pytest.raises(
        ConfigError, match="wanted a file that `python -m rlvla_sim_maniskill TASK --output FILE` wrote"
    ):
        describe(made(task_file=str(file)))


# Where physics runs


def test_gpu_without_its_library_names_file_and_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        describe(ManiSkillConfig(backend="gpu"))
    place = tmp_path / ".sapien/physx/105.1-physx-5.3.1.patch0/libPhysXGpu_64.so"
    assert f"backend: got 'gpu', but libPhysXGpu_64.so not found at {place}" in str(caught.value)
    assert "github.com/sapien-sim/physx-precompiled" in str(caught.value)


def test_auto_says_once_that_it_takes_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert [describe(ManiSkillConfig()).device for _ in range(3)] == ["cpu"] * 3
    assert [one.message for one in caplog.records if "physics runs on the CPU" in one.message] == [caplog.messages[0]]


def test_gpu_is_taken_where_library_and_gpu_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    backends.library().parent.mkdir(parents=True)
    backends.library().touch()
    monkeypatch.setattr(backends, "visible_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="this process sees no NVIDIA GPU"):
        describe(ManiSkillConfig(backend="gpu"))
    monkeypatch.setattr(backends, "visible_gpus", lambda: 1)
    for backend in ("auto", "gpu"):
        spec = describe(ManiSkillConfig(backend=backend))  # type: ignore[arg-type]
        assert (spec.device, spec.in_process, spec.restorable) == ("gpu", True, False)


# Instructions


def test_held_out_wordings_share_no_sentence_with_training() -> None:
    for task in header.tasks(None).values():
        seen, unseen = (set(instructions.wordings(task, one)) for one in ("seen", "unseen"))
        assert len(seen) > 1 and len(unseen) > 1 and not seen & unseen, task.name


def test_a_wording_follows_from_the_seed() -> None:
    some = instructions.wordings(header.tasks(None)["PushCube-v1"], "seen")
    assert describe(made(wording="seen")).tasks[0].instructions == some
    drawn = [instructions.choose(some, seed) for seed in range(40)]
    assert set(drawn) == set(some)
    assert drawn == [instructions.choose(some, seed) for seed in range(40)]


def test_every_task_of_the_table_has_words_of_its_own() -> None:
    assert [name for name in header.tasks(None) if name not in instructions.GOALS and name != "Empty-v1"] == []


def test_the_table_is_of_the_pinned_versions() -> None:
    from rlvla_sim_maniskill.startup import PINS

    about = json.loads(header.TABLE.read_text())
    assert {name: about[name] for name in PINS} == PINS


def test_plugin_names_its_class_and_doctor() -> None:
    assert plugin.target == "rlvla_sim_maniskill.simulator:ManiSkillSimulator"
    assert plugin.doctor == "rlvla_sim_maniskill.doctor:checks"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rewards": []}, "rewards: none"),
        ({"control_modes": {}}, "control_modes: none"),
        ({"max_episode_steps": 0}, "max_episode_steps: got 0"),
        ({"cameras": [{"name": "a", "height": -3, "width": 8}]}, r"cameras: sizes \[-3, 8\]"),
    ],
)
def test_what_no_task_can_have_is_damage(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    table = json.loads(header.TABLE.read_text())
    table["tasks"] = {"PushCube-v1": {**table["tasks"]["PushCube-v1"], **change}}
    file = tmp_path / "task.json"
    file.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=f"PushCube-v1: {words}; wanted a file that"):
        describe(made(task_file=str(file)))
