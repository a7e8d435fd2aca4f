"""Robots that a checkpoint knows, in ``experiment_cfg/metadata.json``: their pictures, states and actions, and how these are scaled.

Light: no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlvla.checkpoint_header import Finite, Size, read_as
from rlvla.errors import ConfigError

if TYPE_CHECKING:
    from rlvla_model_gr00t.header import HeadShape

EMBODIMENTS: Mapping[str, Mapping[str, int]] = {
    "nvidia": {"new_embodiment": 31, "agibot_genie1": 26, "gr1": 24, "oxe_droid": 17},
    "rlinf": {"libero_franka": 31, "isaaclab_franka": 31, "maniskill_widowx": 30, "new_embodiment": 10},
}
"""Tag to the row of weights of each embodiment, in the two published tables. They disagree in ``new_embodiment``."""
Normalisation = Literal["min_max", "q99", "mean_std"]
_ENDS: Mapping[Normalisation, tuple[str, str]] = {
    "min_max": ("min", "max"),
    "q99": ("q01", "q99"),
    "mean_std": ("mean", "std"),
}
"""Statistics that each reads."""


@dataclass(frozen=True)
class _Part:
    """A part of a robot's state or action in ``metadata.json``."""

    shape: Any = 1
    """A number, or the only one in a list."""


@dataclass(frozen=True)
class _Modalities:
    """What a robot's data is made of."""

    video: dict[str, Any] = field(default_factory=dict)
    state: dict[str, _Part] = field(default_factory=dict)
    action: dict[str, _Part] = field(default_factory=dict)


@dataclass(frozen=True)
class _Statistics:
    """By part, by name."""

    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    action: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Robot:
    """What ``metadata.json`` says of one."""

    modalities: _Modalities
    statistics: _Statistics


@dataclass(frozen=True)
class Scaling:
    """A part's numbers as the network sees them: ``raw = offset + scale * normalised``; one entry a dimension."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]
    """0 where the data never changed: the network gives the offset."""
    clipped: bool = False
    """Normalised states beyond [-1, 1] are cut off."""
    constants_as_they_are: bool = False
    """The network sees a state that never changed as it is; else as 0."""


@dataclass(frozen=True)
class Embodiment:
    """A robot that the checkpoint knows."""

    tag: str
    cameras: tuple[str, ...]
    """Names of its pictures, in order."""
    state: Scaling
    action: Scaling


def cameras(data: Any, where: str) -> tuple[str, ...]:
    """Return the names of a robot's pictures, in order; of what ``metadata.json`` says of it, at ``where``."""
    return tuple(read_as(_Robot, data, where).modalities.video)


def embodiment(
    data: Any,
    file: Path,
    tag: str,
    kind: Normalisation,
    state_keys: tuple[str, ...] | None,
    action_keys: tuple[str, ...] | None,
) -> Embodiment:
    """Return what the checkpoint knows of a robot.

    Args:
        data: what ``metadata.json`` says of it.
        file: that it is from.
        tag: its name.
        kind: which statistics.
        state_keys: parts of the state, in the simulator's order; None: all, as they are listed.
        action_keys: likewise.

    Raises:
        ConfigError: parts or statistics that are not there, or that cannot be scaled with; all of them.
        CheckpointError: statistics that are no numbers.
    """
    robot, problems = read_as(_Robot, data, f"{file}: {tag}"), list[str]()
    parts: dict[str, Scaling] = {}
    for part, keys in (("state", state_keys), ("action", action_keys)):
        there: dict[str, _Part] = getattr(robot.modalities, part)
        chosen = tuple(there) if keys is None else keys
        if unknown := [key for key in chosen if key not in there]:
            problems.append(
                f"model.{part}_keys: {tag} has no {part} {', '.join(unknown)}; it has {', '.join(there) or 'none'}"
            )
            continue
        sizes = {key: one if isinstance(one := there[key].shape, list) else [one] for key in chosen}
        checked = read_as(dict[str, tuple[Size]], sizes, f"{file}: shapes in {tag}.modalities.{part}")
        lengths = {key: one for key, (one,) in checked.items()}
        parts[part] = _scaling(file, tag, part, lengths, getattr(robot.statistics, part), kind, problems)
    if problems:
        raise ConfigError(problems)
    return Embodiment(tag, tuple(robot.modalities.video), parts["state"], parts["action"])


def _scaling(
    file: Path,
    tag: str,
    part: str,
    sizes: Mapping[str, int],
    statistics: Mapping[str, Mapping[str, Any]],
    kind: Normalisation,
    problems: list[str],
) -> Scaling:
    """Return the scaling of a robot's parts, one after another; adds to ``problems`` what is wrong with statistics."""
    names = _ENDS[kind]
    wanted: dict[str, dict[str, Any]] = {}
    for key in sizes:
        there = statistics.get(key, {})
        if lost := [name for name in names if name not in there]:
            problems.append(
                f"model.normalisation: {tag} has no {' and '.join(lost)} of its {part} {key!r}; statistics there: "
                f"{', '.join(sorted(there)) or 'none'}"
            )
        else:
            wanted[key] = {name: there[name] for name in names}
    found = read_as(dict[str, dict[str, tuple[Finite, ...]]], wanted, f"{file}: {tag}.statistics.{part}")
    ends: tuple[list[float], list[float]] = ([], [])
    for key, numbers in found.items():
        first, second = (numbers[name] for name in names)
        lengths = {name: len(numbers[name]) for name in names}
        if set(lengths.values()) != {sizes[key]}:
            problems.append(
                f"{file}: {part} {key!r} of {tag} has {sizes[key]} dimensions and statistics of {lengths}; take the "
                "file that training wrote"
            )
        elif turned := _turned(first, second, kind):
            problems.append(
                f"{file}: {part} {key!r} of {tag}: got {names[0]} above {names[1]} (or a std below 0) in dimensions "
                f"{', '.join(map(str, turned))}: every number would be turned round; take the file that training wrote"
            )
        ends[0].extend(first)
        ends[1].extend(second)
    if kind == "mean_std":
        return Scaling(tuple(ends[0]), tuple(ends[1]), constants_as_they_are=True)
    pairs = list(zip(*ends, strict=False))
    offset, scale = [(low + high) / 2 for low, high in pairs], [(high - low) / 2 for low, high in pairs]
    q99 = kind == "q99"  # as Isaac-GR00T's gr00t/data/transform/state_action.py
    return Scaling(tuple(offset), tuple(scale), clipped=q99, constants_as_they_are=q99)


def _turned(first: Sequence[float], second: Sequence[float], kind: Normalisation) -> list[int]:
    """Return the dimensions whose statistics would turn numbers round."""
    lows = [0.0] * len(first) if kind == "mean_std" else first
    return [place for place, (low, high) in enumerate(zip(lows, second, strict=True)) if low > high]


def row_of(tag: str, table: str | None, number: int | None, shape: HeadShape) -> int:
    """Return the row of weights that belongs to an embodiment.

    Args:
        tag: its name.
        table: ``nvidia`` or ``rlinf``; None: either, where they do not disagree.
        number: the row itself, whatever the tables say.
        shape: of the head.

    Raises:
        ConfigError: no table knows the tag, or they disagree.
    """
    if number is None:
        tables = {name: one[tag] for name, one in EMBODIMENTS.items() if tag in one and table in (None, name)}
        if len(set(tables.values())) != 1:
            said = ", ".join(f"{name} {row}" for name, row in tables.items()) or "no row"
            raise ConfigError(
                f"model.embodiment_table: got {table!r}; published tables give {tag!r} {said}: choose the one that the "
                "checkpoint was trained with, or give the row itself as model.embodiment_id"
            )
        number = next(iter(tables.values()))
    if number >= shape.max_num_embodiments:
        raise ConfigError(f"model.embodiment_id: got {number}, wanted a row below {shape.max_num_embodiments}")
    return number
