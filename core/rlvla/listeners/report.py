"""``report.html`` in the run's folder, at its end and when it is aborted; ``rlvla report RUN`` makes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvla.hookspecs import hookimpl

if TYPE_CHECKING:
    from rlvla.results import RunInfo


class ReportListener:
    """Writes the report when training ends, however it ends."""

    @hookimpl
    def on_run_end(self, run: RunInfo) -> None:
        from rlvla import report

        report.write(run.directory)
