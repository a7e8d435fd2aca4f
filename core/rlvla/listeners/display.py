"""What a person sees of a run: a live panel in a terminal, elsewhere one plain line every few seconds; then a table.

Everything goes to stderr, so that a script's own output stays clean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlvla.hookspecs import hookimpl

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from rlvla.results import EvalResults, Progress, RunInfo

RECENT = 200
"""Episodes in ``Progress.success``."""


class DisplayListener:
    """Follows one run. ``console`` and ``clock`` are arguments for tests."""

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        seconds_between_lines: float = 5.0,
    ) -> None:
        self._console = console
        self._clock = clock
        self._between = seconds_between_lines
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._first: Progress | None = None
        self._evaluation: tuple[int, EvalResults] | None = None
        self._checkpoint: Path | None = None
        self._done = 0
        """Training steps: a step that an abort cut off from its metrics may be in the last checkpoint."""
        self._video: Path | None = None
        self._started = 0.0
        self._last_line = -math.inf

    @hookimpl
    def on_run_start(self, run: RunInfo) -> None:
        from rich.console import Console

        if self._console is None:
            self._console = Console(stderr=True, highlight=False)
        self._started = self._clock()
        config = run.config
        chosen = " + ".join((config.sim.name, config.model.name, config.algo.name, config.scheduler.name))
        self._say(f"{chosen}, {config.run.steps} steps, in {run.directory}")
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()

    @hookimpl
    def on_progress(self, progress: Progress) -> None:
        if self._first is None:
            self._first = progress
        self._progress = progress
        now = self._clock()
        if self._live is None and now - self._last_line >= self._between:
            self._last_line = now
            self._say(line(progress))

    @hookimpl
    def on_evaluation(self, step: int, results: EvalResults) -> None:
        self._evaluation = step, results
        self._say(f"step {step}: evaluation: {results}")

    @hookimpl
    def on_checkpoint(self, step: int, path: Path) -> None:
        self._checkpoint, self._done = path, step

    @hookimpl
    def on_video(self, path: Path) -> None:
        self._video = path

    @hookimpl
    def on_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._console is not None:
            ended = "done" if error is None else f"stopped: {type(error).__name__}: {_first_line(error)}".rstrip(": ")
            self._say(f"{run.name}: {ended}")
            rows = self._summary(run)
            width = max(map(len, rows))
            for name, text in rows.items():
                self._say(f"  {name:{width}}  {text}")

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _panel(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = self._progress
        if now is None:
            return Text(f"starting ... {duration(self._clock() - self._started)}")
        table = Table.grid(padding=(0, 2))
        table.add_row(Text("step", style="bold"), f"{now.step} of {now.steps}", _eta(now))
        table.add_row(Text("success", style="bold"), success(now), self._last_evaluation())
        table.add_row(Text("speed", style="bold"), speed(now), f"{now.env_steps:,} env steps so far")
        table.add_row(Text("now", style="bold"), f"{now.phase} {now.fraction:.0%}", phases(now))
        done = now.step + (now.fraction if now.phase == "train" else 0.0)
        return Group(ProgressBar(total=max(now.steps, 1), completed=done, width=60), table)

    def _last_evaluation(self) -> str:
        if self._evaluation is None:
            return ""
        step, results = self._evaluation
        return f"evaluated at step {step}: {results.success:.3f}"

    def _summary(self, run: RunInfo) -> dict[str, str]:
        """Return the rows of the final table. It has no frame, so that paths are never broken and can be copied."""
        from rlvla.listeners.jsonl import FILE

        rows: dict[str, str] = {}
        elapsed = self._clock() - self._started
        now = self._progress
        if now is not None:
            rows["success in training"] = success(now)
        if self._evaluation is not None:
            rows["last evaluation"] = f"{self._evaluation[1]}, at step {self._evaluation[0]}"
        if now is not None and self._first is not None:
            rows["steps"] = f"{max(now.step, self._done)} of {now.steps}"
            made = now.env_steps - self._first.env_steps
            rows["throughput"] = f"{made / max(elapsed, 1e-9):,.0f} useful env steps/s ({made:,} in this run)"
        rows["time"] = duration(elapsed)
        files = {"checkpoint": self._checkpoint, "metrics": run.directory / FILE, "video": self._video}
        files["report"] = run.directory / "report.html"
        return rows | {name: str(path) for name, path in files.items() if path is not None and path.exists()}


def line(now: Progress) -> str:
    """Return what a log file shows of a moment."""
    parts = [f"step {now.step}/{now.steps}", f"success {success(now)}", speed(now), f"{now.phase} {now.fraction:.0%}"]
    return ", ".join(part for part in (*parts, phases(now), _eta(now)) if part)


def success(now: Progress) -> str:
    """Return the training success with the number of episodes that it is of."""
    if math.isnan(now.success):
        return "- (no episode finished yet)"
    return f"{now.success:.3f} (last {min(now.episodes, RECENT)} of {now.episodes:,} episodes)"


def speed(now: Progress) -> str:
    return f"{now.env_steps_per_second:,.0f} useful env steps/s"


def phases(now: Progress) -> str:
    """Return the seconds of each phase of the last step; those that nobody would notice are left out."""
    return " + ".join(f"{name} {seconds:.1f} s" for name, seconds in now.seconds.items() if seconds >= 0.05)


def duration(seconds: float) -> str:
    """Return ``1:02:03``, or ``2:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _eta(now: Progress) -> str:
    return f"{duration(now.eta_seconds)} to go" if math.isfinite(now.eta_seconds) else ""


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
