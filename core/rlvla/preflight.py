"""What a simulator misses on this machine, asked before a run loads a model: ``python -m rlvla.preflight TARGET CONFIG_TYPE CONFIG``.

It runs in the interpreter of the workers, since only there is known which packages, and so which tasks' files, are wanted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from rlvla import environments
from rlvla.configs import Choice, plain, read_one
from rlvla.errors import RlvlaError, SimulatorError
from rlvla.plugin import load_object

_TIMEOUT_S = 60.0


def check(choice: Choice, python: str | None = None) -> None:
    """Ask a simulator's ``Plugin.preflight``, where it has one, what keeps its workers from starting.

    Args:
        choice: simulator plugin and config.
        python: interpreter of the workers; None: this one, or that of the simulator's own environment.

    Raises:
        SimulatorError: all that is missing; or it could not be asked.
    """
    elsewhere = python or environments.interpreter(choice.plugin, choice.config)
    if choice.plugin.preflight is None:
        return
    kind = type(choice.config)
    config = json.dumps(plain(choice.config))
    module = ["-m", "rlvla.preflight", choice.plugin.preflight, f"{kind.__module__}:{kind.__qualname__}", config]
    command = [elsewhere or sys.executable, *module]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environments.variables() if elsewhere else None,
        )
    except subprocess.TimeoutExpired:
        raise SimulatorError(f"{choice.name}: what it misses was not known after {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SimulatorError(
            f"{choice.name}: cannot start the interpreter {command[0]!r}: {error}; see run.sim_python"
        ) from error
    if done.returncode != 0:
        words = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
        raise SimulatorError(f"{choice.name}: what it misses cannot be asked in {command[0]}: {words}")
    if said := json.loads(done.stdout.splitlines()[-1]):  # imports may print before it
        raise SimulatorError(f"{choice.name}: " + "\n".join(said))


def missing(choices: Sequence[Choice], python: str | None = None) -> str:
    """Return what :func:`check` raises, for whoever asks on another machine; nothing where nothing is missing."""
    for choice in choices:
        try:
            check(choice, python)
        except RlvlaError as error:
            return str(error)
    return ""


def main() -> None:
    """Print what is missing, as a JSON list."""
    target, config_type, config = sys.argv[1:]
    found = load_object(target)(read_one(load_object(config_type), json.loads(config)))
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
