"""``rlvla plugins``: what is installed, and whether it can work here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata

import rlvla
from rlvla import hooks
from rlvla.plugin import installed


@dataclass(frozen=True)
class Line:
    """A plugin or listener."""

    kind: str
    name: str
    distribution: str
    version: str
    state: str
    hooks: tuple[str, ...]
    summary: str


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="rlvla plugins", description="List installed plugins and listeners.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    lines = [*drivers(), *listeners()]
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
        return 0
    rows = [("kind", "name", "distribution", "version", "state", "hooks")]
    rows += [
        (one.kind, one.name, one.distribution, one.version, one.state, ", ".join(one.hooks) or "-") for one in lines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def drivers() -> Iterator[Line]:
    """Yield simulators, models, algorithms and schedulers; imports descriptors only."""
    for one in installed():
        state, heard = _heard(one.listener, one.state) if one.listener else (one.state, ())
        yield Line(one.kind, one.name, one.distribution, one.version, state, heard, one.summary)


def listeners() -> Iterator[Line]:
    """Yield built-in listeners and those of installed distributions."""
    for name, target in hooks.BUILT_IN.items():
        state, heard = _heard(target, "ok")
        yield Line("listener", name, "rlvla", rlvla.__version__, state, heard, "")
    for entry in metadata.entry_points(group=hooks.GROUP):
        state, heard = _heard(entry.value, "ok")
        distribution, version = (entry.dist.name, entry.dist.version) if entry.dist else ("?", "?")
        yield Line("listener", entry.name, distribution, version, state, heard, "")


def _heard(target: str, state: str) -> tuple[str, tuple[str, ...]]:
    try:
        return state, tuple(hooks.implemented(hooks.load(target)))
    except Exception as error:  # a broken listener is a line of this list, not the end of it
        return f"cannot be imported: {type(error).__name__}: {error}", ()
