"""Settings: every way in means the same, and what cannot work is said at once, with path, got, wanted, what to do."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvla import configs
from rlvla.errors import ConfigError

Four = dict[str, str]


def problems(source: Any, *flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configs.read(source, flags)
    return caught.value.problems


def test_mapping_file_flags_and_instance_mean_the_same(four_plugins: Four, tmp_path: Path) -> None:
    sim = {"use": "testsim", "num_envs": 4, "suite": "hard", "tasks": [1, 2], "friction": 1e-5}
    sim |= {"camera": {"width": 32}, "video": True, "seed": 3, "label": "4"}
    run = {"steps": 7, "without": ["display"]}
    mapping = configs.read({**four_plugins, "sim": sim, "run": run, "eval": {"greedy": False}})

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "sim: {use: testsim, num_envs: 4, suite: hard, tasks: [1, 2], friction: 1e-5, camera: {width: 32}, "
        "video: yes, seed: 3, label: '4'}\n"
        "model: testmodel\nalgo: testalgo\nscheduler: testscheduler\n"
        "run: {steps: 7, without: [display]}\neval: {greedy: no}\n"
    )
    words = [
        "--sim",
        "testsim",
        "--sim.num-envs",
        "4",
        "--sim.suite",
        "hard",
        "--sim.tasks",
        "1",
        "2",
        "--sim.friction=1e-5",
        "--sim.camera.width",
        "32",
        "--sim.video",
        "--sim.seed",
        "3",
        "--sim.label",
        "4",
        "--model",
        "testmodel",
        "--algo=testalgo",
        "--scheduler",
        "testscheduler",
        "--run.steps",
        "7",
        "--run.without",
        "display",
        "--eval.no-greedy",
    ]
    module = importlib.import_module("rlvla_testsim")
    instance = module.Config(
        num_envs=4,
        suite="hard",
        tasks=(1, 2),
        friction=1e-5,
        camera=module.Camera(width=32),
        video=True,
        seed=3,
        label="4",
    )
    others = {**four_plugins, "sim": instance, "run": configs.RunOptions(steps=7, without=("display",))}

    assert configs.read(configs.read_file(recipe)) == mapping
    assert configs.read({}, words) == mapping
    assert configs.read({**others, "eval": configs.EvalConfig(greedy=False)}) == mapping
    assert mapping.sim.config.camera.width == 32
    assert mapping.sim.config.friction == 1e-5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sim: a\nmodel: b\nsim: c\n", "'sim' is there twice, on line 1 and on line 3"),
        ("run:\n  steps: 1\n  seed: 0\n  steps: 2\n", "'steps' is there twice, on line 2 and on line 4"),
        ("train: {micro_batch: 1, micro_batch: 2}\n", "'micro_batch' is there twice, on line 1 and on line 1"),
    ],
)
def test_a_key_that_is_there_twice_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"recipe.yaml: {words}: keep one of them"):
        configs.read_file(path)


def test_anchors_and_merges_of_a_recipe_still_work(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("sim: &sim {use: fake, num_envs: 3}\nmodel: {<<: *sim, use: other}\n")
    assert configs.read_file(path)["model"] == {"use": "other", "num_envs": 3}


def test_a_run_config_is_read_as_itself_and_survives_yaml(four_plugins: Four, tmp_path: Path) -> None:
    run = configs.read(four_plugins, ["--sim.friction", "1e-5", "--sim.seed", "None", "--run.steps", "3"])
    configs.write_file(tmp_path / "config.yaml", run)
    assert configs.read(configs.read_file(tmp_path / "config.yaml")) == run
    assert configs.read(run) == run
    assert configs.read(run, ["--run.steps", "4"]).run.steps == 4


def test_a_python_recipe_returns_a_mapping_or_a_run_config(four_plugins: Four, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(f"def recipe():\n    return {dict(four_plugins)!r}\n")
    assert configs.read(configs.read_file(recipe)).sim.name == "testsim"
    recipe.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="has no function recipe"):
        configs.read_file(recipe)


def test_a_python_recipe_imports_what_lies_beside_it(four_plugins: Four, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared_part.py").write_text(f"SIM = {{'use': 'testsim', 'suite': {name!r}}}\n")
        text = f"def recipe():\n    from shared_part import SIM\n    return {dict(four_plugins)!r} | {{'sim': SIM}}\n"
        (tmp_path / name / "recipe.py").write_text(text)
    path = list(sys.path)
    for name in ("one", "two", "one"):  # each folder has its own
        assert configs.read_file(tmp_path / name / "recipe.py")["sim"]["suite"] == name
    assert sys.path == path
    assert "shared_part" not in sys.modules
    (tmp_path / "two/shared_part.py").unlink()
    with pytest.raises(ConfigError, match=r"recipe\.py: ModuleNotFoundError: No module named 'shared_part'"):
        configs.read_file(tmp_path / "two/recipe.py")


def test_flags_go_on_top_of_the_file_and_repair_it(four_plugins: Four) -> None:
    source = {**four_plugins, "sim": {"use": "testsim", "num_envs": 0, "suite": "hard"}}
    run = configs.read(source, ["--sim.num-envs", "2", "--sim.camera.width", "9"])
    assert (run.sim.config.num_envs, run.sim.config.suite, run.sim.config.camera.width) == (2, "hard", 9)


def test_another_plugin_by_flag_drops_the_files_options(four_plugins: Four, make_distribution: Any) -> None:
    code = "import rlvla\n@rlvla.config\nclass Config:\n    '''Doc.'''\n    size: int = 1\n"
    code += "plugin = rlvla.Plugin(config=Config, target='x:Y', describe=lambda config: config)\n"
    make_distribution("rlvla-other", {"rlvla.simulators": {"other": "rlvla_other:plugin"}}, "rlvla_other", code)
    for value in ({"use": "testsim", "num_envs": 4}, importlib.import_module("rlvla_testsim").Config(num_envs=4)):
        run = configs.read({**four_plugins, "sim": value}, ["--sim", "other", "--sim.size", "3"])
        assert run.sim.config.size == 3


def test_all_problems_are_reported_at_once(four_plugins: Four) -> None:
    found = problems(
        {
            **four_plugins,
            "sim": {"use": "testsim", "num_env": 4, "suite": "medium"},
            "algo": "testalgoo",
            "trian": {"learning_rate": 1},
            "run": {"steps": "many"},
        },
        "--train.learning-rate",
        "-1",
        "--eval.episodes",
        "four",
        "--run.sed",
        "3",
    )
    text = "\n".join(found)
    assert len(found) == 8
    assert "sim.num_env: no such option. Did you mean 'num_envs'?" in found
    assert "sim.suite: got 'medium', wanted 'easy' or 'hard'" in found
    assert "no algo plugin 'testalgoo' is installed" in text
    assert "Did you mean 'testalgo'?" in text
    assert "trian: no such section. Did you mean 'train'?" in found
    assert "run.steps: got 'many', wanted a valid integer" in text
    assert "train.learning_rate: got '-1', wanted greater than or equal to 0" in found
    assert "eval.episodes: got 'four', wanted a valid integer" in text
    assert "run.sed: no such option. Did you mean 'seed'?" in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sim.num-envs 0", "sim.num_envs: got '0', wanted greater than or equal to 1"),
        ("--sim.camera.widht 3", "sim.camera.widht: no such option. Did you mean 'width'?"),
        ("--simm.num-envs 3", "--simm.num_envs: no such section. Did you mean 'sim'?"),
        ("--run.steps", "run.steps: no value given"),
        ("--steps 3", "--steps: no such option; options are --section.name"),
        ("recipe.yaml --run.steps 3", "recipe.yaml: not an option; a recipe file goes first"),
        ("--run.steps 3 4", "run.steps: got ['3', '4'], wanted a valid integer"),
        ("--sim", "--sim: missing; wanted a plugin's name"),
        ("--sim.tasks 1 x", "sim.tasks.1: got 'x', wanted a valid integer"),
        ("--train.precision fp64", "train.precision: got 'fp64', wanted 'fp32' or 'bf16'"),
        ("--train.max-grad-norm inf", "train.max_grad_norm: got 'inf', wanted a finite number"),
        ("--sim.friction nan", "sim.friction: got 'nan', wanted a finite number"),
    ],
)
def test_wrong_flags_are_named(four_plugins: Four, words: str, message: str) -> None:
    found = problems(four_plugins, *words.split())
    assert len(found) == 1
    assert message in found[0]


def test_a_missing_kind_and_a_missing_use_are_named(four_plugins: Four) -> None:
    found = "\n".join(problems({"sim": {"num_envs": 3}, "model": "testmodel", "algo": None}))
    assert "sim.use: missing; got ['num_envs'], wanted the plugin's name under 'use'" in found
    assert "algo: missing; wanted a plugin's name" in found
    assert "scheduler: missing" in found


def test_a_section_of_a_wrong_type_is_named(four_plugins: Four) -> None:
    assert problems({**four_plugins, "train": "fast"}) == [
        "train: got 'fast', wanted a dictionary or an instance of TrainConfig"
    ]


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", ""])
def test_a_file_that_is_not_a_mapping_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="recipe.yaml"):
        configs.read_file(path)
    with pytest.raises(ConfigError, match="no such file"):
        configs.read_file(tmp_path / "absent.yaml")


def test_configs_refuse_positional_arguments_and_changes() -> None:
    with pytest.raises(TypeError):
        configs.RunOptions("name")  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        configs.RunOptions().steps = 3  # type: ignore[misc]


def test_a_config_of_no_installed_plugin_is_an_error(four_plugins: Four) -> None:
    found = problems({**four_plugins, "sim": configs.TrainConfig()})
    assert "no installed plugin has the config class rlvla.configs.TrainConfig" in found[0]


def test_every_option_of_the_core_is_documented() -> None:
    text = Path(configs.__file__).read_text().splitlines()
    for section in configs.SECTIONS.values():
        for option in dataclasses.fields(section):
            at = next(n for n, line in enumerate(text) if line.startswith(f"    {option.name}: "))
            assert text[at + 1].lstrip().startswith('"""'), f"{section.__name__}.{option.name} has no docstring"
