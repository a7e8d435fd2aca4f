"""Brings warp up: where kernels are kept, whether the device will do, and a word while kernels compile."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mujoco_warp as mjw
import torch
import warp as wp

from rlvla.errors import SimulatorError
from rlvla.mujoco_warp import device_problem

__all__ = ["cache_folder", "check_deterministic", "checked_device", "compiling", "mjw", "wp"]

log = logging.getLogger(__name__)
CACHE_VARIABLE = "WARP_CACHE_PATH"
_PATIENCE_S = 5.0
"""Kernels that are kept load in less."""
_LOOKED_AT = "4.0.0"
"""The mujoco_warp whose sums were looked at, all of them, for what depends on chance or on the number of worlds."""
_GRAPH_DRIVER = (12, 4)
"""First driver whose graphs can hold the solver's loop (conditional nodes)."""


def cache_folder() -> Path:
    """Return where compiled kernels are kept: ``WARP_CACHE_PATH``, else in the user's cache folder."""
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(users, "rlvla", "warp")).expanduser().absolute()


os.environ[CACHE_VARIABLE] = str(cache_folder())  # warp looks when it starts, which nothing has done yet
wp.config.log_level = wp.LOG_WARNING  # else a line for each of a hundred kernels


def checked_device(name: str) -> torch.device:
    """Return the device that worlds are to live on.

    Args:
        name: ``cuda``, ``cuda:N``, or ``cpu``, where everything works, slowly and without graphs.

    Raises:
        SimulatorError: there is no such device, or its driver cannot capture physics; says what to do.
    """
    if problem := device_problem(name):
        raise SimulatorError(problem)
    wp.init()
    if name == "cpu":
        if not wp.is_cpu_available():
            raise SimulatorError("warp has no CPU device here (warp-clang.so is missing): install warp-lang whole")
        return torch.device("cpu")
    device = torch.device(name)
    there = torch.cuda.device_count()
    if (device.index or 0) >= there or not wp.is_cuda_available():
        raise SimulatorError(
            f"physics was to run on {name!r}, but this process sees {there} CUDA devices (driver, CUDA_VISIBLE_DEVICES, and a "
            "torch with CUDA): take the CPU backend, or device cpu to try it slowly"
        )
    if problem := driver_problem(wp.get_cuda_driver_version(), wp.is_conditional_graph_supported()):
        raise SimulatorError(problem)
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def driver_problem(version: tuple[int, int] | None, graphs: bool) -> str:
    """Say why a driver of this CUDA version cannot capture physics as a graph; empty: it can."""
    if graphs and version is not None and version >= _GRAPH_DRIVER:
        return ""
    if version is not None and version >= _GRAPH_DRIVER:
        return (
            "this warp cannot capture loops in CUDA graphs (conditional nodes), though the NVIDIA driver could: install warp-lang "
            "as PyPI has it (built with CUDA 12.4 or later), or take the CPU backend"
        )
    told = "unknown" if version is None else ".".join(map(str, version))
    return (
        f"the NVIDIA driver offers CUDA {told}, wanted {'.'.join(map(str, _GRAPH_DRIVER))} or later, whose graphs hold loops "
        "(driver 550): update it, or take the CPU backend"
    )


def check_deterministic() -> None:
    """Look whether worlds can have equal bits here.

    Raises:
        SimulatorError: another mujoco_warp is here; names the one to install.
    """
    if mjw.__version__ != _LOOKED_AT:
        raise SimulatorError(
            f"deterministic: mujoco-warp {mjw.__version__} is here, and what it adds up was looked at in {_LOOKED_AT} only, so bits might "
            f"depend on chance and on the number of worlds: install mujoco-warp {_LOOKED_AT}, or leave deterministic out"
        )


@contextmanager
def compiling() -> Iterator[None]:
    """Hold while programs run for the first time: says what takes so long, and how long it took."""
    began = time.monotonic()
    folder = cache_folder()
    waiting = threading.Timer(
        _PATIENCE_S,
        log.info,
        ("compiling physics kernels, two to five minutes the first time; they are kept in %s", folder),
    )
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
    if (seconds := time.monotonic() - began) > _PATIENCE_S:
        log.info("physics kernels are ready after %.0f s", seconds)
