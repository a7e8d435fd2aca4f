"""``metrics.jsonl``: one JSON object a line, flat but for its histograms, for every training step and every evaluation.

Read it with ``pandas.read_json(path, lines=True)``. A resumed run drops what was written after the checkpoint that it
continues from, so no step is there twice.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvla.hookspecs import hookimpl

if TYPE_CHECKING:
    from rlvla.histograms import Histogram
    from rlvla.results import EvalResults, RunInfo

FILE = "metrics.jsonl"
EVALUATION = "eval/success"
HISTOGRAMS = "histograms"
"""The one field that is not a number: name to ``edges`` and ``counts`` (:class:`rlvla.histograms.Histogram`)."""


class JsonlListener:
    """Appends to ``metrics.jsonl`` in the run's folder; every line is on disk before training goes on."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._begun = False

    @hookimpl
    def on_run_start(self, run: RunInfo) -> None:
        self._path = run.directory / FILE

    @hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float], histograms: Mapping[str, Histogram]) -> None:
        self._write(step, metrics, {name: one.to_dict() for name, one in histograms.items()})

    @hookimpl
    def on_evaluation(self, step: int, results: EvalResults) -> None:
        low, high = results.interval
        self._write(
            step,
            {
                EVALUATION: results.success,
                "eval/success_low": low,
                "eval/success_high": high,
                "eval/success_at_end": results.success_at_end,
                "eval/episodes": len(results.episodes),
                "eval/policy_version": results.policy_version,
                "eval/seconds": results.seconds,
            },
        )

    def _write(self, step: int, metrics: Mapping[str, float], histograms: Mapping[str, Any] | None = None) -> None:
        if self._path is None:
            return
        if not self._begun:
            drop_from(self._path, step, EVALUATION in metrics)
            self._begun = True
        line = {
            "step": step,
            "time": round(time.time(), 3),
            **{name: _number(value) for name, value in metrics.items()},
            **({HISTOGRAMS: histograms} if histograms else {}),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def drop_from(path: Path, step: int, evaluation: bool = False) -> None:
    """Remove what was written from ``step`` on, and a last line that a kill cut short; atomic.

    Args:
        path: a file of this listener, or none yet.
        step: the next line's.
        evaluation: the next line is the evaluation after ``step``: the line of the step itself stays.
    """
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    kept = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            data = json.loads(line)
            if data["step"] < step or (evaluation and data["step"] == step and EVALUATION not in data):
                kept.append(line)
    if "".join(kept) != text:
        part = path.with_suffix(".jsonl.tmp")
        part.write_text("".join(kept), encoding="utf-8")
        os.replace(part, path)


def _number(value: float) -> float | None:
    """JSON has no nan: an empty field."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 and isinstance(value, int) else number
