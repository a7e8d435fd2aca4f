"""With the true runtime, on assets of own geometry: what is arranged and seen in its interpreter (``in_runtime.py``)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlvla_sim_robotwin import SIZES, tasks

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def facts(interpreter: str, toy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("facts")
    script = Path(__file__).with_name("in_runtime.py")
    done = subprocess.run([interpreter, str(script), toy, str(place)], capture_output=True, text=True, check=False)
    assert (place / "facts.json").exists(), done.stderr[-2000:]
    found: dict[str, Any] = json.loads((place / "facts.json").read_text())
    return found


def test_tasks_and_cameras_are_the_runtimes(facts: dict[str, Any]) -> None:
    found = facts["tables"]
    assert found["limits"] == tasks.STEP_LIMITS
    assert {name: tuple(size) for name, size in found["cameras"].items()} == SIZES
    assert found["classes"] and found["wordings"]


# ---- chunks ---------------------------------------------------------------------------------------------------------


def test_success_ends_a_chunk_and_its_rest_is_not_executed(facts: dict[str, Any]) -> None:
    above, pressed = facts["success"]["ends"]["results"]
    assert all(above["valid"]) and not any(above["terminated"]) and not any(above["reward"]) and not above["success"]
    executed = sum(pressed["valid"])
    assert 0 < executed < 10 and pressed["valid"] == [True] * executed + [False] * (10 - executed)
    assert pressed["success"] and pressed["terminated"].index(True) == executed - 1
    assert pressed["reward"] == [0.0] * (executed - 1) + [5.0] + [0.0] * (10 - executed)
    assert not any(pressed["truncated"])


def test_every_executed_action_has_a_frame_and_the_last_one_is_what_is_seen(facts: dict[str, Any]) -> None:
    for name in ("ends", "goes_on", "relative"):
        for one in facts["success"][name]["results"]:
            assert one["frames"] == sum(one["valid"]) and one["last_frame_is_what_is_seen"]


def test_episodes_that_go_on_pay_for_every_chunk_until_their_limit(facts: dict[str, Any]) -> None:
    results = facts["success"]["goes_on"]["results"]
    assert [sum(one["valid"]) for one in results] == [10, 10, 10, 5]
    assert [sum(one["reward"]) for one in results] == [0.0, 5.0, 5.0, 5.0]
    assert [one["success"] for one in results] == [False, True, True, True]
    assert not any(any(one["terminated"]) for one in results)
    assert results[-1]["truncated"].index(True) == 4


def test_a_relative_reward_is_paid_once(facts: dict[str, Any]) -> None:
    assert [sum(one["reward"]) for one in facts["success"]["relative"]["results"]] == [0.0, 5.0, 0.0, 0.0]


def test_arms_that_stand_still_do_so_with_the_seeds_own_noise(facts: dict[str, Any]) -> None:
    first, other, again = facts["still"]["joints"]
    assert first == again != other


# ---- seeds ----------------------------------------------------------------------------------------------------------


def test_unstable_seeds_are_skipped_and_the_seed_that_is_played_is_known(facts: dict[str, Any]) -> None:
    found = facts["unstable"]
    assert found["played"] == 7
    assert found["scene"] == found["scene_of_7"] and found["instruction"] == found["instruction_of_7"]


def test_attempts_are_bounded(facts: dict[str, Any]) -> None:
    said = facts["unstable"]["given_up"]
    assert said.startswith("click_bell: no stable scene in 2 attempts, seeds 5 to 6: ")
    assert "ball" in said and said.endswith("raise seed_attempts, or pass seeds_path")


def test_seeds_of_a_file_are_the_initial_states(facts: dict[str, Any]) -> None:
    found = facts["seeds"]
    assert found["played"] == 4
    assert "initial state 2 does not exist" in found["20"] and "holds 2 seeds, numbers 0 to 1" in found["20"]
    assert "initial state None does not exist" in found["None0"]
    assert "task 1 does not exist: click_bell is the only one" in found["01"]


# ---- scenes ---------------------------------------------------------------------------------------------------------


def test_scene_motion_and_instruction_are_those_of_the_runtimes_own_environment(facts: dict[str, Any]) -> None:
    found = facts["upstream"]
    assert found["scene"] == found["their_scene"] and found["same_instruction"]


def test_randomised_scenes_are_a_function_of_the_seed(facts: dict[str, Any]) -> None:
    assert facts["randomisation"]["equal"] == ["again = random", "again after = random after"]


def test_clutter_is_ten_more_objects(facts: dict[str, Any]) -> None:
    found = facts["randomisation"]
    assert found["objects random"] == found["objects plain"] + 10 == found["objects seen"] + 10


def test_instructions_are_seen_or_unseen(facts: dict[str, Any]) -> None:
    found = facts["randomisation"]
    assert found["instruction random"] == found["instruction again"]
    assert found["instruction unseen"] not in (found["instruction plain"], found["instruction seen"])
    assert "bell" in found["instruction unseen"] and "{" not in found["instruction unseen"]


def test_a_missing_mesh_is_an_error_with_the_runtimes_own_words(facts: dict[str, Any]) -> None:
    said = facts["missing"]["said"]
    assert "the scene of seed 4 cannot be built" in said and "050_bell is not exist model file!" in said


def test_torch_and_open3d_are_stood_in_for(facts: dict[str, Any]) -> None:
    assert facts["modules"] == []
