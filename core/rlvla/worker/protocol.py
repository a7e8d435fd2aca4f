"""What a worker process and its owner say to each other, version 5.

Messages are JSON objects behind a 4-byte length, over a socket pair. Everything of fixed shape (pictures, states,
actions, rewards, flags) lies in one anonymous shared file that the worker makes once it knows its simulator; its
descriptor travels over the socket, so nothing is left behind however either side ends. A message is some hundred
bytes, whatever the size of the pictures. Saved episodes and an expert's actions, of any shape and rare, travel behind
their message as bytes.

==========  ======================================================  =======================================
request     with                                                    answer
==========  ======================================================  =======================================
hello       protocol, plugin, config, rows, horizon                 ready: spec, versions, layout, + descriptor
reset       rows, seeds, starts                                     ok
prepare     tasks                                                   (nothing: nobody waits)
step        (chunk and active rows lie in the shared file)          ok: videos
video       row, path (of the episode that starts next there)       ok
get_state   rows                                                    ok + arrays
set_state   rows + arrays                                           ok
expert      rows, horizon                                           ok + array
close                                                               ok, then the process ends
==========  ======================================================  =======================================

``ok`` comes with the seconds that the request took, the worker's processor time in them and its peak memory. Any answer
may be ``error`` with type, message and traceback of the worker, and whether rlvla raised it on purpose.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlvla.specs import SimulatorSpec

VERSION = 6
_HEADER = struct.Struct("!I")
_ALIGNMENT = 64
Layout = dict[str, tuple[str, tuple[int, ...], int]]
"""Name to (dtype, shape, offset in bytes)."""


def send(
    link: socket.socket, message: Mapping[str, Any], arrays: Sequence[np.ndarray] = (), fd: int | None = None
) -> None:
    """Send one message, the arrays behind it, and a file descriptor with it."""
    described = [(one.dtype.str, one.shape) for one in arrays]
    body = json.dumps({**message, "arrays": described}).encode()
    data = _HEADER.pack(len(body)) + body
    if fd is None:
        link.sendall(data)
    else:
        sent = socket.send_fds(link, [data], [fd])
        link.sendall(data[sent:])
    for one in arrays:
        link.sendall(np.ascontiguousarray(one).tobytes())


def receive(link: socket.socket) -> tuple[dict[str, Any], list[np.ndarray], int | None]:
    """Wait for one message; returns it, its arrays and its file descriptor.

    Raises:
        EOFError: the other side is gone.
    """
    head, fds, _, _ = socket.recv_fds(link, _HEADER.size, 1)
    head += _exactly(link, _HEADER.size - len(head)) if head else _exactly(link, _HEADER.size)
    message = json.loads(_exactly(link, _HEADER.unpack(head)[0]))
    arrays = []
    for dtype, shape in message.pop("arrays"):
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        arrays.append(np.frombuffer(_exactly(link, size), kind).reshape(shape).copy())
    return message, arrays, fds[0] if fds else None


def _exactly(link: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        piece = link.recv(min(size - len(parts), 1 << 20))
        if not piece:
            raise EOFError("the other side closed the connection")
        parts += piece
    return bytes(parts)


def layout(spec: SimulatorSpec, rows: int, horizon: int) -> tuple[Layout, int]:
    """Return where each array lies in the shared file, and how long the file is."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        **{f"image/{one.name}": ("uint8", (rows, one.height, one.width, 3)) for one in spec.cameras},
        "state": ("float32", (rows, spec.state_dim)),
        "instruction": ("uint8", (rows, spec.max_instruction_bytes)),
        "chunk": ("float32", (rows, horizon, spec.action_dim)),
        "active": ("bool", (rows,)),
        "reward": ("float32", (rows, horizon)),
        "terminated": ("bool", (rows, horizon)),
        "truncated": ("bool", (rows, horizon)),
        "valid": ("bool", (rows, horizon)),
        "success": ("bool", (rows,)),
        "success_at_end": ("bool", (rows,)),
    }
    offset, places = 0, {}
    for name, (dtype, shape) in shapes.items():
        places[name] = (dtype, shape, offset)
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, max(offset, 1)


def make_shared(size: int) -> int:
    """Return the descriptor of an anonymous file in memory (in a temporary folder where the system has none)."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rlvla-simulator")
    else:
        fd, path = tempfile.mkstemp(prefix="rlvla-simulator-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


def map_shared(fd: int, places: Layout, size: int) -> dict[str, np.ndarray]:
    """Return the arrays of a layout; they keep the mapping alive. The descriptor can be closed afterwards."""
    memory = mmap.mmap(fd, size)
    return {
        name: np.frombuffer(memory, np.dtype(dtype), count=int(np.prod(shape, dtype=np.int64)), offset=offset).reshape(
            shape
        )
        for name, (dtype, shape, offset) in places.items()
    }
