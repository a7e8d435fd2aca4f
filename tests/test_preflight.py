"""What keeps a simulator's workers from starting is known before a model is loaded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlvla import preflight
from rlvla.configs import Choice
from rlvla.errors import SimulatorError
from rlvla.plugin import find


def asked(monkeypatch: pytest.MonkeyPatch, place: Path, body: str) -> Choice:
    """Return the fake simulator, whose preflight is a function with this body."""
    (place / "looks.py").write_text(f"def look(config):\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", str(place))
    plugin = replace(find("sim", "fake"), preflight="looks:look")
    return Choice(plugin, plugin.config(num_envs=3))


def test_all_that_is_missing_is_said_with_the_simulators_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = asked(monkeypatch, tmp_path, "print('[noise'); return [f'no mesh for {config.num_envs}', 'no planner']")
    with pytest.raises(SimulatorError, match=r"^fake: no mesh for 3\nno planner$"):
        preflight.check(one)


def test_nothing_missing_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    preflight.check(asked(monkeypatch, tmp_path, "return []"))


def test_an_answer_that_does_not_come_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match=f"cannot be asked in {sys.executable}: OSError: no disk"):
        preflight.check(asked(monkeypatch, tmp_path, "raise OSError('no disk')"))
    monkeypatch.setattr(preflight, "_TIMEOUT_S", 0.01)
    with pytest.raises(SimulatorError, match="fake: what it misses was not known after 0 s"):
        preflight.check(asked(monkeypatch, tmp_path, "return []"))


def test_an_interpreter_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match=r"cannot start the interpreter '/no/python'.*run\.sim_python"):
        preflight.check(asked(monkeypatch, tmp_path, "return []"), "/no/python")


def test_asking_imports_nothing_heavy() -> None:
    code = "import sys, rlvla.preflight; assert not {'torch', 'numpy', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
