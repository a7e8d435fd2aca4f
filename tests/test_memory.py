"""Peaks are of the process itself."""

import subprocess
import sys

from rlvla.memory import peaks

PROGRAM = """
import subprocess, sys
from rlvla.memory import resident_peak
before = resident_peak()
held = b"x" * 64_000_000
child = "from rlvla.memory import resident_peak; print(resident_peak())"
print(before, resident_peak(), subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
"""


def test_a_childs_peak_is_not_its_parents():
    """64 MB more in a process show there, and not in a child that is started then."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True)
    before, after, child = map(int, done.stdout.split())
    assert after >= before + 32_000_000
    assert 1_000_000 < child < 64_000_000


def test_peaks_are_in_gib():
    assert 0.005 < peaks()["memory/trainer_process_peak_gib"] < 100
