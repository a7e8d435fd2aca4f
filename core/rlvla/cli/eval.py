"""``rlvla eval``: the success of any training checkpoint, with its interval and protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvla import configs
from rlvla.cli import options
from rlvla.errors import ConfigError

if TYPE_CHECKING:
    from rlvla.results import EvalResults

USAGE = """usage: rlvla eval PATH [--json FILE] [--eval.episodes N ...] [--sim.option VALUE ...]

PATH is a run's folder or one of its checkpoints. --json FILE writes the results (- for stdout).
--sim.* and --run.* change the checkpoint's settings for this evaluation, for instance --run.device cpu.
"""
SECTIONS = ("eval", "sim", "run")


def main(words: Sequence[str]) -> int:
    words = list(words)
    if "-h" in words or "--help" in words:
        print(USAGE)
        print(options.section_help({"eval": configs.EvalConfig}))
        return 0
    if not words or words[0].startswith("-"):
        raise ConfigError(
            "PATH: missing; wanted a run's folder or one of its checkpoints first: rlvla eval runs/my-run"
        )
    path = Path(words.pop(0)).expanduser()
    if not path.exists():
        raise ConfigError(f"{path}: no such folder")
    file, words = options.take(words, "json", "a file name, or - for stdout")
    overrides = options.read_overrides(words, SECTIONS)

    from rlvla import run

    options.log_to_stderr()
    results = run.evaluate(path, **overrides)
    text = json.dumps(results.to_dict(), indent=1)
    if file == "-":
        print(text)
        return 0
    if file is not None:
        Path(file).write_text(text + "\n")
    show(results)
    return 0


def show(results: EvalResults) -> None:
    """Print success by task and over all."""
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "success", "episodes")
    for name, episodes in results.by_task().items():
        solved = sum(one.success for one in episodes)
        table.add_row(name, f"{solved / len(episodes):.3f}", str(len(episodes)))
    console = Console(file=sys.stdout, highlight=False)
    if table.row_count > 1:
        console.print(table)
    at_end = f"at the end {results.success_at_end:.3f}"
    console.print(
        f"{results}, {at_end}; policy version {results.policy_version}, {results.seconds:.1f} s", soft_wrap=True
    )
