"""Where RoboTwin's assets are, and which of them a task lacks; asked before the runtime would look for them for ever."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rlvla_sim_robotwin import RoboTwinConfig

ROOT, LEGACY = "ROBOTWIN_ASSETS_ROOT", "ASSETS_PATH"
"""Variables that name the folder which contains ``assets/``: the runtime's, and the one that its tasks still read."""
REVISION = "c15cc97be71e35244b6605d2d84c187f8565cc4d"
"""Of the data set that rlinf-robotwin-runtime 0.1.3 was made for (``robotwin/assets.py``)."""
MANIFEST = ".robotwin-assets.json"
_OBJECT = re.compile(r"[\"'](\d{3}_[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*)")
_MESHES = (".glb", ".gltf", ".obj", ".urdf")
_SHOWN = 8
"""Missing files that a message names."""


def root(config: RoboTwinConfig) -> Path | None:
    """Return the folder that contains ``assets/``; None: nobody has named one."""
    named = config.assets or os.environ.get(ROOT) or os.environ.get(LEGACY)
    return Path(named).expanduser().absolute() if named else None


def set_environment(place: Path) -> None:
    """Tell the runtime where the assets are, by both variables."""
    os.environ[ROOT] = os.environ[LEGACY] = str(place)


def embodiment_folder(place: Path, name: str) -> Path:
    """Return the folder of a robot."""
    return place / "assets" / "embodiments" / name


def problems(config: RoboTwinConfig) -> list[str]:
    """Say what is missing for an episode, and what brings it; empty: nothing."""
    place = root(config)
    if place is None:
        return [_not_found(f"sim.assets and {ROOT} are not set")]
    said = _variables(config)
    if place.name == "assets" and (place / "objects").is_dir():
        return [
            *said,
            f"RoboTwin assets: {place} is the folder assets/ itself; wanted the one it lies in: {place.parent}",
        ]
    if missing := list(_missing(config, place)):
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        said.append(_not_found(f"at {place}, missing: {shown}"))
    said += filter(None, (_one_armed(config, place), _revision(place)))
    return said


def _one_armed(config: RoboTwinConfig, place: Path) -> str:
    """Say that the only robot has one arm."""
    (name, *others) = config.embodiment
    if others or (_settings(embodiment_folder(place, name)) or {}).get("dual_arm", True):
        return ""
    return f"embodiment: {name} has one arm (its config.yml); wanted a two-armed robot, or two: ({name!r}, {name!r})"


def _not_found(why: str) -> str:
    download = Path(sys.executable).with_name("robotwin-download-assets")
    return (
        f"RoboTwin assets not found ({why}). They are in no package. Run: {download} --output DIR and set {ROOT}=DIR, or "
        "sim.assets"
    )


def _variables(config: RoboTwinConfig) -> list[str]:
    named = {name: os.environ[name] for name in (ROOT, LEGACY) if os.environ.get(name)}
    if config.assets or len({str(Path(one).expanduser().resolve()) for one in named.values()}) < 2:
        return []
    told = " and ".join(f"{name}={value}" for name, value in named.items())
    return [f"RoboTwin assets: {told} name two folders: unset {LEGACY}, or set sim.assets"]


def _missing(config: RoboTwinConfig, place: Path) -> Iterator[str]:
    there = place / "assets"
    for name in ("background_texture", "objects"):
        if not (there / name).is_dir():
            yield f"assets/{name}"
    for name in dict.fromkeys(config.embodiment):
        yield from _missing_of_robot(embodiment_folder(place, name), f"assets/embodiments/{name}")
    if (there / "objects").is_dir():
        for name in objects_of(config.task):
            yield from _missing_of_object(there / "objects" / name, f"assets/objects/{name}")
    if config.random_background and not any((there / "background_texture" / config.textures).glob("*.png")):
        yield f"assets/background_texture/{config.textures}/*.png"
    if config.cluttered_table:
        for name in ("objaverse/list.json", "same.json"):
            if not (there / "objects" / name).is_file():
                yield f"assets/objects/{name}"


def _missing_of_robot(folder: Path, label: str) -> Iterator[str]:
    for name in ("config.yml", "curobo_left_tmp.yml", "curobo_right_tmp.yml"):
        if not (folder / name).is_file():
            yield f"{label}/{name}"
    if (folder / "config.yml").is_file():
        told = _settings(folder)
        if told is None:
            yield f"{label}/config.yml (damaged: no YAML mapping)"
            return
        for option in ("urdf_path", "srdf_path"):
            path = told.get(option)
            if path is None:
                continue
            if not (folder / str(path)).is_file():
                yield f"{label}/{Path(str(path))}"
            elif _is_damaged(folder / str(path)):
                yield f"{label}/{Path(str(path))} (damaged)"


def _settings(folder: Path) -> dict[str, Any] | None:
    """Return what a robot's config.yml says; None: it is missing or damaged."""
    import yaml

    try:
        told = yaml.safe_load((folder / "config.yml").read_text())
    except (OSError, yaml.YAMLError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _missing_of_object(folder: Path, label: str) -> Iterator[str]:
    if not folder.is_dir():
        yield label
        return
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not any(path.suffix == ".json" and path.name.startswith("model_data") for path in files):
        yield f"{label}/model_data*.json"
    if not any(path.suffix in _MESHES and "collision" not in path.parts for path in files):
        yield f"{label}/visual/*.glb"
    for path in sorted(files):
        if _is_damaged(path):
            yield f"{label}/{path.relative_to(folder)} (damaged)"


def _is_damaged(file: Path) -> bool:
    """Say whether a file is cut short, or not what its name says, as far as a look at it tells."""
    try:
        if file.suffix == ".json":
            return not isinstance(json.loads(file.read_text()), dict | list)
        if file.suffix in (".urdf", ".srdf"):
            ElementTree.parse(file)
        if file.suffix == ".glb":
            with file.open("rb") as read:
                head = read.read(12)
            return head[:4] != b"glTF" or int.from_bytes(head[8:12], "little") > file.stat().st_size
    except (ValueError, RecursionError, ElementTree.ParseError):
        return True
    return False


def objects_of(task: str) -> list[str]:
    """Return the object folders that a task's module names; none where the runtime is not installed."""
    found = importlib.util.find_spec("robotwin")
    if found is None or not found.submodule_search_locations:
        return []
    module = Path(next(iter(found.submodule_search_locations)), "envs", f"{task}.py")
    return sorted(set(_OBJECT.findall(module.read_text()))) if module.is_file() else []


def _revision(place: Path) -> str:
    try:
        told = json.loads((place / MANIFEST).read_text())
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return f"RoboTwin assets: {place / MANIFEST} is not JSON: {error}; download them again"
    found = told.get("revision") if isinstance(told, dict) else None
    if found == REVISION:
        return ""
    return f"RoboTwin assets at {place} are revision {found}, the runtime wants {REVISION}: download them again"
