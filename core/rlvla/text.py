"""Instructions as fixed-width UTF-8 bytes, so that they lie in shared memory and tensors like a picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def encode_text(text: Sequence[str], width: int) -> np.ndarray:
    """Return uint8 ``[N, width]``.

    Raises:
        ValueError: a text is empty or longer than ``width`` bytes.
    """
    encoded = np.zeros((len(text), width), np.uint8)
    for row, one in enumerate(text):
        data = one.encode()
        if not data:
            raise ValueError(f"row {row} has an empty instruction: a policy would not know what to do")
        if len(data) > width:
            raise ValueError(
                f"the instruction {one[:40]!r}... has {len(data)} bytes, the simulator's spec allows {width}: "
                "raise max_instruction_bytes in its SimulatorSpec"
            )
        encoded[row, : len(data)] = np.frombuffer(data, np.uint8)
    return encoded


def decode_text(encoded: np.ndarray) -> list[str]:
    """Return the texts of :func:`encode_text`."""
    return [row.tobytes().rstrip(b"\0").decode() for row in encoded]
