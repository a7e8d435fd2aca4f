"""``python -m rlvla`` is the command ``rlvla``."""

import sys

from rlvla.cli import main

if __name__ == "__main__":
    sys.exit(main())
