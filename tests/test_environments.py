"""Simulators in interpreters of their own: found, refused, made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlvla import cli, environments
from rlvla.checks import derived_slots, least_slots
from rlvla.cli import doctor, simulators
from rlvla.configs import Choice
from rlvla.environments import Environment
from rlvla.errors import ConfigError, SimulatorError, WorkerDied
from rlvla.plugin import Plugin, find
from rlvla.specs import SchedulerSpec, Start
from rlvla.testing.elsewhere import outcomes_elsewhere
from rlvla.worker import SubprocessSimulator, open_simulator, protocol

NONE: dict[str, Any] = {"python": ">=3.11", "packages": {"cpu": ()}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path / "simulators"))
    return tmp_path / "simulators"


def elsewhere(**changes: Any) -> Plugin[Any, Any]:
    """Return the fake simulator, with an environment of its own."""
    return replace(find("sim", "fake"), environment=Environment(**{**NONE, **changes}))


def pretend(plugin: Plugin[Any, Any], place: Path, **changes: Any) -> None:
    """Leave what an installation leaves, with an interpreter that calls this one."""
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").write_text(f'#!/bin/sh\nexport THROUGH="$0"\nexec {sys.executable} "$@"\n')
    (place / "bin" / "python").chmod(0o755)
    record = environments.Record(
        simulator=plugin.name,
        variant="cpu",
        python="3.11.7",
        requirements=environments.requirements(plugin, "cpu"),
        own=environments._own(plugin),
    )
    (place / environments.RECORD).write_text(json.dumps({**vars(record), **changes}))


def test_a_simulator_without_one_runs_here() -> None:
    plugin = find("sim", "fake")
    assert environments.interpreter(plugin, plugin.config()) is None


def test_a_missing_environment_says_how_to_install_it(home: Path) -> None:
    plugin = elsewhere()
    with pytest.raises(SimulatorError, match="which is not installed.*rlvla simulators install fake") as caught:
        SubprocessSimulator(Choice(plugin, plugin.config()), 1, 1)
    assert str(home / "fake") in str(caught.value)
    assert "run.sim_python" in str(caught.value)


def test_an_interpreter_that_is_named_needs_no_environment() -> None:
    plugin = elsewhere()
    with open_simulator(Choice(plugin, plugin.config()), python=sys.executable) as there:
        assert there.spec.tasks


def test_workers_start_in_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = elsewhere()
    pretend(plugin, home / "fake")
    monkeypatch.setenv("PYTHONPATH", "/packages/of/this/interpreter")
    with open_simulator(Choice(plugin, plugin.config())) as there:
        variables = Path(f"/proc/{there.pid}/environ").read_text().split("\0")
    assert f"THROUGH={home / 'fake' / 'bin' / 'python'}" in variables
    assert not any(one.startswith("PYTHONPATH=") for one in variables)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"own": {"rlvla": "0.0.1"}}, "it holds rlvla 0.0.1, this is"),
        ({"own": {}}, "it holds rlvla in no version, this is"),
        ({"requirements": ["numpy==1.2"]}, "other packages are required"),
        ({"variant": "gpu"}, "its variant 'gpu' is no longer one of cpu"),
    ],
)
def test_an_environment_of_something_else_is_refused(home: Path, changes: dict[str, Any], words: str) -> None:
    plugin = elsewhere()
    pretend(plugin, home / "fake", **changes)
    with pytest.raises(SimulatorError, match="rlvla simulators install fake") as caught:
        environments.interpreter(plugin, plugin.config())
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 1, "no": 1}'])
def test_a_record_that_says_nothing_counts_as_none(home: Path, text: str) -> None:
    pretend(elsewhere(), home / "fake")
    (home / "fake" / environments.RECORD).write_text(text)
    assert environments.read(home / "fake") is None


def test_another_protocol_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "VERSION", 99)
    fake = find("sim", "fake")
    simulator = SubprocessSimulator(Choice(fake, fake.config()), 1, 1)
    with pytest.raises(SimulatorError, match=r"speaks worker protocol 99, .* speaks \d.*install the same rlvla in"):
        simulator.wait_ready()
    simulator.close()


def test_packages_of_an_environment_hold_what_a_worker_needs() -> None:
    wanted = environments.requirements(elsewhere(packages={"cpu": ("sapien==1",)}, bare=("robot==2",)), "cpu")
    assert wanted[0] == "sapien==1" and wanted[-1] == "robot==2"
    assert any(one.startswith("numpy>=") for one in wanted) and any(one.startswith("pydantic>=") for one in wanted)
    assert not any("torch" in one or one.startswith("rlvla") for one in wanted)


def test_versions_under_control_are_installed_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """PEP 610: what pip was given is what the environment gets."""
    told = [
        ({"url": "file:///my%20home/rlvla", "dir_info": {"editable": True}}, ["-e", "/my home/rlvla"]),
        (
            {"url": "file:///wheels/rlvla-0.1.0-py3-none-any.whl", "archive_info": {}},
            ["/wheels/rlvla-0.1.0-py3-none-any.whl"],
        ),
        (
            {"url": "https://host/rlvla.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ["rlvla @ git+https://host/rlvla.git@abc"],
        ),
        (None, ["rlvla==0.1.0"]),
    ]
    for direct_url, wanted in told:
        text = None if direct_url is None else json.dumps(direct_url)
        found = SimpleNamespace(version="0.1.0", read_text=lambda name, text=text: text)
        monkeypatch.setattr(environments.metadata, "distribution", lambda name, found=found: found)
        assert environments._source("rlvla") == wanted


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_list_says_where_workers_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulators", "list", "--json"]) == 0
    lines = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert lines["fake"]["state"] == "runs in this interpreter" and lines["fake"]["interpreter"] == sys.executable


def test_the_list_says_what_is_missing_and_what_is_another_one(home: Path) -> None:
    plugin = elsewhere()
    assert simulators._line(plugin)["state"] == "not installed: rlvla simulators install fake"
    pretend(plugin, home / "fake", own={"rlvla": "0.0.1"})
    assert "it holds rlvla 0.0.1" in simulators._line(plugin)["state"]
    (home / "fake" / environments.RECORD).unlink()
    (home / "fake" / "bin" / "python").unlink()
    (home / "fake" / "bin").rmdir()
    pretend(plugin, home / "fake")
    assert simulators._line(plugin)["state"] == "ok, cpu, Python 3.11.7"


def installed(plugin: Plugin[Any, Any], **options: Any) -> tuple[environments.Record, list[str]]:
    said: list[str] = []
    return environments.install(plugin, **{"variant": "cpu", **options}, say=said.append), said


def test_what_is_complete_is_left_as_it_is(home: Path) -> None:
    plugin = elsewhere()
    pretend(plugin, home / "fake")
    _, said = installed(plugin)
    assert said == [f"fake (cpu) is already in {home / 'fake'}"]


def test_an_interpreter_without_pip_is_made_again(tmp_path: Path) -> None:
    """As an install leaves it that was interrupted early."""
    place = tmp_path / "half"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    assert not environments._has_pip(place / "bin" / "python")
    assert not environments._has_pip(place / "bin" / "none")
    assert environments._has_pip(Path(sys.executable))


def test_only_one_process_makes_an_environment(tmp_path: Path) -> None:
    with (
        environments._held(tmp_path / "it"),
        pytest.raises(ConfigError, match="another install into .* is under way"),
        environments._held(tmp_path / "it"),
    ):
        pass
    with environments._held(tmp_path / "it"):
        pass


def test_another_folder_is_found_through_a_link(home: Path, tmp_path: Path) -> None:
    plugin = elsewhere()
    pretend(plugin, tmp_path / "mine")
    installed(plugin, directory=tmp_path / "mine")
    installed(plugin, directory=tmp_path / "mine")
    assert environments.interpreter(plugin, plugin.config()) == str(home / "fake" / "bin" / "python")
    assert (home / "fake").resolve() == (tmp_path / "mine").resolve()


def test_two_environments_do_not_take_each_others_place(home: Path, tmp_path: Path) -> None:
    plugin = elsewhere()
    pretend(plugin, home / "fake")
    pretend(plugin, tmp_path / "mine")
    with pytest.raises(ConfigError, match="already holds an environment: remove it, or leave out --dir"):
        installed(plugin, directory=tmp_path / "mine")


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds something that is no virtual environment"):
        installed(elsewhere(), directory=tmp_path)


def test_there_is_nothing_to_install_for_most() -> None:
    with pytest.raises(ConfigError, match="fake: runs in this interpreter, there is nothing to install"):
        installed(find("sim", "fake"))


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(ConfigError, match="--variant: got 'tpu', fake has cpu"):
        installed(elsewhere(), variant="tpu")


def test_a_python_that_does_not_fit_is_named_with_its_version() -> None:
    with pytest.raises(SimulatorError, match=r"wanted Python .*<3.2.*found .*python.*3\.\d+.*--python PATH"):
        environments.find_python("<3.2")
    with pytest.raises(SimulatorError, match="found no /no/python"):
        environments.find_python(">=3.11", "/no/python")


def test_pips_own_words_are_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('Collecting x'); print('no such package'); raise SystemExit(3)"]
    heard: list[str] = []
    with pytest.raises(SimulatorError, match="(?s)ended with status 3:.*no such package"):
        environments._run(command, environments._steps(heard.append))
    assert heard == ["  Collecting x"]


# ---- for some settings only, and over this interpreter ----------------------------------------------------------------


def test_some_settings_need_it_and_others_run_here(home: Path) -> None:
    plugin = replace(elsewhere(), apart=lambda config: config.batched)
    here, there = plugin.config(), plugin.config(batched=True)
    assert environments.interpreter(plugin, here) is None
    with pytest.raises(SimulatorError, match="with these settings, since this interpreter lacks packages for them"):
        environments.interpreter(plugin, there)
    assert simulators._line(plugin)["state"].startswith("runs in this interpreter; some settings may need")
    pretend(plugin, home / "fake")
    assert environments.interpreter(plugin, there) == str(home / "fake" / "bin" / "python")
    assert environments.interpreter(plugin, here) is None
    assert simulators._line(plugin)["interpreter"] == sys.executable


def test_an_environment_that_lies_over_another_interpreter_is_refused(home: Path) -> None:
    plugin = elsewhere(over=True)
    pretend(plugin, home / "fake", over="/packages/of/another")
    with pytest.raises(SimulatorError, match="it lies over /packages/of/another, this is"):
        environments.installed(plugin)
    with pytest.raises(ConfigError, match="--python: the environment of fake lies over this interpreter"):
        installed(plugin, python=sys.executable)


def test_what_lies_over_finds_its_own_packages_first(tmp_path: Path) -> None:
    """Own ones, then those of the interpreter below, with what is installed there by reference."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "upper")], check=True)
    own = next((tmp_path / "upper").glob("lib/python*/site-packages"))
    lower, source = tmp_path / "lower", tmp_path / "source"
    for place, words in ((own, "upper"), (lower, "lower"), (source, "source")):
        place.mkdir(exist_ok=True)
        (place / "shared.py").write_text(f"of = {words!r}")
    (lower / "below.py").write_text("of = 'lower'")
    (source / "referred.py").write_text("of = 'source'")
    (lower / "reference.pth").write_text(str(source))
    environments._lay_over(tmp_path / "upper", str(lower))
    code = "import shared, below, referred; print(shared.of, below.of, referred.of)"
    python = tmp_path / "upper" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environments.variables(), check=False
    )
    assert done.stdout.split() == ["upper", "lower", "source"], done.stderr


def test_doctor_names_a_missing_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = elsewhere()
    monkeypatch.setattr(doctor.plugin, "find", lambda kind, name: plugin)
    (asked,) = doctor.simulator("fake", None, 10, tmp_path, plugin.config())
    (unasked,) = doctor.simulator("fake", None, 10, tmp_path)
    assert "not installed" in asked.found and not asked.ok and not asked.warning
    assert unasked.warning


@pytest.mark.e2e
def test_an_environment_is_made_and_a_worker_runs_in_it(tmp_path: Path) -> None:
    plugin = elsewhere(packages={"cpu": ("numpy<2.3",)})
    record, said = installed(plugin, directory=tmp_path / "made")
    assert said[-1].startswith(f"fake (cpu) is in {tmp_path / 'made'}")
    assert record.packages["numpy"].startswith(("1.", "2.0", "2.1", "2.2")) and "torch" not in record.packages
    with open_simulator(Choice(plugin, plugin.config()), horizon=2) as there:
        there.reset([0], [1], [Start(0)])
        assert there.step(np.zeros((1, 2, 2), np.float32), np.ones(1, bool)).valid.all()
    (tmp_path / "made" / environments.RECORD).unlink()  # as if it had been interrupted
    _, again = installed(plugin, directory=tmp_path / "made")
    assert not any("making" in line for line in again)


def test_a_suite_runs_where_the_simulator_does() -> None:
    faults = {"fault": "die", "fault_step": 1, "fault_file": "/dev/null", "step_seconds": 0.001}
    found = outcomes_elsewhere("fake", {"num_envs": 2}, rows=2, variations=[{"initial_states": 4}, faults])
    assert set(found.values()) == {"passed", "skipped"}
    assert found["test_reset_is_a_function_of_seed_and_start"] == "passed"


def test_a_suite_that_finds_something_says_what() -> None:
    found = outcomes_elsewhere("fake", {"num_envs": 2}, rows=2, end_chunks=0)
    assert "no episode ended in 0 chunks" in found["test_chunk_result_is_well_formed"]
    assert found["test_defaults_construct"] == "passed"


# ---- limits of a worker ---------------------------------------------------------------------------------------------


@pytest.fixture
def slow() -> Iterator[SubprocessSimulator]:
    fake = find("sim", "fake")
    with open_simulator(Choice(fake, fake.config(step_seconds=60.0)), horizon=1) as there:
        yield there


def test_a_worker_that_does_not_answer_is_ended_and_shows_where_it_was(slow: SubprocessSimulator) -> None:
    slow.reset([0], [0], [Start(0)])
    slow.spec = replace(slow.spec, call_timeout_s=0.3)
    with pytest.raises(WorkerDied, match="was ended: its call 'step' took longer than 0.3 s") as caught:
        slow.step(np.zeros((1, 1, 2), np.float32), np.ones(1, bool))
    assert "in step" in str(caught.value)
    with pytest.raises(ProcessLookupError):
        os.kill(slow.pid, 0)


def test_the_first_call_has_a_limit_of_its_own(slow: SubprocessSimulator) -> None:
    slow.spec = replace(slow.spec, call_timeout_s=0.001, first_call_timeout_s=30.0)
    slow.reset([0], [0], [Start(0)])
    with pytest.raises(WorkerDied, match="took longer than 0.001 s"):
        slow.step(np.zeros((1, 1, 2), np.float32), np.ones(1, bool))


def test_a_chunk_of_another_shape_is_refused() -> None:
    fake = find("sim", "fake")
    wanted = r"got a chunk of shape \(2, 3, 7\), wanted \(2, 3, 2\).*dimensions"
    there = SubprocessSimulator(Choice(fake, fake.config()), rows=2, horizon=3).wait_ready()
    with pytest.raises(ValueError, match=wanted):
        there.step(np.zeros((2, 3, 7), np.float32), np.ones(2, bool))
    there.close()


def test_workers_that_hold_few_environments_are_many() -> None:
    fake = find("sim", "fake")
    spec = replace(fake.describe(fake.config()), rows_per_worker=2)
    assert [least_slots(num_envs, spec) for num_envs in (1, 2, 5)] == [1, 1, 3]
    assert derived_slots(64, spec, SchedulerSpec(on_policy=True)) == 32
    assert least_slots(64, replace(spec, rows_per_worker=None)) == 1
