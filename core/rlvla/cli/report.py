"""``rlvla report``: writes a run's report again, from its folder."""

from __future__ import annotations

from collections.abc import Sequence

from rlvla.cli import options

USAGE = """usage: rlvla report RUN

RUN is a run's folder. Writes RUN/report.html, one page that needs nothing beside it, and prints its path. A run does so by
itself when it ends; this is for runs that were killed, or are still under way.
"""


def main(words: Sequence[str]) -> int:
    words = list(words)
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    directory = options.run_folder(words, "report")

    from rlvla import report

    print(report.write(directory))
    return 0
