"""``rlvla train``: one run, from a recipe and flags, or from a checkpoint on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvla import configs
from rlvla.cli import options
from rlvla.errors import ConfigError
from rlvla.plugin import GROUPS

USAGE = """usage: rlvla train [recipe.yaml|recipe.py] [--sim NAME] [--model NAME] [--algo NAME] [--scheduler NAME] [options]
       rlvla train --resume PATH [options]

A recipe is a mapping with sim, model, algo, scheduler, train, eval, run; flags go on top of it.
--resume PATH continues a run: its folder, or one of its checkpoints.
--fit changes sizes that do not go together to the nearest that do, and says which.
"""


def main(words: Sequence[str]) -> int:
    file, resume, rest = split(words)
    if "-h" in rest or "--help" in rest:
        source = configs.read_file(file) if file else {}
        print(USAGE)
        print(options.plugin_help(source, [word for word in rest if word not in ("-h", "--help")]))
        return 0
    if resume is not None:
        return train_again(resume, rest)
    fit = "--fit" in rest
    config = configs.read(configs.read_file(file) if file else {}, [word for word in rest if word != "--fit"])
    from rlvla import run

    options.log_to_stderr()
    return train(run.build_from(config, fit=fit))


def split(words: Sequence[str]) -> tuple[str | None, str | None, list[str]]:
    """Return recipe file, path to resume from, and the flags."""
    rest = list(words)
    file = rest.pop(0) if rest and not rest[0].startswith("-") else None
    resume, rest = options.take(rest, "resume", "a run's folder or one of its checkpoints")
    if file and resume:
        raise ConfigError(f"{file} and --resume {resume}: give one; a resumed run brings its own recipe")
    return file, resume, rest


def train_again(path: str, words: Sequence[str]) -> int:
    """Resume from a checkpoint with a few settings changed."""
    place = Path(path).expanduser()
    if not place.exists():
        raise ConfigError(f"--resume {path}: no such folder")
    overrides = options.read_overrides(words, (*GROUPS, *configs.SECTIONS))
    from rlvla import run

    options.log_to_stderr()
    return train(run.resume(place, overrides or None))


def train(run: Any) -> int:
    """Train to the end; Ctrl-C once ends after saving, twice at once."""

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(
            "\nrlvla: stopping; training saves a checkpoint first. Ctrl-C again ends at once, without", file=sys.stderr
        )
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with run:
            print(run.plan(), file=sys.stderr)
            run.train()
    except KeyboardInterrupt:
        print(f"rlvla: interrupted; {how_to_go_on(run.directory)}", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, before)
    return 0


def how_to_go_on(directory: Path) -> str:
    """Return what to do after an interruption: resume, where there is something to resume from."""
    from rlvla import checkpoint

    if checkpoint.steps(directory):
        return f"go on with: rlvla train --resume {os.path.relpath(directory)}"
    return "there is no checkpoint yet: start it again"
