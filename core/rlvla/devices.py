"""Which devices this machine offers. Light: asked before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> int:
    """Return how many NVIDIA GPUs this process may use: those that CUDA_VISIBLE_DEVICES names, else all of the driver's."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(list(_DRIVER.iterdir())) if _DRIVER.is_dir() else 0
    if chosen is None:
        return there
    named = [one for one in chosen.split(",") if one.strip() not in ("", "-1")]
    return min(there, len(named)) if there else 0


def cluster_address() -> str | None:
    """Return the Ray cluster that RAY_ADDRESS names; None: a run starts its own."""
    named = os.environ.get("RAY_ADDRESS", "")
    return None if named in ("", "local") else named


def machine() -> str:
    """Return the usable cores and the names of the GPUs, for results and profiles."""
    names = []
    for place in sorted(_DRIVER.iterdir()) if _DRIVER.is_dir() else []:
        lines = (place / "information").read_text().splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return ", ".join([f"{usable_cores()} CPU cores", *names[: visible_gpus()]])
