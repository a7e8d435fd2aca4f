"""Task files (BDDL) as nested lists of words, each of which knows its line."""

from __future__ import annotations

import re
from typing import TypeAlias


class Malformed(ValueError):
    """The text cannot be read; the message follows the file's name."""


class Word(str):
    """A word of the text."""

    __slots__ = ("line",)
    line: int


Node: TypeAlias = "list[Word | Node]"


def parse(text: str) -> Node:
    """Return what stands between the outermost parentheses. ``;`` begins a comment.

    Raises:
        Malformed: parentheses do not match; says in which line.
    """
    open_lists: list[Node] = [[]]
    opened_in: list[int] = []
    for number, content in enumerate(text.splitlines(), start=1):
        for part in re.findall(r"[()]|[^\s()]+", content.partition(";")[0]):
            if part == "(":
                open_lists.append([])
                opened_in.append(number)
            elif part == ")":
                if not opened_in:
                    raise Malformed(f", line {number}: ')' without its '('; remove it or open one before")
                opened_in.pop()
                closed = open_lists.pop()
                open_lists[-1].append(closed)
            else:
                word = Word(part)
                word.line = number
                open_lists[-1].append(word)
    if opened_in:
        raise Malformed(
            f": {len(opened_in)} '(' without ')' at its end, the first one in line {opened_in[0]}, the last one in line "
            f"{opened_in[-1]}; close them"
        )
    whole = open_lists[0]
    if len(whole) != 1 or isinstance(whole[0], Word):
        raise Malformed(": wanted '(define (problem NAME) ...)' and nothing else")
    return whole[0]
