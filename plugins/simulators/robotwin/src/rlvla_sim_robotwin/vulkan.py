"""Which Vulkan driver SAPIEN will find, decided before it is imported, and whether it can draw as RoboTwin wants."""

from __future__ import annotations

import os
from pathlib import Path

from rlvla.devices import visible_gpus
from rlvla.errors import SimulatorError

VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
"""What the Vulkan loader reads; SAPIEN looks at the first alone."""
HINT = (
    "SAPIEN cannot render with this driver. On a GPU: install the driver's Vulkan part and set VK_ICD_FILENAMES to its "
    "nvidia_icd.json. On the CPU: sapien 3.0.3 with lavapipe of Mesa 25 (on Debian 12 rlvla's .ci/vulkan unpacks one), or "
    "SwiftShader, the only one for sapien 3.0.0b1; VK_ICD_FILENAMES names its manifest"
)
NO_RAY_TRACING = (
    "This driver cannot run RoboTwin's ray-tracing shader (a segmentation fault, or no OIDN denoiser). Set shader: default "
    "for tests only; pictures differ from the benchmark"
)


def cpu_manifest() -> Path | None:
    """Return the manifest of the CPU driver in the user's cache folder, if there is one."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(cache).expanduser().absolute() / "rlvla" / "cpu-vulkan" / "icd.json"
    return path if path.is_file() else None


def problems() -> list[str]:
    """Say that the user's variable names a file that is not there."""
    name, value = _named()
    missing = [one for one in value.split(os.pathsep) if one and not Path(one).is_file()]
    if not missing:
        return []
    return [f"{name}={value}: no such file {', '.join(missing)}; wanted a Vulkan driver's manifest, or unset it"]


def _named() -> tuple[str, str]:
    """Return the variable that chooses the driver and its value; empty: none is set."""
    return next(((name, value) for name in VARIABLES if (value := os.environ.get(name))), ("", ""))


def set_environment() -> str:
    """Point SAPIEN to a driver, where the user has not; returns its manifest, or an empty string for the system's own.

    Raises:
        SimulatorError: the user's variable names a file that is not there.
    """
    if said := problems():
        raise SimulatorError(said[0])
    _, value = _named()
    if value:
        os.environ["VK_ICD_FILENAMES"] = value
        return value
    if visible_gpus() or (own := cpu_manifest()) is None:
        return ""
    os.environ["VK_ICD_FILENAMES"] = str(own)
    return str(own)


def software() -> bool:
    """Return whether nothing but a CPU can draw here: without an NVIDIA GPU there is no denoiser either."""
    return visible_gpus() == 0
