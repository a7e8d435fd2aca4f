"""``demonstrations.json``: what a folder of demonstrations holds, and whether a run can use it. Light: no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvla.configs import read_one
from rlvla.errors import ConfigError
from rlvla.specs import SimulatorSpec

NAME = "demonstrations.json"
FORMAT = 1


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode, in the order of the shards."""

    number: int
    """Attempt that it was; the ones between failed and were not kept."""
    seed: int
    task: int
    state: int | None
    success: bool
    steps: int
    """Env steps, and so observations and actions."""
    episode_return: float


@dataclass(frozen=True)
class Shard:
    """One safetensors file: the steps of some whole episodes, one after another."""

    file: str
    steps: int


@dataclass(frozen=True)
class Header:
    """What ``demonstrations.json`` says."""

    format: int
    simulator: Mapping[str, Any]
    """Its name under ``use``, and its settings."""
    spec: SimulatorSpec
    seed: int
    noise: float
    versions: Mapping[str, str]
    episodes: tuple[RecordedEpisode, ...]
    shards: tuple[Shard, ...]

    @property
    def steps(self) -> int:
        return sum(one.steps for one in self.episodes)

    def write(self, folder: Path) -> None:
        """Write ``demonstrations.json``."""
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(path: str | Path) -> Header:
    """Return the header of a folder of demonstrations.

    Raises:
        ConfigError: there is none, it cannot be read, or it is of another format.
    """
    file = Path(path).expanduser() / NAME
    if not file.is_file():
        raise ConfigError(f"{path}: no {NAME} there; wanted a folder that `rlvla record --path {path}` makes")
    try:
        data = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise ConfigError(f"{file}: got format {found}, this rlvla reads {FORMAT}: record again, or update rlvla")
    try:
        return read_one(Header, data)
    except ConfigError as error:
        raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from error


def misfits(path: str | Path, recorded: SimulatorSpec, wanted: SimulatorSpec) -> list[str]:
    """Return why demonstrations of one simulator cannot teach a policy that is made for another; empty if they can."""
    problems = []
    cameras = {one.name: one for one in recorded.cameras}
    for camera in wanted.cameras:
        there = cameras.get(camera.name)
        if there is None:
            problems.append(
                f"{path}: has no camera {camera.name!r}, which the simulator shows (recorded: "
                f"{', '.join(cameras) or 'none'}): record again with the run's simulator settings"
            )
        elif there != camera:
            problems.append(
                f"{path}: camera {camera.name!r} was recorded {_camera(there)}, the simulator shows it {_camera(camera)}: "
                "give the run the recording's simulator settings, or record again"
            )
    for what, there_parts, parts in (
        ("state", recorded.state, wanted.state),
        ("action", recorded.action, wanted.action),
    ):
        if there_parts != parts:
            problems.append(
                f"{path}: {what} was recorded as {_parts(there_parts)}, the simulator has {_parts(parts)}: record again"
            )
    if recorded.control_hz != wanted.control_hz:
        problems.append(
            f"{path}: recorded at {recorded.control_hz:g} actions a second, the simulator takes {wanted.control_hz:g}: "
            "record again"
        )
    return problems


def _camera(camera: Any) -> str:
    return f"{camera.height}x{camera.width} {camera.role} {camera.orientation}"


def _parts(parts: Any) -> str:
    return ", ".join(f"{one.name}: {one.size} {one.unit}".rstrip() for one in parts) or "nothing"
