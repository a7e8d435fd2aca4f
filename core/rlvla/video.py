"""Episode videos: MPEG-4, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_video(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Write uint8 ``[height, width, 3]`` frames as H.264.

    Raises:
        ImportError: imageio or av is missing; the message says what to install.
    """
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError("videos need imageio and av: pip install 'rlvla[video]'") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    even = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]  # H.264 wants even sides
    part = path.with_suffix(".part.mp4")
    imageio.imwrite(part, np.stack(even), plugin="pyav", codec="libx264", fps=max(1, round(fps)))
    os.replace(part, path)
