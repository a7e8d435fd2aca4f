"""Every lifecycle hook, in one file. Implement any of them in a module of ``@rlvla.hookimpl`` functions.

All are called in the driver process, in the controller's thread, at the rate of training steps and never of simulator
ticks. An implementation may take a subset of the arguments. They return nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rlvla.histograms import Histogram
    from rlvla.results import EvalResults, Progress, RunInfo

hookspec = pluggy.HookspecMarker("rlvla")
hookimpl = pluggy.HookimplMarker("rlvla")


# ---- a run ----------------------------------------------------------------------------------------------------------


@hookspec
def on_run_start(run: RunInfo) -> None:
    """Before the first training step; ``run`` holds name, directory, resolved config and manifest."""


@hookspec
def on_run_end(run: RunInfo, error: BaseException | None) -> None:
    """After the last checkpoint is saved; ``error`` is what ended the run, if it was one."""


# ---- training -------------------------------------------------------------------------------------------------------


@hookspec
def on_progress(progress: Progress) -> None:
    """A few times a second at most, between steps too: what a live display shows."""


@hookspec
def on_step(step: int, metrics: Mapping[str, float], histograms: Mapping[str, Histogram]) -> None:
    """After each training step, with its metrics (names as in the reference: ``train/``, ``rollout/``, ``time/``), and the
    distributions behind some of them: waits, batch sizes, staleness."""


@hookspec
def on_weights_published(policy_version: int, seconds: float) -> None:
    """After the generators took over new weights."""


# ---- results --------------------------------------------------------------------------------------------------------


@hookspec
def on_evaluation(step: int, results: EvalResults) -> None:
    """After an evaluation inside training."""


@hookspec
def on_checkpoint(step: int, path: Path) -> None:
    """After a checkpoint is complete on disk."""


@hookspec
def on_video(step: int, path: Path) -> None:
    """After an episode's video is complete on disk."""
