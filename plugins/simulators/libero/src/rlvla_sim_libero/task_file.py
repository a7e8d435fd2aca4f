"""What can be known of a task file (BDDL) without importing LIBERO: its instruction, and whether it can work."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from rlvla.errors import ConfigError

PROBLEMS = (
    "LIBERO_Coffee_Table_Manipulation",
    "LIBERO_Floor_Manipulation",
    "LIBERO_Kitchen_Tabletop_Manipulation",
    "LIBERO_Living_Room_Tabletop_Manipulation",
    "LIBERO_Study_Tabletop_Manipulation",
    "LIBERO_Tabletop_Manipulation",
)
"""Scenes that a task file can be set in; upper and lower case are the same to LIBERO."""

_NUMBER = re.compile(r"[-+*/.()\s0-9eE]|pi|np\.pi")


def instruction_of(path: str | Path) -> str:
    """Return the words of a task file's ``:language`` entry, after checking what can be checked.

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
    text = re.sub(r";.*$", "", text, flags=re.MULTILINE)
    problems = []
    depth = 0
    for line, content in enumerate(text.splitlines(), start=1):
        for character in content:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth < 0:
                raise ConfigError(f"bddl_file: {path}, line {line}: ')' without its '('; remove it or open one before")
    if depth:
        problems.append(f"bddl_file: {path}: {depth} '(' without ')' at its end; close them")
    scene = re.search(r"\(\s*problem\s+([^\s()]+)\s*\)", text, flags=re.IGNORECASE)
    if scene is None:
        problems.append(f"bddl_file: {path}: no '(problem NAME)'; wanted one of {', '.join(PROBLEMS)}")
    elif scene.group(1).lower() not in {name.lower() for name in PROBLEMS}:
        known = {name.lower(): name for name in PROBLEMS}
        close = difflib.get_close_matches(scene.group(1).lower(), list(known), n=1)
        hint = f"Did you mean {known[close[0]]!r}?" if close else f"There is: {', '.join(PROBLEMS)}"
        problems.append(f"bddl_file: {path}: no scene {scene.group(1)!r}. {hint}")
    language = re.search(r"\(\s*:language\s*([^()]*)\)", text, flags=re.IGNORECASE)
    words = " ".join(language.group(1).split()) if language else ""
    if not words:
        problems.append(f"bddl_file: {path}: no words in '(:language ...)'; say there what the robot is asked to do")
    if not re.search(r"\(\s*:goal\b", text, flags=re.IGNORECASE):
        problems.append(f"bddl_file: {path}: no '(:goal ...)', so success could not be measured")
    # LIBERO hands these entries to eval(): let only arithmetic through.
    for entry in re.findall(r":yaw_rotation\s*\(([^:]*?)\)\s*\)", text, flags=re.IGNORECASE):
        if rest := _NUMBER.sub("", entry):
            problems.append(f"bddl_file: {path}: :yaw_rotation holds {rest!r}, wanted numbers and pi")
    if problems:
        raise ConfigError(problems)
    return words
