"""How much memory worlds take, reckoned before they are made."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

import mujoco
import torch

from rlvla.errors import SimulatorError
from rlvla.memory import available_gib
from rlvla.mujoco_warp.start import mjw, wp

_WORK = 2.0
"""What the solver takes while it runs is about as much as what is kept."""
_PROGRAMS = 2
"""That look for contacts (an env step, a settling), each a graph with memory of its own."""
_PIXEL_BYTES = 4 + 8
"""Of a picture in the renderer (colour), and of the tensor that it becomes."""
_FIXED = 512 * 2**20
"""Compiled kernels, graphs, and what the context takes."""


class NoRoom(SimulatorError):
    """Worlds do not fit into what is free on their device."""


@dataclass(frozen=True)
class Room:
    """Bytes that worlds take, about."""

    needed: int
    free: int


def room_for(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    count: int,
    contacts: int,
    constraints: int,
    pixels: int,
    device: torch.device,
    free: int | None,
    savings: str = "",
) -> Room:
    """Return what ``count`` worlds take, and what is free; ``savings``: what else would take less.

    Raises:
        NoRoom: they do not fit; says how many do.
    """
    with wp.ScopedDevice(wp.device_from_torch(device)):
        one, three = (
            _bytes(mjw.put_data(model, data, n, nconmax=contacts, njmax=constraints, nccdmax=contacts)) for n in (1, 3)
        )
    of_contacts = _PROGRAMS * contacts * _contact_bytes(model.opt.ccd_iterations)
    of_world = int(_WORK * (three - one) / 2) + of_contacts + _PIXEL_BYTES * pixels
    free = _free(device) if free is None else free
    needed = _FIXED + count * of_world
    if needed > free:
        most = max(0, (free - _FIXED) // of_world)
        raise NoRoom(
            f"{count} worlds take about {needed / 2**30:.2g} GiB on {device}, where {free / 2**30:.2g} GiB are free: "
            f"{most} fit at most (fewer environments, smaller pictures{savings})"
        )
    return Room(needed, free)


def _contact_bytes(iterations: int) -> int:
    """Return what the search for one contact of convex shapes works with.

    Source: mujoco_warp 4.0.0, ``collision_convex.py``: vertices, faces and horizon of the expanding polytope.
    """
    vertices, faces, horizon = 10 + 2 * iterations, 6 + 5 * iterations, 24
    return 16 * vertices + 20 * faces + 4 * horizon


def _bytes(value: Any) -> int:
    """Return the bytes of all warp arrays of a structure."""
    if isinstance(value, wp.array):
        return int(value.capacity or 0)
    if dataclasses.is_dataclass(value):
        return sum(_bytes(getattr(value, one.name)) for one in dataclasses.fields(value))
    return 0


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for later is free, too
        return int(torch.cuda.mem_get_info(device)[0])
    left = available_gib()
    return sys.maxsize if left is None else int(left * 2**30)
