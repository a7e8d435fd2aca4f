"""``rlvla eval``: the success of any training checkpoint, with its interval and protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvla import configs
from rlvla.cli import options
from rlvla.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from rlvla.results import EvalEpisode, EvalResults

USAGE = """usage: rlvla eval PATH [--json FILE] [--against SIM] [--eval.episodes N ...] [--sim.option VALUE ...]

PATH is a run's folder or one of its checkpoints. --json FILE writes the results (- for stdout).
--against SIM plays the same episodes on a second simulator too, and shows where success differs; --json then holds both.
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
    against, words = options.take(words, "against", "a simulator's name")
    overrides = options.read_overrides(words, SECTIONS)
    if file not in (None, "-") and not (folder := Path(file).expanduser().parent).is_dir():
        raise ConfigError(f"--json: no folder {folder}; make it, or give another file")
    if file not in (None, "-") and Path(file).expanduser().is_dir():
        raise ConfigError(f"--json: {file} is a folder, wanted a file")

    from rlvla import run

    options.log_to_stderr()
    with run.resume(path, overrides) as one:
        if against is not None:
            one.check_evaluation(sim=against)  # before the first one is played
        found = [one.evaluate(), *([one.evaluate(sim=against)] if against is not None else [])]
    told = [results.to_dict() for results in found]
    text = json.dumps(told[0] if against is None else told, indent=1)
    if file == "-":
        print(text)
        return 0
    if file is not None:
        Path(file).expanduser().write_text(text + "\n")
    for results in found:
        show(results)
    if against is not None:
        show_differences(*found)
    return 0


def show(results: EvalResults) -> None:
    """Print success by task, by suite and over all, each with its 95 % Wilson interval."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    for title, parts in (("task", results.by_task()), ("suite", results.by_suite())):
        if len(parts) > 1:
            table = _table(title, parts)
            if not console.is_terminal:  # a file has no width that would cut names
                wide = console.options.update(width=10_000)
                console.width = max(console.width, console.measure(table, options=wide).maximum)
            console.print(table)
    for episode in results.episodes:
        if episode.video is not None:
            outcome = "solved" if episode.success else "failed"
            console.print(f"{outcome}: {episode.task_name}, {episode.video}", soft_wrap=True)
    at_end = f"at the end {results.success_at_end:.3f}"
    console.print(
        f"{results}, {at_end}; policy version {results.policy_version}, {results.seconds:.1f} s", soft_wrap=True
    )


def _table(title: str, parts: Mapping[str, Sequence[EvalEpisode]]) -> Table:
    from rich.table import Column, Table

    from rlvla.results import wilson

    table = Table(Column(title, overflow="fold"), "success", "95 % interval", "episodes")
    for name, episodes in parts.items():
        solved = sum(one.success for one in episodes)
        low, high = wilson(solved, len(episodes))
        table.add_row(name, f"{solved / len(episodes):.3f}", f"{low:.3f} to {high:.3f}", str(len(episodes)))
    return table


def show_differences(first: EvalResults, second: EvalResults) -> None:
    """Print, by task, how often each of two simulators saw the same episodes solved."""
    from rich.console import Console
    from rich.table import Table

    from rlvla.results import differences

    names = [one.protocol["simulator"]["use"] for one in (first, second)]
    table = Table("task", "episodes", *names, f"only {names[0]}", f"only {names[1]}")
    for one in differences(first, second):
        counts = (one.n, one.first, one.second, one.only_first, one.only_second)
        table.add_row(one.name, *map(str, counts))
    Console(file=sys.stdout, highlight=False).print(table)
