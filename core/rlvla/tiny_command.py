"""``python -m PACKAGE tiny OUT``: the command of a model plugin that writes a small random checkpoint in its public layout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rlvla.errors import RlvlaError
from rlvla.folders import fresh, written


def main(package: str, write: Callable[[Path], object], arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code.

    Args:
        package: whose command it is.
        write: writes the checkpoint into a folder that does not exist yet.
        arguments: of the command line; None: of this process.
    """
    parser = argparse.ArgumentParser(prog=package, description="Small random checkpoints, for trials on a CPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    small = commands.add_parser("tiny", help="write a small random checkpoint")
    small.add_argument("out", type=Path, help="folder that does not exist yet")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(f"{written(fresh(options.out), write)}\n")
    except RlvlaError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0
