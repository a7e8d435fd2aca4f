"""Episode videos: MPEG-4, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_video(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Write uint8 ``[height, width, 3]`` frames as H.264, with even sides, which it wants: an odd last row or column is cut.

    By av itself: imageio collects garbage twice for each file, 0.17 s each time in a process that has torch.

    Raises:
        ImportError: av is missing; the message says what to install.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError("videos need av: pip install 'rlvla[video]'") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.mp4")
    with av.open(str(part), "w") as film:
        stream = film.add_stream("libx264", rate=max(1, round(fps)))
        stream.height, stream.width = (side // 2 * 2 for side in frames[0].shape[:2])
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            even = np.ascontiguousarray(frame[: stream.height, : stream.width])
            film.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        film.mux(stream.encode(None))
    os.replace(part, path)


def read_video(path: Path | str) -> np.ndarray:
    """Return the frames of a video, uint8 ``[frames, height, width, 3]``."""
    import av

    with av.open(str(path)) as film:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])
