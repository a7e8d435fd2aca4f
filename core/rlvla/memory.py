"""Peak memory of a process and of the GPUs that it uses. What the system does not say is left out."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

_GIB = 2.0**30


def resident_peak() -> int:
    """Return the most bytes that this process has had in memory."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the parent had when it started this process
        return 1024 * next(
            int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM:")
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def available_gib() -> float | None:
    """Return the GiB of memory that are left, by the kernel and by the container's limit; None where neither says."""
    gib: list[float] = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = dict(text.split(":", 1) for text in Path("/proc/meminfo").read_text().splitlines())
        gib.append(int(lines["MemAvailable"].split()[0]) / 2**20)
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        gib.append((limit - used) / 2**30)
    return min(gib, default=None)


def peaks() -> dict[str, float]:
    """Return ``memory/..._peak_gib``: resident memory of this process, and what torch has allocated on each GPU."""
    found = {"memory/trainer_process_peak_gib": resident_peak() / _GIB}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if allocated := torch.cuda.max_memory_allocated(device):
                found[f"memory/cuda:{device}_peak_gib"] = allocated / _GIB
    return found
