"""What can be known of a task file (BDDL) without importing LIBERO: its instruction, and whether it can work.

LIBERO reads such files with few checks: a region that ``:init`` names and nobody defines leaves an object where it happens to
be, and a name in the goal that is missing ends the first step. So names are compared here, before anything is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rlvla.errors import ConfigError
from rlvla_sim_libero.task_names import name_problems, not_there
from rlvla_sim_libero.task_words import Malformed, Node, Word, parse

PROBLEMS = {
    "LIBERO_Coffee_Table_Manipulation": "coffee_table",
    "LIBERO_Floor_Manipulation": "floor",
    "LIBERO_Kitchen_Tabletop_Manipulation": "kitchen_table",
    "LIBERO_Living_Room_Tabletop_Manipulation": "living_room_table",
    "LIBERO_Study_Tabletop_Manipulation": "study_table",
    "LIBERO_Tabletop_Manipulation": "table",
}
"""Scenes that a task file can be set in, with what objects stand on there; upper and lower case are the same to LIBERO."""
_SECTIONS = (
    "problem",
    ":domain",
    ":requirements",
    ":language",
    ":regions",
    ":fixtures",
    ":objects",
    ":obj_of_interest",
    ":init",
    ":goal",
)


@dataclass
class TaskFile:
    """What a task file says."""

    instruction: str
    categories: dict[Word, str] = field(default_factory=dict)
    """Each object and fixture, in lower case, with what it is."""


def read_task_file(path: str | Path) -> TaskFile:
    """Read a task file, after checking what can be checked.

    Raises:
        ConfigError: no such file, or one that LIBERO could not read; every problem found is named.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"bddl_file: got {str(path)!r}, wanted an existing task file (.bddl)")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"bddl_file: {path} is not UTF-8 text ({error}); save it as UTF-8") from error
    if text.startswith("\ufeff"):
        raise ConfigError(
            f"bddl_file: {path} begins with a byte order mark, which LIBERO does not read; save it as UTF-8 without one"
        )
    try:
        sections, problems = _sections(parse(text))
        words = sections.get(":language", [])
        instruction = " ".join(str(word) for word in words)
        if not all(isinstance(word, Word) for word in words):
            problems.append("parentheses in '(:language ...)'; wanted words alone")
        problems += _scene_problems(sections)
        if not instruction:
            problems.append("no words in '(:language ...)'; say there what the robot is asked to do")
        if ":goal" not in sections:
            problems.append("no '(:goal ...)', so success could not be measured")
        found, wrong = name_problems(sections)
        problems += _table_problems(sections, found)
    except Malformed as error:
        raise ConfigError(f"bddl_file: {path}{error}") from error
    if problems := [*problems, *wrong]:
        raise ConfigError([f"bddl_file: {path}{'' if one.startswith(', line') else ': '}{one}" for one in problems])
    return TaskFile(instruction, found)


def instruction_of(path: str | Path) -> str:
    """Return the words of a task file's ``:language`` entry, after checking the file as :func:`read_task_file` does."""
    return read_task_file(path).instruction


def _sections(tree: Node) -> tuple[dict[str, Node], list[str]]:
    """Return the entries of ``(define ...)`` by their first word, and what is wrong with them."""
    if not tree or str(tree[0]).lower() != "define":
        raise Malformed(": wanted '(define (problem NAME) ...)' and nothing else")
    sections: dict[str, Node] = {}
    problems = []
    for entry in tree[1:]:
        if isinstance(entry, Word) or not entry or not isinstance(entry[0], Word):
            raise Malformed(": wanted entries such as '(:goal ...)' inside '(define ...)'")
        if (name := entry[0].lower()) in _SECTIONS:
            sections[name] = entry[1:]
        else:
            problems.append(not_there("entry", entry[0], _SECTIONS))
    return sections, problems


def _scene_problems(sections: dict[str, Node]) -> list[str]:
    problem = sections.get("problem", [])
    if len(problem) != 1 or not isinstance(problem[0], Word):
        return [f"no '(problem NAME)'; wanted one of {', '.join(PROBLEMS)}"]
    if problem[0].lower() in {name.lower() for name in PROBLEMS}:
        return []
    return [not_there("scene", problem[0], PROBLEMS)]


def _table_problems(sections: dict[str, Node], found: dict[Word, str]) -> list[str]:
    """Say that the scene's own table or floor is not among the fixtures: LIBERO looks for it."""
    scene = str(sections["problem"][0]).lower() if sections.get("problem") else ""
    wanted = next((table for name, table in PROBLEMS.items() if name.lower() == scene), None)
    if wanted is None or wanted in found.values():
        return []
    got = ", ".join(one for one in found.values() if one in PROBLEMS.values()) or "none"
    return [f"{sections['problem'][0]} wants a fixture that is a {wanted} ('NAME - {wanted}'), got {got}"]
