"""Which Vulkan driver SAPIEN will find, decided before it is imported: it looks once. Light: no SAPIEN here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from rlvla.devices import visible_gpus
from rlvla.errors import SimulatorError
from rlvla_sim_maniskill import cpu_vulkan

Renderer = Literal["auto", "cpu", "gpu", "none"]
VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
"""What the Vulkan loader reads; SAPIEN looks at the first alone."""


_copied: dict[str, str] = {}
"""What was put into the variable that SAPIEN looks at, and the user's own variable that it is from."""


def chosen(renderer: Renderer) -> Literal["cpu", "gpu", "none"]:
    """Return what draws: ``auto`` is the GPU where this process sees one."""
    if renderer != "auto":
        return renderer
    return "gpu" if visible_gpus() else "cpu"


def set_environment(renderer: Renderer) -> str:
    """Point SAPIEN to a driver, where the user has not; returns its manifest, or an empty string for the system's own.

    ``none`` needs a driver too, since SAPIEN makes materials of bodies that nobody draws: the CPU's, where it is unpacked.

    Raises:
        SimulatorError: the user's variable names a file that is not there.
    """
    for name in VARIABLES:
        if value := os.environ.get(name):
            files = [Path(one) for one in value.split(os.pathsep) if one]
            if missing := [str(one) for one in files if not one.is_file()]:
                raise SimulatorError(
                    f"{name}={value}: no such file {', '.join(missing)}; wanted a Vulkan driver's manifest (*_icd.json), or "
                    "unset it"
                )
            own = os.pathsep.join(str(one.absolute()) for one in files)
            if name != "VK_ICD_FILENAMES":
                _copied[own] = name
            os.environ["VK_ICD_FILENAMES"] = own
            return own
    if chosen(renderer) == "gpu":
        return ""
    if (own := cpu_vulkan.manifest()) is not None:
        os.environ["VK_ICD_FILENAMES"] = str(own)
        return str(own)
    return ""


def hint(renderer: Renderer) -> str:
    """Say what to do where SAPIEN finds no device that draws."""
    for name in VARIABLES:
        if (value := os.environ.get(name)) and value != str(cpu_vulkan.manifest()):
            name = _copied.get(value, name)
            return f"{name}={value} is yours, and names the driver that was tried: unset it, or name one that works; {_help(renderer)}"
    return _help(renderer)


def _help(renderer: Renderer) -> str:
    if chosen(renderer) == "gpu" and not visible_gpus():
        return "this process sees no GPU (nvidia-smi, CUDA_VISIBLE_DEVICES): draw on the CPU, renderer: cpu"
    if chosen(renderer) == "gpu":
        return (
            "the GPU's driver has no Vulkan part that works here (a MIG slice never has one): set VK_ICD_FILENAMES to the "
            "driver's nvidia_icd.json, or draw on the CPU: renderer: cpu"
        )
    if cpu_vulkan.manifest() is not None and (lost := cpu_vulkan.missing_libraries()):
        return f"the CPU driver links to {', '.join(lost)}, which this machine lacks: apt-get install {' '.join(cpu_vulkan.STOCK)}"
    if not cpu_vulkan.not_wanted(gpu_too=True) and cpu_vulkan.manifest() is None:
        anyway = " --anyway" if visible_gpus() else ""
        return (
            f"Debian 12's own Mesa 22.3 is too old: apt-get install {' '.join(cpu_vulkan.STOCK)}, then "
            f"python -m rlvla_sim_maniskill.cpu_vulkan{anyway}"
        )
    return f"a CPU driver comes with apt-get install {' '.join(cpu_vulkan.STOCK)} (Mesa 25 or later)"
