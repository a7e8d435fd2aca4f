"""Peak memory: of this process, of simulator workers, of GPUs. What the system does not say is left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

_GIB = 2.0**30


def peaks(workers: Iterable[int]) -> dict[str, float]:
    """Return ``memory/..._peak_gib``: resident memory of this process, of all workers together, and of each GPU used here.

    Args:
        workers: process ids.
    """
    found = {}
    mine, theirs = _resident(os.getpid()), [_resident(pid) for pid in workers]
    if mine is not None:
        found["memory/main_process_peak_gib"] = mine / _GIB
    if theirs:
        found["memory/workers_peak_gib"] = sum(one or 0 for one in theirs) / _GIB
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if allocated := torch.cuda.max_memory_allocated(device):
                found[f"memory/cuda:{device}_peak_gib"] = allocated / _GIB
    return found


def _resident(pid: int) -> int | None:
    """Return the most bytes that a process has had in memory; None where that is not known (not Linux, it has ended)."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    kib = next((line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")), None)
    return int(kib) * 1024 if kib is not None else None
