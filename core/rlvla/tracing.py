"""Spans: which actor did what, from when to when. ``timeline.jsonl`` in a run's folder.

A span is what an actor measured of a call itself (its receipt), not how long somebody waited for it. Times are nanoseconds
of the monotonic clock of the actor's machine. All processes of one machine share that clock. Each part of the file opens
with a line that says what the wall clock showed when it stood at zero, so parts written before and after a reboot, and by
other machines as far as their wall clocks agree (NTP: milliseconds), lie on one axis.

Writing is buffered: a span costs microseconds, and the file is touched once a training step.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

FILE = "timeline.jsonl"
OLDER = "timeline.older.jsonl"
"""What a full file becomes."""
_BUFFER = 4096
"""Spans in memory at most."""


class Span(NamedTuple):
    """One call of an actor.

    Example:
        >>> Span("sim-3", "simulate", 1_000_000_000, 1_250_000_000, step=7, slot=3, version=6, rows=4).seconds
        0.25
    """

    actor: str
    phase: str
    began_ns: int
    ended_ns: int
    step: int = 0
    """Training step under way, from 1; 0: outside training."""
    slot: int = -1
    """Of a simulator; -1: of none."""
    version: int = -1
    """Weights that acted, or were made; -1: none."""
    rows: int = 0
    """Environments that it was for; units, for the trainer."""
    cpu_seconds: float = 0.0
    """Of processor time, in a worker's own process."""

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9


class SpanFile:
    """Appends spans to a run's timeline. When it is full, the older half goes: what happened last is there in any case.

    Args:
        directory: the run's folder.
        limit_bytes: of both files together; 0: nothing is written.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._path = directory / FILE
        self._older = directory / OLDER
        self._limit = limit_bytes
        self._buffer: list[Span] = []
        self._opened = False
        self._part = time.time_ns()
        """Names this process's lines, whichever file they are in."""

    def add(self, span: Span) -> None:
        """Keep a span for the next :meth:`flush`."""
        if self._limit:
            self._buffer.append(span)
            if len(self._buffer) >= _BUFFER:
                self.flush()

    def flush(self) -> None:
        """Write what is kept. Where that fails (a full disk), a warning says so once, and no more is written."""
        spans, self._buffer = self._buffer, []
        if not spans:
            return
        try:
            self._write(spans)
        except OSError as error:
            log.warning("%s: the timeline ends here: %s", self._path, error)
            self._limit = 0

    def _write(self, spans: list[Span]) -> None:
        text = "".join(map(_line, spans))
        size = self._path.stat().st_size if self._path.exists() else 0
        if size and size + len(text) > self._limit / 2:
            os.replace(self._path, self._older)
            self._opened = False
        with self._path.open("a", encoding="utf-8") as file:
            if not self._opened:
                file.write(self._header())
                self._opened = True
            file.write(text)

    def _header(self) -> str:
        zero = time.time_ns() - time.monotonic_ns()
        line = {"clock": "monotonic", "host": socket.gethostname(), "part": self._part, "wall_ns_at_zero": zero}
        return json.dumps(line) + "\n"


def _line(span: Span) -> str:
    return (
        f'{{"actor":"{span.actor}","phase":"{span.phase}","begin_ns":{span.began_ns},"end_ns":{span.ended_ns},'
        f'"step":{span.step},"slot":{span.slot},"version":{span.version},"rows":{span.rows},'
        f'"cpu_seconds":{span.cpu_seconds:.6g}}}\n'
    )


def read(directory: Path) -> list[Span]:
    """Return a run's spans in the order of writing, in wall-clock nanoseconds.

    A last line that a kill cut short is left out. A resumed run does some steps again: the later ones count.
    """
    kept: list[Span] = []
    for part in _parts(directory).values():
        first = min((span.step for span in part if span.step), default=None)
        if first is not None:
            kept = [span for span in kept if span.step < first]
        kept += part
    return kept


def _parts(directory: Path) -> dict[int, list[Span]]:
    """Return the spans of each process that trained in the folder, oldest first."""
    parts: dict[int, list[Span]] = {}
    part: list[Span] = []
    zero = 0
    for path in (directory / OLDER, directory / FILE):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else ():
            if not line.endswith("\n"):
                continue
            data = json.loads(line)
            if "part" in data:
                part, zero = parts.setdefault(data["part"], []), data["wall_ns_at_zero"]
                continue
            began, ended = data.pop("begin_ns"), data.pop("end_ns")
            part.append(Span(began_ns=began + zero, ended_ns=ended + zero, **data))
    return parts
