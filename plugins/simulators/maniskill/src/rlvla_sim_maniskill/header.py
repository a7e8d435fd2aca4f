"""What is known of a ManiSkill task without importing ManiSkill: observations, actions, cameras, limits.

The table of the package (``tasks.json``) is measured on the installed ManiSkill by ``python -m rlvla_sim_maniskill``, which
also writes the header of a task of your own, or of one whose assets you have downloaded.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlvla.errors import ConfigError
from rlvla.specs import ActionPart, StatePart

TABLE = Path(__file__).with_name("tasks.json")
FORMAT = 1


@dataclass(frozen=True)
class CameraHeader:
    """A camera of a task as ManiSkill makes it."""

    name: str
    height: int
    width: int
    mounted: bool = False
    """It sits on the robot."""


@dataclass(frozen=True)
class ControlMode:
    """How actions move a robot."""

    parts: tuple[ActionPart, ...]
    """Of an action; empty: unbounded ones, which no policy here gives."""
    state: tuple[StatePart, ...]
    """What the controller remembers from action to action (its target); the last parts of an observation's state."""


@dataclass(frozen=True)
class TaskHeader:
    """What a task offers."""

    name: str
    max_episode_steps: int
    control_hz: float
    rewards: tuple[str, ...]
    """Reward modes, ManiSkill's default first."""
    cameras: tuple[CameraHeader, ...]
    proprioception: tuple[StatePart, ...]
    """What goes with pictures."""
    state: tuple[StatePart, ...]
    """What the observation mode ``state`` holds, objects and goals included."""
    control_modes: Mapping[str, ControlMode]
    """By name, ManiSkill's default first."""
    instruction: str = ""
    """The task's own words; empty: it has none."""
    module: str = ""
    """Module that registers the task, where ManiSkill itself does not."""


def tasks(file: str | None) -> dict[str, TaskHeader]:
    """Return the headers in a file, or of the package.

    Raises:
        ConfigError: no such file, or not one that ``python -m rlvla_sim_maniskill`` wrote.
    """
    return _package() if file is None else _read(Path(file).expanduser())


@cache
def _package() -> dict[str, TaskHeader]:
    return _read(TABLE)


@cache
def needing_assets() -> dict[str, tuple[str, ...]]:
    """Return tasks that ManiSkill registers and that need downloads, with the names of what to download."""
    return _needing("assets")


@cache
def needing_packages() -> dict[str, tuple[str, ...]]:
    """Return tasks that ManiSkill registers and that need packages which it does not require itself, with their names."""
    return _needing("packages")


def _needing(what: str) -> dict[str, tuple[str, ...]]:
    listed = json.loads(TABLE.read_text())[f"needing_{what}"]
    return {name: tuple(some) for name, some in listed.items()}


def commands(assets: Sequence[str]) -> str:
    """Return what downloads assets."""
    return " && ".join(f"python -m mani_skill.utils.download_asset {one}" for one in assets)


def _read(path: Path) -> dict[str, TaskHeader]:
    wanted = "wanted a file that `python -m rlvla_sim_maniskill TASK --output FILE` wrote"
    if not path.is_file():
        raise ConfigError(f"task_file: {path}: no such file; {wanted}")
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ConfigError(f"task_file: {path} has format {data['format']}, this version reads {FORMAT}; {wanted}")
        tasks = {name: _task(name, one, data["actions"]) for name, one in data["tasks"].items()}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"task_file: {path}: {type(error).__name__}: {error}; {wanted}") from error
    if damaged := [f"{name}: {what}" for name, task in tasks.items() for what in _damages(task)]:
        raise ConfigError([f"task_file: {path}: {one}; {wanted}" for one in damaged])
    return tasks


def _damages(task: TaskHeader) -> list[str]:
    """Return what no task can have."""
    sizes = [size for camera in task.cameras for size in (camera.height, camera.width)]
    good = {
        "rewards: none": bool(task.rewards),
        "control_modes: none": bool(task.control_modes),
        f"max_episode_steps: got {task.max_episode_steps}": task.max_episode_steps > 0,
        f"control_hz: got {task.control_hz}": task.control_hz > 0,
        f"cameras: sizes {sizes}": all(size > 0 for size in sizes),
    }
    return [what for what, holds in good.items() if not holds]


def _task(name: str, one: Mapping[str, Any], actions: Mapping[str, Any]) -> TaskHeader:
    return TaskHeader(
        name=name,
        max_episode_steps=one["max_episode_steps"],
        control_hz=one["control_hz"],
        rewards=tuple(one["rewards"]),
        cameras=tuple(CameraHeader(**camera) for camera in one["cameras"]),
        proprioception=tuple(StatePart(**part) for part in one["proprioception"]),
        state=tuple(StatePart(**part) for part in one["state"]),
        control_modes={mode: _control_mode(actions[key]) for mode, key in one["control_modes"].items()},
        instruction=one.get("instruction", ""),
        module=one.get("module", ""),
    )


def _control_mode(one: Mapping[str, Any]) -> ControlMode:
    return ControlMode(
        tuple(ActionPart(**part) for part in one["parts"]), tuple(StatePart(**part) for part in one["state"])
    )


def unknown(name: str, there: Sequence[str], file: str | None) -> str:
    """Say why a task is not one of those that are there."""
    left = {} if file is not None else {**needing_assets(), **needing_packages()}
    if name in left:
        known = f"python -m rlvla_sim_maniskill {name} --output {name}.json, and task_file: {name}.json"
        if name in needing_packages():
            return f"task: {name} needs {', '.join(left[name])}: pip install {' '.join(left[name])}, then {known}"
        return (
            f"task: {name} needs downloaded assets ({', '.join(left[name])}), which are in no package: "
            f"{commands(left[name])}, then {known}"
        )
    close = difflib.get_close_matches(name, [*there, *left], n=1, cutoff=0.5)
    if close:
        return f"task: no task {name!r}. Did you mean {close[0]!r}?"
    return (
        f"task: no task {name!r}; there is: {', '.join(there)}. For one of your own: python -m rlvla_sim_maniskill {name} "
        "--module MODULE --output FILE, and task_file: FILE"
    )
