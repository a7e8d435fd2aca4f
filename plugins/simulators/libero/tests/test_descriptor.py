"""What is known without importing LIBERO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlvla.configs import plain, read_choice
from rlvla.errors import ConfigError
from rlvla_sim_libero import LiberoConfig, describe, plugin, step_limits
from rlvla_sim_libero.task_file import instruction_of

TASK_FILE = """(define (problem LIBERO_Tabletop_Manipulation)
  (:domain robosuite)
  (:language Put the “Bowl” away)
  (:regions
    (spot (:target main_table) (:ranges ((-0.1 0.1 0.1 0.2))) (:yaw_rotation ((0.0 pi/2))))
    (drawer_place (:target main_table) (:ranges ((-0.3 -0.3 -0.2 -0.2))))
    (top_region (:target wooden_cabinet_1)))
  (:fixtures main_table - table  wooden_cabinet_1 - wooden_cabinet)
  (:objects bowl_1 - akita_black_bowl  plate_1 - plate)
  (:init
    (On bowl_1 main_table_spot)
    (On plate_1 bowl_1)  ; a comment
    (On wooden_cabinet_1 main_table_drawer_place)
    (Open wooden_cabinet_1_top_region))
  (:goal (And (On bowl_1 plate_1) (In plate_1 wooden_cabinet_1_top_region)))
)
"""


def test_describing_imports_no_simulator() -> None:
    code = (
        "import sys, rlvla_sim_libero as one; one.describe(one.LiberoConfig(suite='libero_130'));"
        "assert not {'libero', 'mujoco', 'robosuite', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spec_says_what_an_action_and_a_state_hold() -> None:
    spec = describe(LiberoConfig())
    assert (spec.action_dim, spec.state_dim, spec.control_hz, spec.max_episode_steps) == (7, 8, 20.0, 220)
    assert [camera.role for camera in spec.cameras] == ["primary", "wrist"]
    assert spec.action[2].closes_at == "high"
    assert len(spec.tasks) == 10
    assert {task.initial_states for task in spec.tasks} == {50}


@pytest.mark.parametrize(
    ("suite", "tasks", "limit"),
    [
        ("libero_spatial", 10, 220),
        ("libero_object", 10, 280),
        ("libero_goal", 10, 300),
        ("libero_10", 10, 520),
        ("libero_90", 90, 400),
        ("libero_130", 130, 520),
    ],
)
def test_suites_have_their_published_sizes_and_limits(suite: str, tasks: int, limit: int) -> None:
    spec = describe(LiberoConfig(suite=suite))  # type: ignore[arg-type]
    assert (len(spec.tasks), spec.max_episode_steps) == (tasks, limit)


@pytest.mark.parametrize(
    ("suite", "limits"),
    [
        ("libero_spatial", {240}),
        ("libero_object", {240}),
        ("libero_goal", {320}),
        ("libero_10", {512}),
        ("libero_130", {240, 320, 512}),
    ],
)
def test_limits_of_rlinf_are_a_preset(suite: str, limits: set[int]) -> None:
    config = LiberoConfig(suite=suite, step_limits="rlinf")  # type: ignore[arg-type]
    assert set(step_limits(config, describe(config).tasks)) == limits


def test_a_task_of_ones_own_has_the_limit_of_the_suite_that_is_set(tmp_path: Path) -> None:
    path = tmp_path / "own.bddl"
    path.write_text(TASK_FILE, encoding="utf-8")
    found = [
        describe(LiberoConfig(bddl_file=str(path), suite=suite)).max_episode_steps  # type: ignore[arg-type]
        for suite in ("libero_spatial", "libero_goal", "libero_130")
    ]
    assert found == [220, 300, 520]


def test_step_limit_can_be_chosen() -> None:
    assert describe(LiberoConfig(max_episode_steps=17)).max_episode_steps == 17


def test_chosen_tasks_keep_their_order() -> None:
    names = [task.name for task in describe(LiberoConfig(suite="libero_goal", tasks=(8, 7))).tasks]
    assert names == ["put_the_bowl_on_the_plate", "turn_on_the_stove"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"suite": "libero_spatail"}, "Did you mean 'libero_spatial'?"),
        ({"tasks": (3, 10)}, "got [10], wanted numbers from 0 to 9"),
        ({"tasks": ()}, "at least one number"),
        ({"tasks": (1, 1)}, "each task once"),
        ({"tasks": (7, "turn_on_the_stove"), "suite": "libero_goal"}, "each task once"),
        ({"tasks": ("turn_on_teh_stove",), "suite": "libero_goal"}, "Did you mean 'turn_on_the_stove'?"),
        ({"tasks": ("turn_on_the_stove",)}, "no task 'turn_on_the_stove' in libero_spatial. It is in libero_goal"),
        ({"tasks": ("0,1",)}, "no task '0,1' in libero_spatial. Several are separated by spaces: 0 1"),
        ({"tasks": ("fly",)}, "no task 'fly' in libero_spatial. Its tasks have the numbers 0 to 9"),
        ({"cameras": ("primary", "left")}, "wanted one or more of ('primary', 'wrist')"),
        ({"bddl_file": "/nowhere/task.bddl"}, "wanted an existing task file"),
        ({"step_limits": "rlimf"}, "got 'rlimf', wanted one of ('openvla', 'rlinf')"),
        ({"step_limits": "rlinf", "max_episode_steps": 100}, "rlinf says nothing beside max_episode_steps"),
    ],
)
def test_settings_that_cannot_work_say_what_would(options: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(LiberoConfig(**options))
    assert words in str(caught.value)


def test_tasks_can_be_named() -> None:
    spec = describe(LiberoConfig(suite="libero_130", tasks=("turn_on_the_stove", 3, "29")))
    assert [task.suite for task in spec.tasks] == ["libero_goal", "libero_spatial", "libero_goal"]
    assert spec.tasks[0].name == "turn_on_the_stove"


@pytest.mark.parametrize("options", [{"num_envs": 0}, {"tasks": (-1,)}, {"kept_tasks": -1}, {"image_size": 4}])
def test_numbers_out_of_range_are_refused_before_anything_starts(options: dict) -> None:
    with pytest.raises(ConfigError, match=f"sim.{next(iter(options))}.*wanted"):
        read_choice("sim", {"use": "libero", **options})


def test_each_task_has_the_limit_of_its_suite() -> None:
    config = LiberoConfig(suite="libero_130", tasks=(0, 25, 35))
    assert step_limits(config, describe(config).tasks) == [220, 300, 520]
    assert describe(config).max_episode_steps == 520


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        describe(LiberoConfig(tasks=(99,), cameras=()))
    assert len(caught.value.problems) == 2


def test_instruction_is_the_definitions_text_and_not_the_file_name(tmp_path: Path) -> None:
    path = tmp_path / "put_the_cup_away_variant_17.bddl"
    path.write_text(TASK_FILE, encoding="utf-8")
    task = describe(LiberoConfig(bddl_file=str(path))).tasks[0]
    assert task.instruction == "Put the “Bowl” away"
    assert task.initial_states == 0


def test_a_relative_task_file_is_noted_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.bddl").write_text(TASK_FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    stored = plain(read_choice("sim", {"use": "libero", "bddl_file": "own.bddl"}).config)["bddl_file"]
    monkeypatch.chdir("/")
    assert describe(read_choice("sim", {"use": "libero", "bddl_file": stored}).config).tasks[0].name == "own"


def test_a_misspelt_suite_of_a_recipe_has_its_close_name() -> None:
    with pytest.raises(ConfigError, match="sim.suite: got 'libero_spatail', wanted .* Did you mean 'libero_spatial'?"):
        read_choice("sim", {"use": "libero", "suite": "libero_spatail"})


def test_long_instructions_have_room(tmp_path: Path) -> None:
    path = tmp_path / "long.bddl"
    path.write_text(TASK_FILE.replace("away", "é" * 1000), encoding="utf-8")
    spec = describe(LiberoConfig(bddl_file=str(path)))
    assert spec.max_instruction_bytes == len(spec.tasks[0].instruction.encode())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(:language Put the “Bowl” away)", "(:language )", "no words in '(:language ...)'"),
        (
            "LIBERO_Tabletop_Manipulation",
            "LIBERO_Tabeltop_Manipulation",
            "Did you mean 'LIBERO_Tabletop_Manipulation'?",
        ),
        (
            "(On bowl_1 plate_1) (In",
            "(On bowl_1 plate_1 (In",
            "1 '(' without ')' at its end, the first one in line 1, the last one in line 1; close them",
        ),
        ("(:domain robosuite)", "(:domain robosuite))))", "without its '('"),
        (":goal", ":gaol", "success could not be measured"),
        ("((0.0 pi/2))", "((__import__('os').getpid() 0))", "wanted numbers and pi"),
        ("(problem LIBERO_Tabletop_Manipulation)", "", "no '(problem NAME)'"),
        ("(define", "(defined", "wanted '(define (problem NAME) ...)'"),
        (":fixtures", ":fixture", ", line 8: no entry ':fixture'. Did you mean ':fixtures'?"),
        (
            "(:ranges ((-0.1",
            "(:range ((-0.1",
            ", line 5: no attribute of region 'spot' ':range'. Did you mean ':ranges'?",
        ),
        ("(:ranges ((-0.3 -0.3 -0.2 -0.2)))", "", "region 'drawer_place' of main_table has no '(:ranges"),
        ("-0.1 0.1 0.1 0.2", "-0.1 0.1 0.1", "wanted ((x0 y0 x1 y1) ...) in metres"),
        ("-0.1 0.1 0.1 0.2", "0.2 0.1 0.1 0.2", "wanted ((x0 y0 x1 y1) ...) in metres, x0 <= x1"),
        (":target wooden_cabinet_1", ":target wooden_cabin_1", "Did you mean 'wooden_cabinet_1'?"),
        ("plate_1 - plate", "plate_1", "'plate_1' in (:objects ...) has no category"),
        (
            "(On bowl_1 main_table_spot)",
            "(On bowl_1 main_table_sopt)",
            ", line 11: no object, fixture or region (in :init) 'main_table_sopt'. Did you mean 'main_table_spot'?",
        ),
        (
            "(On plate_1 bowl_1)",
            "(Onto plate_1 bowl_1)",
            ", line 12: no predicate (in :init) 'Onto'. Did you mean 'on'?",
        ),
        (
            "(Open wooden_cabinet_1_top_region)",
            "(Open wooden_cabinet_1_top_regoin)",
            "Did you mean 'wooden_cabinet_1_top",
        ),
        (
            "(And (On bowl_1 plate_1)",
            "(And (On bowl_2 plate_1)",
            ", line 15: no object, fixture or region (in :goal) 'bowl_2'. Did you mean 'bowl_1'?",
        ),
        (
            "(And (On bowl_1 plate_1)",
            "(And (Above bowl_1 plate_1)",
            "no predicate (in :goal) 'Above'. There is: close, in, on",
        ),
        ("(And (On bowl_1 plate_1)", "(And (On bowl_1)", "(On bowl_1) in :goal has 1 names, On takes 2"),
        (
            "(And (On bowl_1 plate_1)",
            "(And (On bowl_1 main_table)",
            "no object, fixture or region (in :goal) 'main_table'",
        ),
        ("(:goal (And", "(:goal (Or", "wants predicates of names, such as '(On bowl_1 plate_1)', joined by And alone"),
        ("(And (On bowl_1 plate_1)", "(And bowl_1", "wants predicates of names"),
        ("((0.0 pi/2))", "((9**9**9 0))", "wanted numbers and pi"),
        ("-0.1 0.1 0.1 0.2", "nan 0.1 0.1 0.2", "wanted ((x0 y0 x1 y1) ...) in metres"),
        ("Put the “Bowl” away", "Put (on) it", "parentheses in '(:language ...)'"),
        ("(On plate_1 bowl_1)", "", "object 'plate_1' stands nowhere at the start: add '(On plate_1 REGION)'"),
        ("main_table - table", "main_table - floor", "wants a fixture that is a table ('NAME - table'), got floor"),
        ("plate_1 - plate", "bowl_1 - plate", "'bowl_1' in (:objects ...) is there twice"),
        ("(define", "\ufeff(define", "begins with a byte order mark"),
    ],
)
def test_malformed_task_files_say_what_is_wrong(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "task.bddl"
    path.write_text(TASK_FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        instruction_of(path)
    assert words in str(caught.value)
    assert all(problem.startswith(f"bddl_file: {path}") for problem in caught.value.problems)


def test_plugin_names_its_class_and_doctor() -> None:
    assert plugin.target == "rlvla_sim_libero.simulator:LiberoSimulator"
    assert plugin.doctor == "rlvla_sim_libero.doctor:checks"
    assert plugin.preflight == "rlvla_sim_libero.preflight:missing"
