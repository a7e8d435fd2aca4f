"""``rlvla plan``: what a run will cost, what binds it, and what would make it faster; nothing is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlvla import configs
from rlvla.checks import check
from rlvla.cli import options, train
from rlvla.errors import ConfigError

USAGE = """usage: rlvla plan [recipe.yaml|recipe.py] [--profile FILE | --like RUN] [--machines N] [options of rlvla train]

Says how the environments are split, where everything runs, how fast it will be, what binds it, how many hours and how much
memory it takes, and which settings would make it faster. The scheduler itself is played in virtual time.

--profile FILE takes latencies that `rlvla profile` measured; --like RUN those of an earlier run's timeline. Without either
they are what the plugins' authors measured, on as many cores as there are here. --machines N divides run.devices among
N machines like the one that was measured (1); what ranks take to add gradients up, and what the network takes, is left out.
"""


def main(words: Sequence[str]) -> int:
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    path, rest = options.take(words, "profile", "a file that `rlvla profile` wrote")
    like, rest = options.take(rest, "like", "a run's folder")
    machines, rest = options.take(rest, "machines", "a number of machines")
    if path and like:
        raise ConfigError(f"--profile {path} and --like {like}: give one")
    file, _, rest = train.split(rest)
    config = configs.read(configs.read_file(file) if file else {}, rest)
    specs = check(config)
    count = _machines(machines, specs.placement.devices)

    from rlvla import plan, profile

    measured = profile.read(path) if path else profile.of_run(Path(like).expanduser()) if like else None
    if measured is None:
        measured = profile.typical(config, specs)
    elif problems := profile.mismatches(measured, config):
        raise ConfigError(problems)
    print(plan.text(config, specs, measured, count))
    return 0


def _machines(text: str | None, devices: int) -> int:
    """Return how many machines a run's devices are divided among.

    Raises:
        ConfigError: there are fewer devices, or it is no number.
    """
    if text is None:
        return 1
    if not text.isdecimal() or not 1 <= int(text) <= devices:
        raise ConfigError(f"--machines: got {text!r}, wanted a number from 1 to run.devices ({devices})")
    return int(text)
