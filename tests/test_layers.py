"""Who may import whom, where import-linter's contracts (setup.cfg) do not reach."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = {path.parent.name: path.parent for path in ROOT.glob("plugins/*/*/src/*/__init__.py")}


def imported(package: Path) -> Iterator[tuple[str, str]]:
    """Yield (file, module) for every import in a package."""
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path.name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path.name, node.module


def test_the_core_knows_no_plugin() -> None:
    found = [one for one in imported(ROOT / "core/rlvla") if one[1].partition(".")[0] in PACKAGES]
    assert not found


def required(name: str) -> set[str]:
    """Return the packages of distributions that a plugin's manifest requires: one may lie over another (decision 084)."""
    manifest = configparser.ConfigParser()
    manifest.read(PACKAGES[name].parents[1] / "setup.cfg")
    lines = manifest["options"]["install_requires"].split("\n")
    return {Requirement(line).name.replace("-", "_") for line in lines if line}


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_plugin_knows_no_other_plugin(name: str) -> None:
    """But one that its manifest requires."""
    others = set(PACKAGES) - {name} - required(name)
    found = [one for one in imported(PACKAGES[name]) if one[1].partition(".")[0] in others]
    assert not found


def test_only_libero_on_the_gpu_lies_over_another_plugin() -> None:
    assert {name: over for name in PACKAGES if (over := required(name) & set(PACKAGES))} == {
        "rlvla_sim_libero_gpu": {"rlvla_sim_libero"}
    }


@pytest.mark.parametrize("name", sorted(name for name in PACKAGES if not name.startswith("rlvla_sched")))
def test_simulators_models_and_algorithms_know_no_runtime(name: str) -> None:
    hidden = ("rlvla.actors", "rlvla.runtimes", "rlvla.graph", "rlvla.run", "rlvla.cli", "ray")
    found = [
        one for one in imported(PACKAGES[name]) if one[1] in hidden or one[1].startswith(tuple(f"{h}." for h in hidden))
    ]
    assert not found
