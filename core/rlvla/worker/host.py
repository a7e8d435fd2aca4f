"""A simulator in this process, with the videos of its episodes. A worker process holds one, and so does a run with
``run.sim_in_process``: it answers to the same calls as :class:`rlvla.worker.SubprocessSimulator`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.arrays import on_host
from rlvla.errors import SimulatorError
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla.video import write_video

log = logging.getLogger(__name__)


class Host:
    """A simulator that also records episodes: ask :meth:`video` for a row before the reset that starts the episode."""

    def __init__(self, simulator: Simulator, rows: int) -> None:
        self.simulator = simulator
        self.rows = rows
        self.spec = simulator.spec
        self.seconds = 0.0
        """Of the last step."""
        self.cpu_seconds = 0.0
        """None of its own: it shares the processor time of this process."""
        self.peak_bytes = 0
        """Likewise."""
        self.videos: list[str] = []
        """Completed by the last step, or by resets before it."""
        self._given_up: list[str] = []
        """Of episodes that were reset before their end, since the last step."""
        self._paths: dict[int, Path] = {}
        self._frames: dict[int, list[np.ndarray]] = {}

    def video(self, row: int, path: str) -> None:
        """Record the episode that starts next in ``row``."""
        if row in self._frames:
            self._give_up(row)
        self._paths[row] = Path(path)
        self.simulator.record_video(sorted(self._paths))

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        """Start new episodes; the videos of those that they cut short are complete."""
        for row in self._frames.keys() & set(rows):
            self._give_up(row)
        observation = self.simulator.reset(rows, seeds, starts)
        cameras = self.simulator.spec.cameras
        for place, row in enumerate(rows):
            if row in self._paths:  # where a policy sees no pictures, the video begins with the first action
                first = [on_host(observation.images[cameras[0].name][place]).copy()] if cameras else []
                self._frames[row] = first
        return observation

    def prepare(self, tasks: Sequence[int]) -> None:
        """Build tasks that resets will soon ask for. What goes wrong is told by the reset that needs it."""
        try:
            self.simulator.prepare(tasks)
        except SimulatorError as error:
            log.info("tasks %s could not be prepared: %s", list(tasks), error)

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        """Step; ``videos`` then lists the paths of the videos that became complete."""
        began = time.perf_counter()
        result = self.simulator.step(chunk_NHA, active_N)
        self.videos = self._given_up + (self._finish_videos(result) if self._frames else [])
        self._given_up = []
        self.seconds = time.perf_counter() - began
        return result

    def _finish_videos(self, result: ChunkResult) -> list[str]:
        if result.frames is None:
            raise SimulatorError(f"{type(self.simulator).__name__} was asked for video and returned no frames")
        ended_N = on_host((result.terminated | result.truncated).any(1))
        written = []
        for row in sorted(self._frames):
            self._frames[row] += [on_host(frame) for frame in result.frames[row]]
            if ended_N[row]:
                written.append(self._write(row))
        return written

    def _give_up(self, row: int) -> None:
        """Complete the video of an episode that was cut short, if there is anything to see."""
        if self._frames[row]:
            self._given_up.append(self._write(row))
        else:
            del self._frames[row], self._paths[row]

    def _write(self, row: int) -> str:
        path = self._paths.pop(row)
        write_video(path, self._frames.pop(row), fps=self.simulator.spec.control_hz)
        self.simulator.record_video(sorted(self._paths))
        return str(path)

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Save live episodes (not the videos of them)."""
        return self.simulator.get_state(rows)

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        """Continue saved episodes."""
        return self.simulator.set_state(rows, states)

    def expert(self, rows: Sequence[int], horizon: int) -> Any:
        """Return the next actions of the scripted expert."""
        return self.simulator.expert(rows, horizon)

    def versions(self) -> dict[str, str]:
        """Return what changes the simulator's numbers."""
        return self.simulator.versions()

    def wait_ready(self) -> Host:
        """Return at once: it stands."""
        return self

    def kill(self) -> None:
        """Do nothing: a call in this process cannot be ended from outside."""

    def close(self) -> None:
        """End the simulator."""
        self.simulator.close()
