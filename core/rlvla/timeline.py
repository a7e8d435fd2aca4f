"""What a run's spans look like: a Gantt picture, a file for Perfetto, a table of who worked how much.

Spans come from :func:`rlvla.tracing.read`. matplotlib is imported only to draw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvla.errors import ConfigError
from rlvla.tracing import FILE, Span, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "simulate": "#0072b2",
    "reset": "#56b4e9",
    "generate": "#e69f00",
    "train": "#009e73",
    "publish": "#cc79a7",
    "offer": "#8b3a62",
    "evaluate": "#999999",
    "start": "#d9d9d9",
    "save": "#444444",
    "restart": "#d40000",
}
"""By phase; told apart by colour-blind readers (Okabe and Ito 2008, extended)."""
_MOST_NAMES = 48
"""Actors beyond which only every second, third, ... is named on the axis."""


def load(directory: Path) -> list[Span]:
    """Return the spans of a run's folder.

    Raises:
        ConfigError: there are none.
    """
    spans = read(directory)
    if not spans:
        raise ConfigError(
            f"{directory / FILE}: no spans; was the run made with run.timeline_mb 0, or did it not train?"
        )
    return spans


def select(spans: Sequence[Span], first: int | None, last: int | None) -> list[Span]:
    """Return the spans of training steps ``first`` to ``last``, both included.

    Raises:
        ConfigError: there are none.
    """
    low, high = first if first is not None else 0, last if last is not None else max(span.step for span in spans)
    chosen = [span for span in spans if low <= span.step <= high]
    if not chosen:
        there = [span.step for span in spans]
        raise ConfigError(f"--steps: no spans of steps {low} to {high}; there are steps {min(there)} to {max(there)}")
    return chosen


def kind_of(phase: str) -> str:
    """Return the phase whose colour a span has: ``evaluate: reset`` is ``evaluate``."""
    return phase.partition(":")[0]


def order(spans: Sequence[Span]) -> list[str]:
    """Return the actors as they are shown: controller, trainer, generators, simulators by number."""

    def key(actor: str) -> tuple[int, str, int]:
        head, number = re.fullmatch(r"(.*?)-?(\d*)", actor).groups()  # type: ignore[union-attr]
        ranks = {"controller": 0, "trainer": 1, "generator": 2, "sim": 3}
        return ranks.get(head, 4), head, int(number or 0)

    return sorted({span.actor for span in spans}, key=key)


def perfetto(spans: Sequence[Span]) -> dict[str, Any]:
    """Return Chrome trace events, which https://ui.perfetto.dev opens: microseconds, a thread for each actor."""
    actors = {actor: number + 1 for number, actor in enumerate(order(spans))}
    zero = min(span.began_ns for span in spans)
    events: list[dict[str, Any]] = []
    for actor, number in actors.items():
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": actor}})
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    for span in spans:
        place = {"name": span.phase, "pid": 1, "tid": actors[span.actor], "ts": (span.began_ns - zero) / 1000}
        facts = {"step": span.step, "slot": span.slot, "version": span.version, "rows": span.rows}
        seen = {name: value for name, value in facts.items() if value != -1}
        if span.ended_ns > span.began_ns:
            events.append({"ph": "X", "dur": (span.ended_ns - span.began_ns) / 1000, "args": seen, **place})
        else:
            events.append({"ph": "i", "s": "t", "args": seen, **place})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def shares(spans: Sequence[Span]) -> list[tuple[str, float, dict[str, float]]]:
    """Return actor, the share of the time in which it works, and that by phase."""
    whole = max(1, max(span.ended_ns for span in spans) - min(span.began_ns for span in spans))
    found: dict[str, dict[str, float]] = {actor: {} for actor in order(spans)}
    for span in spans:
        phases = found[span.actor]
        phases[span.phase] = phases.get(span.phase, 0.0) + (span.ended_ns - span.began_ns) / whole
    return [(actor, sum(phases.values()), phases) for actor, phases in found.items()]


def gantt(spans: Sequence[Span], title: str = "") -> Figure:
    """Draw who did what when: a row for each actor, a colour for each phase, a line where each training step ends."""
    actors = order(spans)
    zero = min(span.began_ns for span in spans)
    drawn = figure(12, min(14.0, 1.8 + 0.28 * len(actors)))
    axes = drawn.add_subplot()
    bars: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for span in spans:
        bar = ((span.began_ns - zero) / 1e9, span.seconds)
        bars.setdefault(kind_of(span.phase), {}).setdefault(span.actor, []).append(bar)
    for phase in sorted(bars, key=lambda phase: list(COLOURS).index(phase) if phase in COLOURS else len(COLOURS)):
        label: str | None = phase
        for actor, some in bars[phase].items():
            row = (actors.index(actor) - 0.4, 0.8)
            colour = COLOURS.get(phase, "#000000")
            width = 1.5 if phase == "restart" else 0.0  # it takes no time: its edge alone is seen
            axes.broken_barh(some, row, facecolors=colour, edgecolor=colour, linewidth=width, label=label)
            label = None
    _mark_steps(axes, spans, zero)
    every = -(-len(actors) // _MOST_NAMES)
    axes.set_yticks(range(0, len(actors), every), actors[::every])
    axes.set_ylim(len(actors) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("time (s)")
    axes.set_title(title, fontsize=10, loc="left", pad=20)
    axes.legend(ncols=1, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return drawn


def _mark_steps(axes: Any, spans: Sequence[Span], zero: int) -> None:
    """Draw a line where each training step ends, with its number as far as numbers fit."""
    ends = [((span.ended_ns - zero) / 1e9, span.step) for span in spans if span.phase == "train"]
    every = -(-len(ends) // 20) or 1
    for place, (end, step) in enumerate(ends):
        axes.axvline(end, color="black", linewidth=0.6, linestyle=":")
        if place % every == 0:
            axes.annotate(
                f"step {step}",
                (end, 1),
                xycoords=("data", "axes fraction"),
                ha="right",
                va="bottom",
                fontsize=7,
            )


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'rlvla[report]'") from error
    return Figure(figsize=(width, height), layout="constrained")
