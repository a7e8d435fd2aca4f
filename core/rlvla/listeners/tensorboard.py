"""TensorBoard files in ``<run>/tensorboard``, where the package is installed: ``tensorboard --logdir runs``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvla.hookspecs import hookimpl

if TYPE_CHECKING:
    from rlvla.histograms import Histogram
    from rlvla.results import EvalResults, RunInfo

log = logging.getLogger(__name__)


class TensorBoardListener:
    """Scalars of every step and evaluation; does nothing where TensorBoard is not installed, and says so once."""

    def __init__(self) -> None:
        self._make: Any = None
        self._directory: Path | None = None
        self._writer: Any = None
        self._running = False

    @hookimpl
    def on_run_start(self, run: RunInfo) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            log.info("no TensorBoard files are written: pip install tensorboard")
            return
        self._make, self._directory, self._running = SummaryWriter, run.directory / "tensorboard", True

    @hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float], histograms: Mapping[str, Histogram]) -> None:
        self._write(step, metrics, histograms)

    @hookimpl
    def on_evaluation(self, step: int, results: EvalResults) -> None:
        low, high = results.interval
        self._write(step, {"eval/success": results.success, "eval/success_low": low, "eval/success_high": high})

    @hookimpl
    def on_run_end(self) -> None:
        self._running = False
        self._close()

    def _write(
        self, step: int, metrics: Mapping[str, float], histograms: Mapping[str, Histogram] | None = None
    ) -> None:
        if self._make is None:
            return
        if self._writer is None:
            # while training: what a resumed run does again is taken back from the earlier files
            self._writer = self._make(log_dir=str(self._directory), purge_step=step if self._running else None)
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        for name, one in (histograms or {}).items():
            self._writer.add_histogram_raw(
                f"{name}_histogram",
                min=one.edges[0],
                max=one.edges[-1],
                num=one.n,
                sum=one.total,
                sum_squares=one.squares,
                bucket_limits=list(one.edges[1:]),
                bucket_counts=list(one.counts),
                global_step=step,
            )
        if not self._running:  # an evaluation after training
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
