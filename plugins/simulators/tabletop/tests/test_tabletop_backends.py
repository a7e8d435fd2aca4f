"""Which backend runs where, and settings that do not go together. Needs neither MuJoCo Warp nor a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvla import environments
from rlvla.errors import ConfigError, SimulatorError
from rlvla.plugin import find
from rlvla_sim_tabletop import ENVIRONMENT, TabletopConfig, backends, describe


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "missing", lambda: ["mujoco-warp<5,>=4 (not installed)"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cpu"}, "device: got 'cpu', which changes nothing with backend 'cpu'"),
        ({"deterministic": True}, "deterministic: got True, which changes nothing with backend 'cpu'"),
        *(
            ({"backend": "gpu", "device": one}, f"device: got {one!r}, wanted")
            for one in ("cuda:x", "cuda:", "cuda:-1")
        ),
        ({"backend": "gpu", "device": "tpu"}, "device: got 'tpu', wanted 'cuda', 'cuda:N' (N from 0) or 'cpu'"),
    ],
)
def test_options_that_do_not_go_together(options, words):
    with pytest.raises(ConfigError) as caught:
        describe(TabletopConfig(**options))
    assert words in str(caught.value)


def test_the_batch_lives_where_its_packages_are(monkeypatch):
    monkeypatch.setattr(backends, "missing", lambda: [])
    spec = describe(TabletopConfig(backend="gpu"))
    assert spec.in_process and spec.device == "gpu" and "float32" in spec.notes[0] and len(spec.notes) == 2
    assert environments.interpreter(find("sim", "tabletop"), TabletopConfig(backend="gpu")) is None
    assert len(describe(TabletopConfig(backend="gpu", deterministic=True)).notes) == 1


def test_without_them_it_needs_its_own_environment(without, monkeypatch, tmp_path: Path):
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    assert not describe(TabletopConfig(backend="gpu")).in_process
    with pytest.raises(SimulatorError, match="with these settings.*rlvla simulators install tabletop"):
        environments.interpreter(find("sim", "tabletop"), TabletopConfig(backend="gpu"))
    assert environments.interpreter(find("sim", "tabletop"), TabletopConfig()) is None
    with pytest.raises(SimulatorError, match=r"needs mujoco-warp.*pip install 'rlvla-sim-tabletop\[gpu\]'"):
        backends.simulator(TabletopConfig(backend="gpu"), 1)


def test_the_doctor_of_either_backend_is_told_what_draws():
    drawing = find("sim", "tabletop").drawing
    assert "backend cpu" in drawing and "MUJOCO_GL" in drawing and "backend gpu draws by CUDA" in drawing


def test_the_extra_and_the_environment_want_the_same():
    from importlib import metadata

    from packaging.requirements import Requirement

    extra = {
        str(one.name) + str(one.specifier)
        for one in map(Requirement, metadata.requires(backends.DISTRIBUTION) or [])
        if one.marker and one.marker.evaluate({"extra": "gpu"})
    }
    assert extra == {str(one.name) + str(one.specifier) for one in map(Requirement, backends.REQUIREMENTS)}
    assert all(packages == backends.REQUIREMENTS for packages in ENVIRONMENT.packages.values())
