"""Peaks are of the process itself."""

import subprocess
import sys

from rlvla.memory import peaks, resident_peak


def test_a_childs_peak_is_not_its_parents():
    """64 MB more here show here, and not in a child that is started then."""
    before = resident_peak()
    held = b"x" * 64_000_000
    assert resident_peak() >= before + 32_000_000
    code = "from rlvla.memory import resident_peak; print(resident_peak())"
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert 1_000_000 < child < len(held)


def test_peaks_are_in_gib():
    assert 0.005 < peaks()["memory/trainer_process_peak_gib"] < 100
