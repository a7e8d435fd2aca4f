"""Checkpoints: a folder that is complete or not there.

``checkpoints/step_000050/`` holds ``model/`` (the model's public format), ``optimizer/`` (one file a trainer rank, which any
number of ranks reads), ``episodes.safetensors`` (live episodes, where the simulator can save them), ``state.json`` and ``config.yaml``. It is
written beside its place and renamed, so a kill or a full disk leaves the last one readable. No pickle anywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.errors import CheckpointError, RlvlaError

FORMAT = 1
_NAME = re.compile(r"step_(\d+)$")


def path_of(run_directory: Path, step: int) -> Path:
    """Return where the checkpoint of a training step belongs."""
    return run_directory / "checkpoints" / f"step_{step:06d}"


class Writer:
    """Writes one checkpoint: fill ``folder``, then :meth:`commit`; without, nothing stays."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place.with_name(f".{place.name}.part")

    def __enter__(self) -> Writer:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def commit(self, state: Mapping[str, Any]) -> None:
        """Add ``state.json``, make everything durable, and put the folder in its place."""
        (self.folder / "state.json").write_text(json.dumps({"format": FORMAT, **state}))
        for file in self.folder.rglob("*"):
            _sync(file)
        _sync(self.folder)
        if self.place.exists():  # the same step again, after a resume: the old one goes only when the new one stands
            old = self.place.with_name(f".{self.place.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self.place, old)
            os.rename(self.folder, self.place)
            shutil.rmtree(old)
        else:
            os.rename(self.folder, self.place)
        _sync(self.place.parent)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def steps(run_directory: Path) -> list[int]:
    """Return the steps of complete checkpoints, ascending."""
    found = [
        _NAME.match(place.name)
        for place in (run_directory / "checkpoints").glob("step_*")
        if (place / "state.json").is_file()
    ]
    return sorted(int(match[1]) for match in found if match)


def prune(run_directory: Path, keep_last: int, also: int | None = None) -> None:
    """Remove all but the last ``keep_last`` checkpoints, the best one, and that of one more step."""
    kept = {*steps(run_directory)[-keep_last:], best(run_directory), also}
    for step in steps(run_directory):
        if step not in kept:
            shutil.rmtree(path_of(run_directory, step))


def set_aside(run_directory: Path, after: int) -> None:
    """Rename the checkpoints beyond a step, when a run goes on from an earlier one: another history begins there."""
    for step in steps(run_directory):
        if step > after:
            place, number = path_of(run_directory, step), 1
            while (aside := place.with_name(f"superseded_{place.name}_{number}")).exists():
                number += 1
            os.rename(place, aside)


def write_results(run_directory: Path, step: int, results: Mapping[str, Any]) -> Path:
    """Write an evaluation's results to a file of their own in ``evaluations/``."""
    folder, number = run_directory / "evaluations", 1
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"step_{step:06d}.json"
    while place.exists():
        number += 1
        place = folder / f"step_{step:06d}_{number}.json"
    place.write_text(json.dumps(results, indent=1))
    return place


@contextmanager
def readable(place: Path) -> Iterator[None]:
    """Within, whatever a damaged file leads to is a :class:`CheckpointError` that names the checkpoint."""
    try:
        yield
    except RlvlaError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{place} cannot be read: {type(error).__name__}: {error}; take another checkpoint of the run"
        ) from error


def is_best(run_directory: Path, success: float) -> bool:
    """Say whether no evaluation so far was as good."""
    note = run_directory / "checkpoints" / "best.json"
    return not note.is_file() or json.loads(note.read_text())["success"] < success


def mark_best(run_directory: Path, step: int, success: float) -> None:
    """Remember the best evaluated step; its checkpoint is kept."""
    note = run_directory / "checkpoints" / "best.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    part = note.with_suffix(".part")
    part.write_text(json.dumps({"step": step, "success": success}))
    os.replace(part, note)


def best(run_directory: Path) -> int | None:
    """Return the best evaluated step."""
    note = run_directory / "checkpoints" / "best.json"
    return int(json.loads(note.read_text())["step"]) if note.is_file() else None


def find(path: str | Path) -> Path:
    """Return the checkpoint that a path means: itself, or the last one of a run.

    Raises:
        CheckpointError: there is none.
    """
    place = Path(os.path.abspath(Path(path).expanduser()))
    if (place / "state.json").is_file():
        return place
    if there := steps(place):
        return path_of(place, there[-1])
    if between := sorted((place / "checkpoints").glob(".step_*.old")):  # a kill between the two renames of a commit
        return between[-1]
    if not place.exists():
        raise CheckpointError(f"{path}: no such folder; wanted a run's folder or one of its checkpoints/step_*")
    raise CheckpointError(
        f"{path}: holds no complete checkpoint; wanted a run's folder or one of its checkpoints/step_*"
    )


def read_state(place: Path) -> dict[str, Any]:
    """Return ``state.json``.

    Raises:
        CheckpointError: it is of a newer format or not readable.
    """
    try:
        state: dict[str, Any] = json.loads((place / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{place}/state.json cannot be read: {error}") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{place} has checkpoint format {state.get('format')}, this rlvla reads {FORMAT}: update rlvla"
        )
    return state


def run_of(place: Path) -> Path:
    """Return the run's folder of a checkpoint."""
    return place.parent.parent


def write_episodes(folder: Path, states: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the arrays of live episodes, by row."""
    from safetensors.numpy import save_file

    flat = {
        f"{row}/{name}": np.array(array, order="C") for row, state in states.items() for name, array in state.items()
    }
    save_file(flat, folder / "episodes.safetensors")


def read_episodes(place: Path) -> dict[int, dict[str, Any]]:
    """Return what :func:`write_episodes` wrote."""
    from safetensors.numpy import load_file

    states: dict[int, dict[str, Any]] = {}
    for key, array in load_file(place / "episodes.safetensors").items():
        row, _, name = key.partition("/")
        states.setdefault(int(row), {})[name] = array
    return states
