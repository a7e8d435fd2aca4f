"""``rlvla eval``: the success of any training checkpoint, with its interval and protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvla import configs
from rlvla.cli import options
from rlvla.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlvla.results import EvalEpisode, EvalResults
    from rlvla.run import Run

USAGE = """usage: rlvla eval PATH [--json FILE] [--against SIM [--against.option VALUE ...]] [--eval.episodes N ...]
                [--sim.option VALUE ...]

PATH is a run's folder or one of its checkpoints. --json FILE writes the results (- for stdout).
--against SIM plays the same episodes on a second simulator too, and shows where success differs; --json then holds both.
--against.* are its options (the same simulator with others, for instance --against tabletop --against.backend cpu).
--sim.* and --run.* change the checkpoint's settings for this evaluation, for instance --run.device cpu.
"""
SECTIONS = ("eval", "sim", "run", "against")


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
    second = _second(against, overrides.pop("against", {}))
    if file not in (None, "-") and not (folder := Path(file).expanduser().parent).is_dir():
        raise ConfigError(f"--json: no folder {folder}; make it, or give another file")
    if file not in (None, "-") and Path(file).expanduser().is_dir():
        raise ConfigError(f"--json: {file} is a folder, wanted a file")

    from rlvla import run

    options.log_to_stderr()
    with run.resume(path, overrides) as one:
        if second is not None:
            _check_pair(one, second)  # before the first one is played
        found = [one.evaluate(), *([one.evaluate(sim=second)] if second is not None else [])]
    told = [results.to_dict() for results in found]
    text = json.dumps(told[0] if second is None else told, indent=1)
    if file == "-":
        print(text)
        return 0
    if file is not None:
        Path(file).expanduser().write_text(text + "\n")
    for results in found:
        show(results)
    if second is not None:
        show_differences(*found)
    return 0


def _second(name: str | None, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the second simulator as ``eval.sim`` takes it."""
    if name is None and settings:
        raise ConfigError(f"--against: missing; got --against.{next(iter(settings))}, wanted the simulator's name too")
    return None if name is None else {"use": name, **settings}


def _check_pair(one: Run, second: Mapping[str, Any]) -> None:
    """Refuse two evaluations that have nothing to compare.

    Raises:
        ConfigError: the second cannot be played, is the first, or has other tasks.
    """
    from rlvla.checks import measured_on

    here, there = (
        measured_on(replace(one.config, eval=one.check_evaluation(**options))) for options in ({}, {"sim": second})
    )
    if here.name == there.name and here.config == there.config:
        raise ConfigError(
            f"--against: got {there.name} with the settings that success is measured with already; wanted another simulator, or "
            f"other settings of it (--against.option value), or measure on another first (--eval.sim NAME)"
        )
    first, other = (
        [f"{task.name} ({task.initial_states} initial states)" for task in choice.describe().tasks]
        for choice in (here, there)
    )
    if first != other:
        raise ConfigError(
            f"--against: {there.name} has other tasks than {here.name} (got {_few(other)}, wanted {_few(first)}): set them alike "
            "(--against.option value)"
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def show(results: EvalResults) -> None:
    """Print success by task, by suite and over all, each with its 95 % Wilson interval."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    for title, parts in (("task", results.by_task()), ("suite", results.by_suite())):
        if len(parts) > 1:
            _print(console, _table(title, parts))
    for episode in results.episodes:
        if episode.video is not None:
            outcome = "solved" if episode.success else "failed"
            console.print(f"{outcome}: {episode.task_name}, {episode.video}", soft_wrap=True)
    at_end = f"at the end {results.success_at_end:.3f}"
    console.print(
        f"{results}, {at_end}; policy version {results.policy_version}, {results.seconds:.1f} s", soft_wrap=True
    )


def _print(console: Console, table: Table) -> None:
    if not console.is_terminal:  # a file has no width that would cut names
        wide = console.options.update(width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)


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
    from rich.table import Column, Table

    from rlvla.results import differences

    names = _names(first.protocol["simulator"], second.protocol["simulator"])
    table = Table(Column("task", overflow="fold"), "episodes", *names, f"only {names[0]}", f"only {names[1]}")
    for one in differences(first, second):
        counts = (one.n, one.first, one.second, one.only_first, one.only_second)
        table.add_row(one.name, *map(str, counts))
    _print(Console(file=sys.stdout, highlight=False), table)


def _names(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return what two simulators are called: their names, and where these are equal, the settings that differ."""
    if first["use"] != second["use"]:
        return [str(first["use"]), str(second["use"])]
    differing = [name for name in first if first[name] != second.get(name)]
    return [f"{one['use']}, {', '.join(f'{name} {one[name]}' for name in differing)}" for one in (first, second)]
