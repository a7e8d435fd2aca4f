"""Checkpoints from the command line::

python -m rlvla_model_gr00t export runs/my-run out/       # a whole public checkpoint in bf16, adapters merged
python -m rlvla_model_gr00t tiny out/                     # a small random one, for trials on a CPU
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import rlvla
from rlvla.errors import ConfigError, RlvlaError
from rlvla_model_gr00t import tiny


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="rlvla_model_gr00t", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write the policy of a run as a public checkpoint")
    export.add_argument("run", help="a run's folder, or one of its checkpoints")
    export.add_argument("out", type=Path, help="folder that does not exist yet")
    small = commands.add_parser("tiny", help="write a small random checkpoint")
    small.add_argument("out", type=Path, help="folder that does not exist yet")
    options = parser.parse_args(arguments)
    try:
        if options.out.exists():
            raise ConfigError(f"{options.out}: already there; give a folder that does not exist yet")
        if options.command == "export":
            _export(options.run, options.out)
        else:
            tiny.write(options.out)
    except RlvlaError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(
            f"{options.out} cannot be written: {error}; give a folder on a disk with space, that you may write\n"
        )
        return 2
    sys.stdout.write(f"{options.out}\n")
    return 0


def _export(run: str, out: Path) -> None:
    from rlvla_model_gr00t.model import Gr00tModel

    model = rlvla.load(run).model
    if not isinstance(model, Gr00tModel):
        raise ConfigError(f"{run}: its model is a {type(model).__name__}, wanted gr00t")
    model.export(out)


if __name__ == "__main__":
    sys.exit(main())
