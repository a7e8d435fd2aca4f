"""``rlvla export``: the policy of a run as a whole checkpoint in its model's public format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlvla.cli import options
from rlvla.errors import ConfigError
from rlvla.folders import fresh, written

USAGE = """usage: rlvla export PATH DIR [--dtype bf16|fp32]

PATH is a run's folder (its last checkpoint) or one of its checkpoints. Writes DIR, a folder that does not exist yet: the
model's whole public checkpoint, adapters merged, for whoever knows nothing of rlvla.

--dtype   of all weights. Without it each has that of the public file which training started from: bf16 in most, to which
          what was trained in fp32 is rounded. fp32 rounds nothing, in files of twice the size.
"""
_DTYPES = ("bf16", "fp32")


def main(words: Sequence[str]) -> int:
    dtype, words = options.take(list(words), "dtype", " or ".join(_DTYPES))
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    if dtype not in (None, *_DTYPES):
        raise ConfigError(f"--dtype: got {dtype!r}, wanted {' or '.join(_DTYPES)}")
    if len(words) != 2:
        raise ConfigError(
            f"got {len(words)} words, wanted two, the run and the folder to write: rlvla export runs/my-run out"
        )

    out = fresh(Path(words[1]).expanduser())

    from rlvla.policy import load

    model = load(words[0]).model
    print(written(out, lambda folder: model.export(folder, dtype)))  # type: ignore[arg-type]
    return 0
