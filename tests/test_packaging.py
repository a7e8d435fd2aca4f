"""The distributions of this repository: one version, one licence, whole wheels that work by themselves.

No list of packages to keep in step: whatever lies in ``plugins/*/*`` is looked at.
"""

from __future__ import annotations

import ast
import configparser
import email
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rlvla
from rlvla.plugin import GROUPS

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("plugins/*/*/setup.cfg"))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
NOT_SOURCES = shutil.ignore_patterns(
    ".*", "plugins", "tests", "examples", "benchmarks", "runs", "build", "dist", "*.egg-info", "__pycache__"
)
KINDS = {
    "simulators": ("rlvla.simulators", "rlvla-sim-"),
    "models": ("rlvla.models", "rlvla-model-"),
    "algorithms": ("rlvla.algorithms", "rlvla-algo-"),
    "schedulers": ("rlvla.schedulers", "rlvla-sched-"),
}

each_plugin = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


def manifest(folder: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(folder / "setup.cfg")
    return parser


def source(folder: Path) -> Path:
    (package,) = (path.parent for path in folder.glob("src/*/__init__.py"))
    return package


# ---- manifests ------------------------------------------------------------------------------------------------------


@each_plugin
def test_a_plugins_manifest_is_whole(folder: Path) -> None:
    parser, package = manifest(folder), source(folder)
    group, prefix = KINDS[folder.parent.name]
    name = parser["metadata"]["name"]
    assert name == prefix + folder.name
    assert package.name == name.replace("-", "_")
    assert parser["metadata"]["license_expression"] == manifest(ROOT)["metadata"]["license_expression"]
    assert parser["metadata"]["description"]
    assert len((folder / "README.md").read_text().splitlines()) >= 3
    assert (package / "py.typed").exists()
    assert folder.name in parser["options.entry_points"][group]
    assert "setuptools.build_meta" in (folder / "pyproject.toml").read_text()


@each_plugin
def test_versions_are_one_and_plugins_admit_the_core(folder: Path) -> None:
    tree = ast.parse((source(folder) / "__init__.py").read_text())
    versions = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert versions == [rlvla.__version__]
    requires = [Requirement(one) for one in manifest(folder)["options"]["install_requires"].split("\n") if one]
    (core,) = (one for one in requires if one.name == "rlvla")
    assert rlvla.__version__ in core.specifier


def test_no_exact_pins_in_the_core() -> None:
    parser = manifest(ROOT)
    lines = parser["options"]["install_requires"] + "".join(parser["options.extras_require"].values())
    assert "==" not in lines


def test_every_distribution_is_installed_for_development() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    listed = {re.sub(r"\[.*", "", line.removeprefix("-e ")) for line in lines if line.startswith("-e ")}
    assert listed == {".", *(str(folder.relative_to(ROOT)) for folder in FOLDERS)}


# ---- wheels ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build all wheels; distribution's name to file."""
    place = tmp_path_factory.mktemp("wheels")
    sources = []
    for folder in (
        ROOT,
        *FOLDERS,
    ):  # copies: setuptools leaves a build/ behind, whose stale files get into the next wheel
        copy = tmp_path_factory.mktemp("sources") / folder.name
        shutil.copytree(folder, copy, ignore=NOT_SOURCES)
        sources.append(str(copy))
    options = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(place)]
    subprocess.run([*PIP, *options, *sources], check=True)
    return {path.name.split("-")[0].replace("_", "-"): path for path in place.glob("*.whl")}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.e2e
def test_wheels_hold_what_the_sources_hold_and_nothing_else(wheels: dict[str, Path]) -> None:
    packages = {"rlvla": ROOT / "core/rlvla"} | {source(one).name.replace("_", "-"): source(one) for one in FOLDERS}
    assert set(wheels) == set(packages)
    for name, package in packages.items():
        wanted = {
            str(path.relative_to(package.parent))
            for path in package.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        with zipfile.ZipFile(wheels[name]) as archive:
            there = {one for one in archive.namelist() if ".dist-info/" not in one}
        assert there == wanted, (
            f"{name}: package_data in its setup.cfg misses {wanted - there}, or adds {there - wanted}"
        )


@pytest.mark.e2e
def test_wheels_carry_version_licence_and_readme(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        found = metadata(wheel)
        assert found["Version"] == rlvla.__version__
        assert found["License-Expression"] == "Apache-2.0"
        assert found["Description-Content-Type"] == "text/markdown"
        assert name in str(found.get_payload()), f"the README of {name} does not name it"


def third_party_only(place: Path) -> None:
    """Fill a folder with links to all that is installed here except what this repository makes."""
    place.mkdir()
    folders = {
        sysconfig.get_path("purelib"),
        *site.getsitepackages(),
        *(one for one in sys.path if "site-packages" in one),
    }
    for folder in map(Path, folders):
        for entry in folder.iterdir() if folder.is_dir() else []:
            ours = entry.name.lower().replace("-", "_").startswith(("rlvla", "__editable__"))
            if not ours and entry.suffix != ".pth" and not (place / entry.name).exists():
                (place / entry.name).symlink_to(entry)


def plugins_of(python: Path) -> dict[str, str]:
    command = [str(python.parent / "rlvla"), "plugins", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return {
        one["distribution"]: one["state"]
        for one in json.loads(out)
        if one["kind"] in GROUPS and one["distribution"] != "rlvla"
    }


@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_wheels_work_in_a_fresh_environment(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Third-party packages are shared with this environment; RLVLA_FULL_INSTALL=1 lets pip install all of them."""
    full = bool(os.environ.get("RLVLA_FULL_INSTALL"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    options = ["--python", str(python), "install", "--find-links", str(next(iter(wheels.values())).parent)]
    if not full:
        third_party_only(tmp_path / "shared")
        (purelib,) = (tmp_path / "venv/lib").glob("python*/site-packages")
        (purelib / "shared.pth").write_text(f"{tmp_path / 'shared'}\n")
        options += ["--no-deps", "--no-index"]

    subprocess.run([*PIP, *options, str(wheels["rlvla"])], check=True)
    assert plugins_of(python) == {}
    first = "rlvla-sim-libero" if "rlvla-sim-libero" in wheels else "rlvla-sim-tabletop"
    subprocess.run([*PIP, *options, str(wheels[first])], check=True)
    assert plugins_of(python) == {first: "ok"}
    subprocess.run([*PIP, *options, *map(str, wheels.values())], check=True)
    assert plugins_of(python) == {name: "ok" for name in wheels if name != "rlvla"}
