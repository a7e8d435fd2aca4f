"""What is known without the runtime, and settings that cannot work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from rlvla import configs
from rlvla.checks import check, fitted
from rlvla.errors import ConfigError
from rlvla_sim_robotwin import ENVIRONMENT, RoboTwinConfig, describe, plugin, seeds, tasks


def run_of(**sections: dict[str, Any]) -> configs.RunConfig:
    sim = {"use": "robotwin", **sections.pop("sim", {})}
    return configs.read(
        {"sim": sim, "model": {"use": "tiny"}, "algo": {"use": "grpo"}, "scheduler": {"use": "sync"}, **sections}
    )


def test_describing_imports_no_simulator() -> None:
    code = (
        "import sys, rlvla_sim_robotwin as one; one.describe(one.RoboTwinConfig());"
        "assert not {'robotwin', 'sapien', 'torch', 'gymnasium', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plugin_asks_for_no_package_but_rlvla() -> None:
    assert [Requirement(one).name for one in metadata.requires("rlvla-sim-robotwin") or []] == ["rlvla"]


def test_the_runtimes_pins_stay_out_of_this_interpreter() -> None:
    pins = {one.name: one for text in ENVIRONMENT.packages["gpu"] if (one := Requirement(text))}
    assert not pins["numpy"].specifier.contains(metadata.version("numpy"))
    assert not pins["gymnasium"].specifier.contains(metadata.version("gymnasium"))
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("rlinf-robotwin-runtime")


def test_spec_says_what_an_action_and_a_state_hold() -> None:
    spec = describe(RoboTwinConfig())
    assert (spec.action_dim, spec.state_dim, spec.max_episode_steps) == (14, 14, 500)
    assert [(part.name, part.size, part.kind) for part in spec.action] == [
        ("left_arm", 6, "absolute"),
        ("left_gripper", 1, "gripper"),
        ("right_arm", 6, "absolute"),
        ("right_gripper", 1, "gripper"),
    ]
    assert all(part.frame == "joint" for part in spec.action) and spec.action[1].closes_at == "low"
    assert [(one.name, one.role, one.height, one.width) for one in spec.cameras] == [
        ("head", "primary", 240, 320),
        ("left_wrist", "wrist_left", 240, 320),
        ("right_wrist", "wrist_right", 240, 320),
    ]
    assert (spec.rows_per_worker, spec.call_timeout_s, spec.first_call_timeout_s) == (1, 50.0, 540.0)


def test_cameras_have_the_sizes_of_their_kinds() -> None:
    spec = describe(RoboTwinConfig(cameras=("right_wrist", "head"), head_camera="Large_L515", wrist_cameras="L515"))
    assert [(one.name, one.height, one.width) for one in spec.cameras] == [
        ("right_wrist", 180, 320),
        ("head", 360, 640),
    ]


def test_every_task_can_be_described() -> None:
    assert len(tasks.STEP_LIMITS) == 50
    for name, limit in tasks.STEP_LIMITS.items():
        assert describe(RoboTwinConfig(task=name)).max_episode_steps == limit
    assert describe(RoboTwinConfig(max_episode_steps=200)).max_episode_steps == 200


def test_notes_say_what_a_reader_of_results_should_know() -> None:
    assert any("not those of the benchmark" in note for note in describe(RoboTwinConfig(shader="default")).notes)
    notes = describe(RoboTwinConfig()).notes
    assert "no seeds file: seeds may be unsolvable; pass seeds_path" in notes
    assert not any("benchmark" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "place_empty_cop"}, "RoboTwin has no task 'place_empty_cop'. Did you mean 'place_empty_cup'?"),
        ({"task": "xyzzy"}, "RoboTwin has no task 'xyzzy'. There is: adjust_bottle"),
        ({"cameras": ()}, "cameras: got (), wanted one or more of ('head', 'left_wrist', 'right_wrist')"),
        ({"cameras": ("head", "head")}, "each once"),
        ({"embodiment": ()}, "embodiment: got 0 names"),
        ({"embodiment": ("piper", "piper", "y1")}, "embodiment: got 3 names"),
        ({"embodiment": ("piper", "y1")}, "two different robots (piper, y1) need planner: curobo"),
        ({"crazy_random_light_rate": 0.1}, "changes nothing without random_light"),
        ({"clean_background_rate": 0.1}, "changes nothing without random_background or cluttered_table"),
        ({"relative_reward": True}, "changes nothing where success ends the episode"),
        ({"embodiment_distance": 0.5}, "embodiment_distance: changes nothing with one two-armed robot"),
        ({"textures": "seen"}, "textures: changes nothing without random_background: true"),
        ({"cameras": ("head",), "wrist_cameras": "L515"}, "wrist_cameras: changes nothing without a wrist's camera"),
        ({"cameras": ("left_wrist",), "head_camera": "L515"}, "head_camera: changes nothing without the camera 'head'"),
        (
            {"cameras": ("left_wrist",), "random_head_camera_dis": 0.1},
            "random_head_camera_dis: changes nothing without the camera 'head'",
        ),
        ({"seeds_path": "/no/seeds.json"}, "seeds_path: /no/seeds.json: no such file"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(RoboTwinConfig(**options))
    assert words in str(caught.value)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        describe(RoboTwinConfig(task="xyzzy", cameras=(), relative_reward=True))
    assert len(caught.value.problems) == 3


def test_one_robot_on_each_side_is_fine() -> None:
    describe(RoboTwinConfig(embodiment=("piper", "piper"), embodiment_distance=0.5))


# ---- seeds ----------------------------------------------------------------------------------------------------------


def test_seeds_become_initial_states_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "train_seeds.json"
    found = {"task_name": "click_bell", "success_seeds": [8, 3, 100100000]}
    file.write_text(json.dumps({"click_bell": found, "lift_pot": {"success_seeds": [1]}}))
    spec = describe(RoboTwinConfig(task="click_bell", seeds_path=str(file)))
    assert spec.tasks[0].initial_states == 3 and not spec.seeded_starts
    assert seeds.read(str(file), "click_bell") == (8, 3, 100100000)
    assert not any("no seeds file" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "got a list, wanted"),
        ('{"lift_pot": {"success_seeds": [1]}}', "no seeds for 'click_bell'; it has: lift_pot"),
        ('{"click_bell": [1, 2]}', "click_bell: got [1, 2], wanted"),
        ('{"click_bell": {"seeds": [1]}}', "wanted"),
        (
            '{"click_bell": {"task_name": "lift_pot", "success_seeds": [1]}}',
            "its task_name is 'lift_pot': seeds of another task",
        ),
        ('{"click_bell": {"success_seeds": []}}', "success_seeds is empty"),
        ('{"click_bell": {"success_seeds": [1, -2, "3", 4.0, true]}}', "got [-2, '3', 4.0, True] among its seeds"),
        ('{"click_bell": {"success_seeds": [1, 2, 1]}}', "1 seeds come twice"),
    ],
)
def test_a_malformed_seeds_file_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "seeds.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        describe(RoboTwinConfig(task="click_bell", seeds_path=str(file)))
    assert words in str(caught.value) and str(file) in str(caught.value)


# ---- in a run -------------------------------------------------------------------------------------------------------


def test_each_environment_is_a_slot_of_its_own() -> None:
    assert check(run_of(sim={"num_envs": 16})).slots == (1,) * 16


def test_fewer_slots_than_environments_are_refused_and_fitted() -> None:
    config = run_of(sim={"num_envs": 8}, run={"slots": 2})
    with pytest.raises(ConfigError, match="run.slots: got 2, wanted at least 8: a worker of robotwin holds 1 of the 8"):
        check(config)
    assert fitted(config).run.slots == 8


def test_running_in_this_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="run.sim_in_process: robotwin runs in an environment of its own"):
        check(run_of(sim={"num_envs": 8}, run={"sim_in_process": True}))


def test_a_run_does_not_end_before_the_limit_of_a_first_call() -> None:
    check(run_of(sim={"num_envs": 8, "first_call_timeout_s": 80}, run={"first_call_s": 90}))
    with pytest.raises(ConfigError, match="run.first_call_s: got 90, wanted more than the 540 s that robotwin gives"):
        check(run_of(sim={"num_envs": 8}, run={"first_call_s": 90}))


def test_a_missing_environment_ends_a_run_before_a_model_is_loaded(tmp_path: Path) -> None:
    code = """
import sys
from rlvla import cli
words = ["train", "--sim", "robotwin", "--model", "tiny", "--algo", "grpo", "--scheduler", "sync", "--run.directory", sys.argv[1]]
assert cli.main([*words, "--sim.num-envs", "8"]) == 1
assert not {"rlvla.engine", "torch"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "RLVLA_SIMULATORS": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rlvla simulators install robotwin" in done.stderr


def test_plugin_names_its_target() -> None:
    assert plugin.target == "rlvla_sim_robotwin.simulator:RoboTwinSimulator"
