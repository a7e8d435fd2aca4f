"""Finding plugins: by name, cheaply, and with words that say what to do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import rlvla
from rlvla import plugin
from rlvla.errors import IncompatiblePlugin, UnknownPlugin

from importlib import metadata  # isort: skip


def test_import_is_light() -> None:
    code = """
import sys
before = set(sys.modules)
import rlvla
new = set(sys.modules) - before
heavy = {"torch", "ray", "numpy", "pydantic", "tyro", "rich", "stevedore", "pluggy", "mujoco"} & new
assert not heavy, heavy
assert len(new) < 40, sorted(new)  # 31 on Python 3.11, all but one of the standard library
from rlvla import Plugin, config, find, hookimpl
heavy = {"torch", "ray", "numpy", "pydantic", "tyro", "rich", "mujoco"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_find_fills_in_name_and_distribution(four_plugins: dict[str, str]) -> None:
    found = rlvla.find("sim", "testsim")
    assert (found.name, found.distribution) == ("testsim", "rlvla-testsim")
    assert plugin.find_by_config("sim", found.config()) == found


def test_an_unknown_name_names_the_close_one_or_the_package(four_plugins: dict[str, str]) -> None:
    with pytest.raises(UnknownPlugin, match=r"no sim plugin 'tetsim' is installed; .*Did you mean 'testsim'\?"):
        rlvla.find("sim", "tetsim")
    with pytest.raises(UnknownPlugin, match="Try: pip install rlvla-sched-clockwork"):
        rlvla.find("scheduler", "clockwork")


def test_two_distributions_with_one_name_are_an_error_that_names_both(
    four_plugins: dict[str, str], make_distribution: Any
) -> None:
    make_distribution("rlvla-twin", {"rlvla.simulators": {"testsim": "rlvla_testsim:plugin"}})
    with pytest.raises(
        IncompatiblePlugin, match="2 distributions register sim 'testsim', uninstall all but one: rlvla-t.*, rlvla-t"
    ):
        rlvla.find("sim", "testsim")
    states = [one.state for one in plugin.installed() if one.name == "testsim"]
    assert len(states) == 2
    assert all("uninstall all but one" in state for state in states)


def test_a_plugin_for_another_rlvla_is_refused_before_it_is_imported(make_distribution: Any) -> None:
    make_distribution(
        "rlvla-old",
        {"rlvla.simulators": {"old": "rlvla_old:plugin"}},
        "rlvla_old",
        "raise ImportError",
        requires=("rlvla<0.1",),
    )
    version = metadata.version("rlvla")
    with pytest.raises(IncompatiblePlugin, match=rf"rlvla-old 0.1.0 needs rlvla<0.1 \(found {version}\)"):
        rlvla.find("sim", "old")


def test_other_requirements_are_checked_when_it_is_loaded(make_distribution: Any) -> None:
    code = "import rlvla\nplugin = rlvla.Plugin(config=dict, target='os:getcwd', describe=dict)\n"
    requires = (
        "rlvla",
        "numpy<1",
        "no-such-package>=2",
        'windows-only; sys_platform == "win32"',
        'extra1; extra == "x"',
    )
    make_distribution(
        "rlvla-needy", {"rlvla.models": {"needy": "rlvla_needy:plugin"}}, "rlvla_needy", code, requires=requires
    )
    found = rlvla.find("model", "needy")
    with pytest.raises(IncompatiblePlugin, match=r"needs numpy<1 \(found .*\); no-such-package>=2 \(not installed\)"):
        found.load()
    state = next(one.state for one in plugin.installed() if one.name == "needy")
    assert "windows" not in state
    assert "extra1" not in state


def test_a_plugin_judges_releases_that_it_names_itself(make_distribution: Any) -> None:
    code = "import rlvla\nplugin = rlvla.Plugin(config=dict, target='os:getcwd', describe=dict, judges=('numpy', 'absent'))\n"
    requires = ("rlvla", "numpy<1", "absent>=2")
    make_distribution(
        "rlvla-judge", {"rlvla.models": {"judge": "rlvla_judge:plugin"}}, "rlvla_judge", code, requires=requires
    )
    assert rlvla.find("model", "judge").unmet() == ["absent>=2 (not installed)"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module_at_all", "cannot be imported: ModuleNotFoundError: .*no_such_module_at_all"),
        ("plugin = 3", "names a int, wanted an rlvla.Plugin"),
        ("other = 3", "cannot be imported: .*plugin"),
    ],
)
def test_a_broken_descriptor_is_named_and_does_not_end_the_list(
    four_plugins: dict[str, str], make_distribution: Any, code: str, message: str
) -> None:
    name = f"broken{abs(hash(code))}"
    make_distribution(f"rlvla-{name}", {"rlvla.algorithms": {name: f"{name}:plugin"}}, name, code)
    with pytest.raises(IncompatiblePlugin, match=message):
        rlvla.find("algo", name)
    states = {one.name: one.state for one in plugin.installed()}
    assert states["testsim"] == "ok"
    assert name in states[name]


def test_loading_imports_the_target_only_then(make_distribution: Any) -> None:
    code = "import rlvla\nplugin = rlvla.Plugin(config=dict, target='rlvla_lazy_heavy:Heavy', describe=dict)\n"
    place = make_distribution("rlvla-lazy", {"rlvla.models": {"lazy": "rlvla_lazy:plugin"}}, "rlvla_lazy", code)
    (place / "rlvla_lazy_heavy.py").write_text("class Heavy: pass\n")
    found = rlvla.find("model", "lazy")
    assert "rlvla_lazy_heavy" not in sys.modules
    assert found.load().__name__ == "Heavy"


def test_first_party_descriptors_are_light() -> None:
    code = """
import contextlib, sys
from rlvla import plugin
from rlvla.errors import ConfigError
for kind in plugin.GROUPS:
    for name in plugin.names(kind):
        found = plugin.find(kind, name)
        with contextlib.suppress(ConfigError):  # some want settings
            found.describe(found.config())
heavy = {"torch", "ray", "mujoco", "transformers", "sapien", "robosuite"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
