"""``rlvla export``: the policy of a run as a whole checkpoint in its model's public format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlvla.errors import ConfigError
from rlvla.folders import fresh, written

USAGE = """usage: rlvla export PATH DIR

PATH is a run's folder (its last checkpoint) or one of its checkpoints. Writes DIR, a folder that does not exist yet: the
model's whole public checkpoint, adapters merged, for whoever knows nothing of rlvla.
"""


def main(words: Sequence[str]) -> int:
    words = list(words)
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    if len(words) != 2:
        raise ConfigError(
            f"got {len(words)} words, wanted two, the run and the folder to write: rlvla export runs/my-run out"
        )

    out = fresh(Path(words[1]).expanduser())

    from rlvla.policy import load

    print(written(out, load(words[0]).model.export))
    return 0
