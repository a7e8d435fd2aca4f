"""``rlvla profile``: measures what the parts of a run take on this machine."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlvla import configs
from rlvla.cli import options, train
from rlvla.errors import ConfigError

USAGE = """usage: rlvla profile [recipe.yaml|recipe.py] [--output profile.json] [--repeats 10] [options of rlvla train]

Starts the run's simulators and model, measures chunk steps, batches of several sizes, a gradient and a publication, each
while nothing else runs, and writes them to a file for `rlvla plan --profile`. Nothing is trained or kept.
"""


def main(words: Sequence[str]) -> int:
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    output, rest = options.take(words, "output", "a file to write")
    repeats, rest = options.take(rest, "repeats", "a whole number, 1 or more")
    if repeats is not None and not (repeats.isdigit() and int(repeats)):
        raise ConfigError(f"--repeats: got {repeats!r}, wanted a whole number, 1 or more")
    file, _, rest = train.split(rest)
    source = configs.read_file(file) if file else {}
    with tempfile.TemporaryDirectory(prefix="rlvla-profile-") as folder:
        config = configs.read(source, rest)
        config = configs.read(configs.overridden(config.to_dict(), {"run": {"directory": folder, "name": "profile"}}))
        if config.algo.describe().unit == "demonstration":
            raise ConfigError(f"algo: {config.algo.name} rolls nothing out; profile the run that follows it")
        from rlvla import run

        options.log_to_stderr()
        with run.build_from(config) as one:
            measured = one.profile(int(repeats or 10))
    place = Path(output or "profile.json").expanduser()
    measured.write(place)
    call, row = measured.line()
    steps = sorted(measured.simulate.items())[-1]
    print(
        f"{place}: {measured.machine}; {measured.sim}: {1e3 * sorted(steps[1])[len(steps[1]) // 2]:.3g} ms a chunk step of "
        f"{steps[0]} environments; {measured.model} on {measured.device}: {1e3 * call:.3g} + {1e3 * row:.3g} n ms a batch of "
        f"n, {1e3 * measured.train_sample:.3g} ms a training sample"
    )
    print("next: rlvla plan ... --profile " + str(place), file=sys.stderr)
    return 0
