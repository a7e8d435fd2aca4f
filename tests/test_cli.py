"""The command ``rlvla``: light to start, errors without tracebacks, every option in the help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rlvla import cli, configs
from rlvla.errors import ConfigError, SimulatorError
from rlvla.plugin import GROUPS, find
from rlvla.results import EvalEpisode, EvalResults

HEAVY = ("torch", "ray", "mujoco", "tensordict", "transformers", "sapien")


class FakeRun:
    """Stands in for a run; what it was built from is kept."""

    error: BaseException | None = None

    def __init__(self, made_from: Any) -> None:
        self.made_from = made_from
        self.directory = Path("runs/fake")
        self.trained = self.closed = False

    def __enter__(self) -> FakeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def plan(self) -> str:
        return "2 seconds a step, 3 minutes in all"

    def train(self) -> None:
        if self.error is not None:
            raise self.error
        self.trained = True

    def evaluate(self) -> EvalResults:
        episodes = tuple(
            EvalEpisode(n, n % 2, f"task_{n % 2}", None, n, n < 3, n < 2, 10, 1.0, suite=f"suite_{n % 2}")
            for n in range(4)
        )
        return EvalResults(episodes, {"greedy": True}, policy_version=7, seconds=1.5)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replace ``rlvla.run``; ``engine.runs`` holds what was built."""
    module = types.ModuleType("rlvla.run")
    module.runs = []  # type: ignore[attr-defined]

    def keep(run: FakeRun) -> FakeRun:
        module.runs.append(run)
        return run

    module.build_from = lambda config, fit=False: keep(FakeRun(config))  # type: ignore[attr-defined]
    module.resume = lambda path, overrides=None: keep(FakeRun((path, overrides)))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rlvla.run", module)
    import rlvla

    monkeypatch.setattr(rlvla, "run", module, raising=False)
    monkeypatch.setattr(FakeRun, "error", None)
    return module


def words(four: dict[str, str]) -> list[str]:
    return [word for kind, name in four.items() for word in (f"--{kind}", name)]


# ---- starting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["--help", "--version", "plugins", "plugins --json", "train --help", "eval --help"])
def test_light_commands_import_nothing_heavy(command: str) -> None:
    code = f"""
import sys
from rlvla.cli import main
try:
    code = main({command.split()!r})
except SystemExit as error:
    code = error.code
assert not code, code
heavy = set({HEAVY!r}) & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_top_level_imports_no_command() -> None:
    code = "import sys; from rlvla.cli import main; main(['--help']); assert len([m for m in sys.modules if m.startswith('rlvla')]) == 2"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_version_and_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rlvla 0.")
    assert cli.main(["trian"]) == 2
    assert "'trian' is not a command. Did you mean 'train'?" in capsys.readouterr().err
    assert cli.main([]) == 2


# ---- train ----------------------------------------------------------------------------------------------------------


def test_train_reads_recipe_and_flags(
    engine: Any, four_plugins: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("\n".join(f"{kind}: {name}" for kind, name in four_plugins.items()) + "\nrun: {steps: 5}\n")
    assert cli.main(["train", str(recipe), "--sim.num-envs", "3"]) == 0
    (run,) = engine.runs
    assert (run.made_from.run.steps, run.made_from.sim.config.num_envs) == (5, 3)
    assert run.trained
    assert run.closed
    assert "2 seconds a step" in capsys.readouterr().err


def test_user_errors_have_no_traceback_and_their_exit_code(
    engine: Any, four_plugins: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["train", *words(four_plugins), "--sim.num-env", "3", "--run.stepss", "4"]) == 2
    err = capsys.readouterr().err
    assert "sim.num_env: no such option. Did you mean 'num_envs'?" in err
    assert "run.stepss: no such option. Did you mean 'steps'?" in err
    assert "Traceback" not in err
    assert not engine.runs

    monkeypatch.setattr(FakeRun, "error", SimulatorError("no renderer"))
    assert cli.main(["train", *words(four_plugins)]) == 1
    assert "rlvla: SimulatorError: no renderer" in capsys.readouterr().err
    assert engine.runs[-1].closed


def test_an_internal_error_keeps_its_traceback(
    engine: Any, four_plugins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRun, "error", ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", *words(four_plugins)])


def test_interrupt_says_how_to_go_on(
    engine: Any,
    four_plugins: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FakeRun, "error", KeyboardInterrupt())
    assert cli.main(["train", *words(four_plugins)]) == 130
    said = capsys.readouterr().err
    assert "there is no checkpoint yet: start it again" in said
    assert "--resume" not in said
    place = tmp_path / "runs/fake/checkpoints/step_000003"
    place.mkdir(parents=True)
    (place / "state.json").touch()
    assert cli.main(["train", *words(four_plugins)]) == 130
    assert "rlvla train --resume runs/fake" in capsys.readouterr().err


@pytest.mark.parametrize("tail", ["", "/", "//"])
@pytest.mark.parametrize("form", ["--resume {}", "--resume={}", "--run.steps 9 --resume {}"])
def test_resume_takes_any_spelling_of_a_path(
    engine: Any, tmp_path: Path, tail: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("step_30").mkdir()
    assert cli.main(["train", *form.format(f"step_30{tail}").split(), "--sim.num-envs", "4"]) == 0
    path, overrides = engine.runs[0].made_from
    assert path == Path("step_30")
    assert overrides["sim"] == {"num_envs": "4"}
    assert ("run" in overrides) == ("run.steps" in form)


def test_resume_fails_before_anything_starts(engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--resume", str(tmp_path / "nothing")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert cli.main(["train", "--resume"]) == 2
    assert cli.main(["train", "recipe.yaml", "--resume", str(tmp_path)]) == 2
    assert not engine.runs


def test_help_shows_every_option_of_the_chosen_plugins(
    four_plugins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--sim", "testsim", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--sim.num-envs INT" in text
    assert "Environments in all workers together. (default: 8)" in text
    assert "--sim.camera.width INT" in text
    assert "--run.save-every INT" in text
    assert "--model NAME: " in text
    assert "--model.num-envs" not in text


def test_flags_that_the_help_shows_are_the_flags_that_are_read(
    four_plugins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["train", *words(four_plugins), "--help"])
    shown = set(re.findall(r"--((?:sim|model|algo|scheduler|train|eval|run)\.[a-z0-9.-]+)", capsys.readouterr().out))
    assert len(shown) > 40
    flags = []
    for name in sorted(shown):
        section, _, leaf = name.rpartition(".")
        is_bool = leaf.startswith("no-") or f"{section}.no-{leaf}" in shown
        flags += [f"--{name}"] if is_bool else [f"--{name}", "7"]
    with pytest.raises(ConfigError) as caught:  # 7 is no value of a finite choice; what matters is that each is known
        configs.read(four_plugins, flags)
    unknown = [one for one in caught.value.problems if ", wanted " not in one]
    assert not unknown


# ---- eval -----------------------------------------------------------------------------------------------------------


def test_eval_passes_overrides_and_writes_json(engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    assert cli.main(["eval", f"{tmp_path}/", "--eval.episodes", "4", "--sim.suite", "hard", "--json", str(out)]) == 0
    assert engine.runs[0].made_from == (tmp_path, {"eval": {"episodes": "4"}, "sim": {"suite": "hard"}})
    text = capsys.readouterr().out
    assert "success 0.750 (95 % interval 0.301 to 0.954, 4 episodes)" in text
    assert "task_1" in text
    assert json.loads(out.read_text())["n"] == 4


def test_eval_refuses_a_file_in_a_folder_that_is_not_there_before_it_evaluates(
    engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(tmp_path), "--json", str(tmp_path / "none/results.json")]) == 2
    assert f"--json: no folder {tmp_path / 'none'}; make it" in capsys.readouterr().err
    assert not engine.runs


def test_eval_cuts_no_names_where_it_prints_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    from rlvla.cli import eval

    names = ["pick_up_the_black_bowl_" + "on_the_wooden_cabinet_" * number + "and_place_it" for number in (1, 5)]
    episodes = [
        EvalEpisode(task, task, name, state=0, seed=0, success=True, success_at_end=True, steps=1, episode_return=1.0)
        for task, name in enumerate(names)
    ]
    eval.show(EvalResults(tuple(episodes), {}, 0, 1.0))
    printed = capsys.readouterr().out
    assert all(any(name in line for line in printed.splitlines()) for name in names)


def test_eval_refuses_settings_that_it_does_not_read(
    engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(tmp_path), "--train.learning-rate", "1"]) == 2
    assert "--train: not an option here; there is: --eval.*, --sim.*, --run.*" in capsys.readouterr().err
    assert cli.main(["eval", str(tmp_path / "none")]) == 2
    assert cli.main(["eval"]) == 2


# ---- plugins --------------------------------------------------------------------------------------------------------


def test_plugins_lists_what_is_installed_with_its_state(
    four_plugins: dict[str, str], make_distribution: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import rlvla\n@rlvla.hookimpl\ndef on_step(step): pass\n"
    make_distribution("a-listener", {"rlvla.hooks": {"mine": "a_listener"}}, "a_listener", code, version="2.1")
    make_distribution("a-broken", {"rlvla.hooks": {"broken": "a_broken"}}, "a_broken", "raise ImportError('no wandb')")
    assert cli.main(["plugins", "--json"]) == 0
    lines = {(one["kind"], one["name"]): one for one in json.loads(capsys.readouterr().out)}
    for kind in GROUPS:
        assert lines[kind, f"test{kind}"]["state"] == "ok"
        assert lines[kind, f"test{kind}"]["summary"] == "A world for tests."
    assert lines["listener", "mine"] | {"summary": ""} == {
        "kind": "listener",
        "name": "mine",
        "distribution": "a-listener",
        "version": "2.1",
        "state": "ok",
        "hooks": ["on_step"],
        "summary": "",
    }
    assert "no wandb" in lines["listener", "broken"]["state"]
    assert cli.main(["plugins"]) == 0
    assert re.search(r"sim +testsim +rlvla-testsim +0.1.0 +ok", capsys.readouterr().out)


def test_notes_of_plugins_are_shown_and_those_of_others_are_not() -> None:
    code = """
        import logging
        from rlvla.cli import options

        options.log_to_stderr()
        for name in ("rlvla.run", "rlvla_sim_tabletop.scene", "torch"):
            logging.getLogger(name).info("noted")
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["INFO rlvla.run: noted", "INFO rlvla_sim_tabletop.scene: noted"]


# ---- doctor ---------------------------------------------------------------------------------------------------------


def test_doctor_names_an_unknown_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "tabletopp"]) == 2
    assert "no sim plugin 'tabletopp' is installed" in capsys.readouterr().err


def test_doctor_names_settings_that_cannot_work_and_what_to_correct(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--sim", "tabletop", "--sim.episode-stepss", "3"]) == 2
    assert "no such option" in capsys.readouterr().err
    from rlvla.cli import doctor

    (check,) = doctor.simulator("gym", None, 60.0, Path(), find("sim", "gym").config(env=""))
    assert not check.ok
    assert (check.name, check.fix) == ("gym: settings", "correct the option that is named first")


def test_doctor_reports_a_simulator_that_cannot_start(
    make_distribution: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvla.cli import doctor

    code = """
        import os

        import rlvla
        from rlvla.specs import ActionPart, Check, SimulatorSpec, TaskSpec

        @rlvla.config
        class Config:
            num_envs: int = 1

        def describe(config):
            return SimulatorSpec((), (), (ActionPart("push", 1),), 10.0, 5, (TaskSpec("push"),))

        plugin = rlvla.Plugin(
            config=Config, target="rlvla_sick:Sick", describe=describe, doctor="rlvla_sick:look", drawing="buy a GPU"
        )

        class Sick:
            def __init__(self, config, rows):
                raise RuntimeError("the assets are gone")

        def look(config):
            print("noise on stdout")
            yield Check("assets", "SICK_ASSETS" in os.environ, "looked at", "pip install sick-assets")
    """
    place = make_distribution("rlvla-sick", {"rlvla.simulators": {"sick": "rlvla_sick:plugin"}}, "rlvla_sick", code)
    monkeypatch.setenv("PYTHONPATH", str(place))
    own, shown = doctor.simulator("sick", None, 60.0, tmp_path)
    assert (own.name, own.ok, own.fix) == ("sick: assets", False, "pip install sick-assets")
    assert (
        doctor.line(shown)
        == "warn  sick: picture: not looked at before this is in order: sick: assets\n      fix: see above"
    )
    monkeypatch.setenv("SICK_ASSETS", "1")
    own, shown = doctor.simulator("sick", None, 60.0, tmp_path)
    assert own.ok and not shown.ok
    assert "the assets are gone" in shown.found
    assert "FAIL" in doctor.line(shown)
    assert "fix: buy a GPU; or pip install -U rlvla-sick" in doctor.line(shown)


@pytest.mark.parametrize(("free", "state"), [(20.0, "ok"), (1.5, "warn"), (0.5, "FAIL")])
def test_doctor_says_what_to_do_of_what_is_amiss_alone(
    free: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvla.cli import doctor

    monkeypatch.setattr(doctor, "available_gib", lambda: free)
    monkeypatch.setattr(
        doctor.ctypes.util, "find_library", lambda name: None if name == "OSMesa" else f"lib{name}.so.1"
    )
    monkeypatch.setattr(doctor, "_nvidia_gpus", lambda: "")
    checks = {check.name: check for check in (*doctor.libraries(), *doctor.memory(), *doctor.torch())}
    states = {name: doctor.line(check).split()[0] for name, check in checks.items()}
    assert states["memory"] == state
    assert (states["libEGL"], states["libOSMesa"], states["gpu"]) == ("ok", "warn", "ok")
    assert all(("fix: " in doctor.line(check)) == (states[name] != "ok") for name, check in checks.items())


def test_png_is_a_picture(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    from rlvla.cli import doctor

    image = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    doctor.write_png(tmp_path / "a.png", image)
    with Image.open(tmp_path / "a.png") as picture:
        np.testing.assert_array_equal(picture, image)
