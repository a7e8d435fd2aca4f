"""A small random checkpoint in the public layout, for trials on a CPU: ``python -m rlvla_model_gr00t tiny out/``."""

from __future__ import annotations

import sys
from functools import partial

from rlvla import tiny_command
from rlvla_model_gr00t import tiny

main = partial(tiny_command.main, "rlvla_model_gr00t", tiny.write)

if __name__ == "__main__":
    sys.exit(main())
