"""The command ``rlvla``. Each subcommand is a module with ``main(words) -> exit code``, imported only when used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": "train a policy: rlvla train [recipe.yaml|recipe.py] --sim NAME --model NAME ... | --resume PATH",
    "eval": "measure the success of a checkpoint: rlvla eval PATH",
    "export": "write a run's policy as a public checkpoint: rlvla export RUN DIR",
    "record": "record demonstrations of a simulator's scripted expert: rlvla record --sim NAME --path FOLDER",
    "profile": "measure what the parts of a run take on this machine: rlvla profile recipe.py",
    "plan": "say what a run will cost and what would make it faster: rlvla plan recipe.py --profile profile.json",
    "timeline": "show who did what when in a run: rlvla timeline RUN --steps 3:6 --out gantt.png",
    "report": "write a run's report.html again: rlvla report RUN",
    "plugins": "list installed plugins and what is wrong with them",
    "simulators": "make and list the environments of simulators that run in interpreters of their own",
    "doctor": "check this machine and its simulators, with one rendered picture each",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 for a failure, 2 for wrong usage, 130 for Ctrl-C."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        from rlvla import __version__

        print(f"rlvla {__version__}")
        return 0
    if words[0] not in COMMANDS:
        import difflib

        close = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There is: {', '.join(COMMANDS)}"
        return fail(f"{words[0]!r} is not a command. {hint}", 2)
    from rlvla.errors import RlvlaError

    command = importlib.import_module(f"rlvla.cli.{words[0]}")
    try:
        return int(command.main(words[1:]))
    except RlvlaError as error:
        notes = getattr(error, "__notes__", [])  # a worker's own traceback
        return fail("\n".join([f"{type(error).__name__}: {error}", *notes]), error.exit_code)
    except BrokenPipeError:  # `rlvla plugins | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except OSError as error:  # a read-only folder, a full disk: the system's words are the user's
        if error.filename is None and error.errno is None:
            raise
        return fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)


def usage() -> str:
    """Return the help of the command itself."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rlvla COMMAND [options]",
            "",
            "Reinforcement learning for vision-language-action policies, in simulators.",
            "",
            *lines,
            "",
            "rlvla COMMAND --help says more; rlvla --version prints the version.",
        ]
    )


def fail(message: str, code: int) -> int:
    """Print an error to stderr and return its exit code."""
    print(f"rlvla: {message}", file=sys.stderr)
    return code
