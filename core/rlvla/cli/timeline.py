"""``rlvla timeline``: who did what when in a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlvla.cli import options
from rlvla.errors import ConfigError

USAGE = """usage: rlvla timeline RUN [--steps FIRST:LAST] [--out FILE.png] [--perfetto FILE.json]

RUN is a run's folder. Prints how much of the time each actor worked, and at what.
--steps 3:6 looks at training steps 3 to 6 alone (3: and :6 are open; 3 is one step).
--out draws a Gantt picture (.png, .svg, .pdf); --perfetto writes Chrome trace events for https://ui.perfetto.dev.
"""


def main(words: Sequence[str]) -> int:
    words = list(words)
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    steps, words = options.take(words, "steps", "training steps, as in 3:6")
    out, words = options.take(words, "out", "a picture's file name")
    trace, words = options.take(words, "perfetto", "a file name ending in .json")
    directory = options.run_folder(words, "timeline")

    from rlvla import timeline

    spans = timeline.select(timeline.load(directory), *_steps(steps))
    if trace is not None:
        Path(trace).write_text(json.dumps(timeline.perfetto(spans)))
    if out is not None:
        timeline.gantt(spans, _title(directory, [span.step for span in spans])).savefig(out, dpi=150)
    if trace is None and out is None:
        for actor, share, phases in timeline.shares(spans):
            parts = ", ".join(f"{phase} {part:.1%}" for phase, part in phases.items())
            print(f"{actor:<14} {share:6.1%}  {parts}")
    return 0


def _title(directory: Path, steps: Sequence[int]) -> str:
    return f"{directory.resolve().name}, training steps {min(steps)} to {max(steps)}"


def _steps(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    try:
        low, high = (int(one) if one else None for one in (first, last))
    except ValueError:
        raise ConfigError(f"--steps: got {text!r}, wanted training steps, as in 3:6, 3: or 3") from None
    return low, high if colon else low
