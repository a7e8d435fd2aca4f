"""Where physics runs. PhysX on a GPU needs a library that is in no package. Light."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Literal

from rlvla.devices import visible_gpus
from rlvla.errors import ConfigError

log = logging.getLogger(__name__)

PHYSX = "105.1-physx-5.3.1.patch0"
"""Release of PhysX that SAPIEN 3.0.3 is built with (sapien.physx.enable_gpu looks for its GPU half in this folder)."""


def library() -> Path:
    """Return where SAPIEN looks for PhysX's GPU library."""
    return Path.home() / ".sapien" / "physx" / PHYSX / "libPhysXGpu_64.so"


def missing() -> str:
    """Say what physics on the GPU lacks here; empty: nothing."""
    if not library().is_file():
        return (
            f"libPhysXGpu_64.so not found at {library()}: it is the linux-so.zip of release {PHYSX} of "
            "github.com/sapien-sim/physx-precompiled; put the file there"
        )
    if not visible_gpus():
        return "this process sees no NVIDIA GPU (driver, or CUDA_VISIBLE_DEVICES)"
    return ""


def chosen(backend: Literal["auto", "gpu", "cpu"]) -> Literal["gpu", "cpu"]:
    """Return where physics runs.

    Raises:
        ConfigError: ``gpu``, and something is missing; what, and where to put it.
    """
    if backend == "cpu":
        return "cpu"
    lacking = missing()
    if backend == "gpu" and lacking:
        raise ConfigError(f"backend: got 'gpu', but {lacking}, or take 'cpu'")
    if lacking:
        _say_once(lacking)
        return "cpu"
    return "gpu"


@cache
def _say_once(lacking: str) -> None:
    log.warning("backend auto: physics runs on the CPU, since %s", lacking)
