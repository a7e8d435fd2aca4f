"""Command-line flags as settings: ``--sim.num-envs 4`` is ``{"sim": {"num_envs": "4"}}``.

Flags become plain data and are checked together with the file's, so that every problem is reported at once and in the
same words wherever a setting came from. tyro, which draws ``--help``, stops at the first bad value
(``core/docs/decisions/001-flags.md``).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import is_dataclass
from typing import Any

_PLUGINS = (["eval", "sim"],)
"""Settings that name a plugin and may hold its options, by flags in any order: ``--eval.sim libero --eval.sim.num-envs 4``."""
_SEQUENCES = (tuple, list, set, frozenset, Sequence, Collection)


def split(flags: Sequence[str], kinds: Collection[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Split off ``--sim libero``, since the options that follow depend on it.

    Returns:
        Kind to chosen name, the other words, problems.
    """
    chosen: dict[str, str] = {}
    rest: list[str] = []
    problems: list[str] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        head, equals, tail = word.removeprefix("--").partition("=")
        if not word.startswith("--") or head not in kinds:
            rest.append(word)
        elif equals:
            chosen[head] = tail
        elif words and not words[0].startswith("--"):
            chosen[head] = words.pop(0)
        else:
            problems.append(f"--{head}: missing; wanted a plugin's name")
    return chosen, rest, problems


def merge(flags: Sequence[str], fields: Mapping[str, type[Any]], data: MutableMapping[str, Any]) -> list[str]:
    """Put flags into ``data``, section by section; values stay text where their type is a number.

    Args:
        flags: ``["--sim.num-envs", "4", "--run.without", "display", "jsonl", "--eval.no-greedy"]``.
        fields: section to its config class; flags of other sections are read without knowing their type.
        data: section to its settings; changed in place. Unknown options are put in too: the check of ``data`` names them.

    Returns:
        What cannot be read at all, a line each.
    """
    problems: list[str] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        head, equals, tail = word.removeprefix("--").partition("=")
        values = [tail] if equals else []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        path = head.replace("-", "_").split(".")
        if not word.startswith("--") or not head:
            problems.append(f"{word}: not an option; a recipe file goes first: rlvla train recipe.yaml --run.steps 10")
        elif len(path) < 2:
            problems.append(f"--{head}: no such option; options are --section.name, for instance --run.steps 10")
        else:
            problems += _put(path, values, fields.get(path[0]), data)
    return problems


def _put(path: list[str], values: list[str], kind: Any, data: MutableMapping[str, Any]) -> list[str]:
    place: MutableMapping[str, Any] = data
    for at, part in enumerate(path[:-1], 1):
        if not isinstance(place.get(part), dict):
            named = path[:at] in _PLUGINS and isinstance(place.get(part), str)
            place[part] = {"use": place[part]} if named else {}
        place = place[part]
    for part in path[1:-1]:
        kind = hints(kind).get(part)
    types_, name = hints(kind), path[-1]
    if name.startswith("no_") and name not in types_ and _admits(types_.get(name[3:]), bool) and not values:
        place[name[3:]] = False
        return []
    if not values and name in types_ and not _admits(types_[name], bool, *_SEQUENCES):
        return [f"{'.'.join(path)}: no value given"]
    value = _value(values, types_.get(name))
    if path in _PLUGINS and isinstance(place.get(name), dict) and isinstance(value, str):
        place[name]["use"] = value
    else:
        place[name] = value
    return []


def _value(values: list[str], kind: Any) -> Any:
    if values in (["None"], ["none"], ["null"]) and (kind is None or _admits(kind, type(None))):
        return None
    if len(values) == 1 and values[0][:1] in ("[", "{") and not _admits(kind, str):
        import yaml

        from rlvla import strict_yaml

        try:
            return strict_yaml.load(values[0])
        except yaml.YAMLError:
            return values[0]
    if _admits(kind, *_SEQUENCES):
        return values
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def hints(kind: Any) -> dict[str, Any]:
    """Return option to type of a config class, or of the one config class in an optional."""
    for one in _alternatives(kind):
        if isinstance(one, type) and is_dataclass(one):
            types_: dict[str, Any] = typing.get_type_hints(one)
            return types_
    return {}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(one for part in typing.get_args(kind) for one in _alternatives(part))
    return (kind,)


def _admits(kind: Any, *wanted: Any) -> bool:
    return any((typing.get_origin(one) or one) in wanted for one in _alternatives(kind))
