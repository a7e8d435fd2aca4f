"""Whether the names in a task file fit together: regions, objects, fixtures, initial states, goals."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from rlvla_sim_libero.task_words import Malformed, Node, Word

_ATTRIBUTES = (":target", ":ranges", ":yaw_rotation", ":rgba")
_ESTABLISHED = {"on": 2, "in": 2, "open": 1, "close": 1, "turnon": 1, "turnoff": 1}
_PREDICATES = {":init": _ESTABLISHED, ":goal": {**_ESTABLISHED, "up": 1}}
"""Predicates that LIBERO can establish, and those that it can judge, with their numbers of names."""
WORKSPACES = ("table", "floor", "coffee_table", "kitchen_table", "living_room_table", "study_table")
"""What objects stand on in each of its scenes, by what it is."""
_NUMBER = r"[-+]?(?:\d+\.?\d{0,20}|\.\d{1,20}|(?:np\.)?pi)"
_ARITHMETIC = re.compile(rf"{_NUMBER}(?:[-+*/]{_NUMBER}){{0,3}}")


def not_there(kind: str, word: Word | str, there: Collection[str]) -> str:
    """Say that a name is none, which one may be meant, or what there is."""
    line = f", line {word.line}: " if isinstance(word, Word) else ""
    by_lower = {name.lower(): name for name in there}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1)
    known = ", ".join(sorted(there)) or "none"
    hint = f"Did you mean {by_lower[close[0]]!r}?" if close else f"There is: {known}"
    return f"{line}no {kind} {str(word)!r}. {hint}"


@dataclass
class _Names:
    """What a task file defines, in lower case."""

    objects: dict[Word, str]
    fixtures: dict[Word, str]
    regions: set[str] = field(default_factory=set)
    pointless: dict[str, str] = field(default_factory=dict)
    """Regions of something that is not there, and what to say of one that is used. (Published files have unused ones.)"""

    @property
    def workspaces(self) -> set[str]:
        return {str(name) for name, category in self.fixtures.items() if category in WORKSPACES}

    @property
    def bodies(self) -> set[str]:
        """What has a state: a table has none."""
        return {*self.objects, *self.fixtures} - self.workspaces

    def taken(self, section: str, predicate: str) -> list[set[str]]:
        """Return the names that each place of a predicate takes. LIBERO puts things on objects and regions, and in regions."""
        anything = self.bodies | self.regions
        if section == ":init" and predicate in ("on", "in"):
            return [self.bodies, self.regions | (set(self.objects) if predicate == "on" else set())]
        return [anything] * _PREDICATES[section][predicate]


def name_problems(sections: dict[str, Node]) -> tuple[dict[Word, str], list[str]]:
    """Return objects and fixtures with what they are, and a sentence for each name that does not fit.

    Raises:
        Malformed: an entry has another form than LIBERO reads.
    """
    objects, fixtures = (dict(_declared(sections.get(name, []), name)) for name in (":objects", ":fixtures"))
    names, problems = _Names(objects, fixtures), []
    for region in sections.get(":regions", []):
        problems += _region_problems(region, names)
    for state in sections.get(":init", []):
        problems += _predicate_problems(state, ":init", names)
    for goal in _goals(sections[":goal"]) if ":goal" in sections else []:
        problems += _predicate_problems(goal, ":goal", names)
    problems += _unplaced(objects, sections.get(":init", []))
    return {**objects, **fixtures}, problems


def _unplaced(objects: dict[Word, str], init: Node) -> list[str]:
    """Say which objects the start puts nowhere: LIBERO would leave them below the floor in silence."""
    placed = {str(one[1]).lower() for one in init if not isinstance(one, Word) and len(one) > 2}
    return [
        f", line {name.line}: object {str(name)!r} stands nowhere at the start: add '(On {name} REGION)' to (:init ...)"
        for name in objects
        if name not in placed
    ]


def _declared(entries: Node, section: str) -> Iterator[tuple[Word, str]]:
    """Yield name and category of ``NAME ... - CATEGORY``."""
    waiting: list[Word] = []
    known: set[Word] = set()
    words = iter(entries)
    for word in words:
        if not isinstance(word, Word):
            raise Malformed(f": ({section} ...) holds parentheses, wanted 'NAME - CATEGORY' lines")
        if word != "-":
            waiting.append(_lower(word))
            continue
        category = next(words, None)
        if not isinstance(category, Word) or not waiting:
            raise Malformed(f", line {word.line}: '-' in ({section} ...) wants a name before and a category after it")
        for name in waiting:
            if name in known:
                raise Malformed(f", line {name.line}: {str(name)!r} in ({section} ...) is there twice")
            known.add(name)
            yield name, category.lower()
        waiting = []
    if waiting:
        raise Malformed(
            f", line {waiting[0].line}: {str(waiting[0])!r} in ({section} ...) has no category: wanted 'NAME - CATEGORY'"
        )


def _region_problems(region: Word | Node, names: _Names) -> list[str]:
    """Add the name by which states and goals mean a region; return what is wrong with it."""
    if isinstance(region, Word) or not region or not isinstance(region[0], Word):
        raise Malformed(": (:regions ...) wants entries '(NAME (:target T) (:ranges ((x0 y0 x1 y1))))'")
    name, problems, given = region[0], [], {}
    for attribute in region[1:]:
        if isinstance(attribute, Word) or not attribute or not isinstance(attribute[0], Word):
            raise Malformed(
                f", line {name.line}: region {str(name)!r} wants attributes in parentheses: {', '.join(_ATTRIBUTES)}"
            )
        if attribute[0].lower() not in _ATTRIBUTES:
            problems.append(not_there(f"attribute of region {str(name)!r}", attribute[0], _ATTRIBUTES))
        given[attribute[0].lower()] = attribute[1:]
    target = given.get(":target", [])
    if len(target) != 1 or not isinstance(target[0], Word):
        raise Malformed(
            f", line {name.line}: region {str(name)!r} wants '(:target NAME)' with one object, fixture or table"
        )
    full = f"{target[0]}_{name}".lower()
    if target[0].lower() in (targets := {*names.objects, *names.fixtures}):
        names.regions.add(full)
    else:
        names.pointless[full] = not_there(f"object or fixture (target of region {str(name)!r})", target[0], targets)
    if target[0].lower() in names.workspaces and ":ranges" not in given:
        problems.append(f", line {name.line}: region {str(name)!r} of {target[0]} has no '(:ranges ((x0 y0 x1 y1)))'")
    if ":ranges" in given and not _are_rectangles(given[":ranges"]):
        problems.append(
            f", line {name.line}: :ranges of region {str(name)!r}: wanted ((x0 y0 x1 y1) ...) in metres, x0 <= x1, y0 <= y1"
        )
    if ":yaw_rotation" in given:
        problems += _yaw_problems(given[":yaw_rotation"], name)
    return problems


def _are_rectangles(ranges: Node) -> bool:
    if len(ranges) != 1 or isinstance(ranges[0], Word) or not ranges[0]:
        return False
    for one in ranges[0]:
        if isinstance(one, Word) or len(one) != 4 or not all(isinstance(word, Word) for word in one):
            return False
        try:
            x0, y0, x1, y1 = (float(str(word)) for word in one)
        except ValueError:
            return False
        if not all(map(math.isfinite, (x0, y0, x1, y1))) or x0 > x1 or y0 > y1:
            return False
    return True


def _yaw_problems(angles: Node, name: Word) -> list[str]:
    """LIBERO hands these words to ``eval``: let only arithmetic through."""
    words = list(_words(angles))
    pairs = (
        len(angles) == 1
        and not isinstance(angles[0], Word)
        and all(isinstance(one, list) and len(one) == 2 for one in angles[0])
    )
    if pairs and all(_ARITHMETIC.fullmatch(word.lower()) for word in words):
        return []
    got = " ".join(word for word in words if not _ARITHMETIC.fullmatch(word.lower())) or " ".join(words)
    return [
        f", line {name.line}: :yaw_rotation of region {str(name)!r} holds {got!r}, wanted numbers and pi: ((low high))"
    ]


def _words(node: Node) -> Iterator[Word]:
    for one in node:
        if isinstance(one, Word):
            yield one
        else:
            yield from _words(one)


def _goals(goal: Node) -> Node:
    """Return the predicates that a goal joins."""
    first = goal[0] if goal else []
    if len(goal) != 1 or isinstance(first, Word) or not first or (len(first) == 1 and str(first[0]).lower() == "and"):
        raise Malformed(": (:goal ...) wants one predicate, or several joined as '(:goal (And (On A B) (Open C)))'")
    joined = isinstance(first[0], Word) and first[0].lower() == "and"
    return first[1:] if joined else [first]


def _predicate_problems(state: Word | Node, section: str, names: _Names) -> list[str]:
    if isinstance(state, Word) or not state or not all(isinstance(word, Word) for word in state):
        joined = ", joined by And alone" if section == ":goal" else ""
        raise Malformed(f": ({section} ...) wants predicates of names, such as '(On bowl_1 plate_1)'{joined}")
    predicate, *given = (word for word in state if isinstance(word, Word))
    if predicate.lower() not in _PREDICATES[section]:
        return [not_there(f"predicate (in {section})", predicate, _PREDICATES[section])]
    taken = names.taken(section, predicate.lower())
    if len(given) != len(taken):
        words = " ".join((predicate, *given))
        return [
            f", line {predicate.line}: ({words}) in {section} has {len(given)} names, {predicate} takes {len(taken)}"
        ]
    return [
        names.pointless.get(word.lower()) or not_there(f"object, fixture or region (in {section})", word, there)
        for word, there in zip(given, taken, strict=True)
        if word.lower() not in there
    ]


def _lower(word: Word) -> Word:
    lower = Word(word.lower())
    lower.line = word.line
    return lower
