"""Errors that a user can meet. Each message says what was got, what was wanted, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


class RlvlaError(Exception):
    """Base of every error that rlvla raises on purpose; the command line shows it without a traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Fit:
    """A change of settings after which a problem is none; ``--fit`` makes it."""

    problem: str
    option: str
    """Path, as in a recipe: ``run.slots``."""
    value: Any
    changes: Literal["speed", "optimisation"]
    """What becomes of the run: the same numbers at another speed, or other numbers."""

    def __str__(self) -> str:
        return f"{self.option}: {self.value} (changes {self.changes})"


class ConfigError(RlvlaError):
    """Settings that cannot work: one line for each problem, all of them at once, and what ``--fit`` would change."""

    exit_code = 2

    def __init__(self, problems: str | Sequence[str], fits: Sequence[Fit] = ()) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.fits = list(fits)
        lines = [*self.problems]
        if fits:
            lines.append("--fit would set")
            lines += [f"  {fit}" for fit in fits]
        super().__init__("\n".join(lines))


class UnknownPlugin(ConfigError):
    """A name that no installed distribution registers."""


class IncompatiblePlugin(ConfigError):
    """A plugin whose requirements the installed versions do not meet."""


class CheckpointError(RlvlaError):
    """A checkpoint that is missing, incomplete, or of another model or simulator."""

    exit_code = 2


class SimulatorError(RlvlaError):
    """A simulator that could not start, or failed in a call; carries the worker's own words."""

    def __init__(self, message: str, *, worker: str = "", output: str = "") -> None:
        self.worker = worker
        self.output = output
        super().__init__(message)


class WorkerDied(SimulatorError):
    """A simulator worker process that ended without an answer (killed, segmentation fault, out of memory)."""

    heard = False
    """An earlier error told of the same death."""


class PayloadLost(SimulatorError):
    """What a call was given is gone, with the machine or the process that held it; the call was not made."""


class TransportError(RlvlaError):
    """Weights that did not come by the way that was chosen for them."""


class StallError(RlvlaError):
    """No progress for too long; the message names who waits for whom."""

    def __init__(self, message: str, *, worker: str = "") -> None:
        self.worker = worker
        super().__init__(message)


class NothingToLearnError(RlvlaError):
    """Too many optimizer steps in a row had no gradient at all, and ``train.max_empty_steps`` bounds them."""


class NonFiniteError(RlvlaError):
    """Too many training steps in a row had a loss or gradient that is not a number."""
