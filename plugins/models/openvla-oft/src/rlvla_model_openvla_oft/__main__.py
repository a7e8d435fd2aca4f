"""A small random checkpoint in the public layout, for trials on a CPU: ``python -m rlvla_model_openvla_oft tiny out/``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlvla.errors import RlvlaError
from rlvla.folders import fresh, written
from rlvla_model_openvla_oft import tiny


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="rlvla_model_openvla_oft", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    small = commands.add_parser("tiny", help="write a small random checkpoint")
    small.add_argument("out", type=Path, help="folder that does not exist yet")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(f"{written(fresh(options.out), tiny.write)}\n")
    except RlvlaError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
