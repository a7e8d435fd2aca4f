"""A world with a known answer: N points on a line. No rendering; a picture shows place and goal as numbers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.arrays import empty_result
from rlvla.errors import SimulatorError
from rlvla.seeds import derive
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla.testing.fakes import SIZE, STEP, TOLERANCE, FakeSimConfig, describe_simulator


class FakeSimulator(Simulator):
    """``place`` moves by ``0.25 * move`` an action, clipped to [-1, 1]; solved within 0.05 of ``goal``; reward 1 then.

    The best policy needs :func:`fewest_steps`; one that stands still is truncated.
    """

    def __init__(self, config: FakeSimConfig, rows: int) -> None:
        if config.fault == "start":
            raise SimulatorError("the fake simulator was told to fail at its start: set sim.fault to 'none'")
        if config.fault == "hang_start":
            time.sleep(3600)
        self.config = config
        self.spec = describe_simulator(config)
        self._place, self._goal = np.zeros(rows), np.zeros(rows)
        self._task, self._steps = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._ended = np.ones(rows, bool)
        self._chunks = 0
        self._sleep_s = config.step_seconds
        self._recorded: set[int] = set()

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        for row, seed, start in zip(rows, seeds, starts, strict=True):
            states = self.config.initial_states
            if (
                not 0 <= start.task < 2
                or (start.state is None) != (states == 0)
                or (start.state or 0) >= max(1, states)
            ):
                raise SimulatorError(f"no such start: {start}; there are 2 tasks with {states} initial states each")
            chosen = derive(seed, "fake") if start.state is None else derive(start.state, "state")
            random = np.random.default_rng(chosen)
            self._place[row] = random.uniform(-0.2, 0.2)
            self._goal[row] = random.uniform(0.5, 0.9) * (-1 if start.task == 0 else 1)
            self._task[row], self._steps[row], self._ended[row] = start.task, 0, False
        return self._observe(list(rows))

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        self._chunks += 1
        fault = self._fault()
        time.sleep(self._sleep_s)
        chunk_NHA = np.asarray(chunk_NHA)
        rows, horizon = chunk_NHA.shape[:2]
        result = empty_result(rows, horizon, video=bool(self._recorded))
        for row in np.flatnonzero(np.asarray(active_N)):
            self._step_row(int(row), chunk_NHA[row], result)
        if fault == "nan":
            result.reward[result.valid] = np.nan
        result.observation = self._observe(list(range(rows)))
        if self.config.batched:
            self._to_torch(result)
        return result

    def _step_row(self, row: int, chunk_HA: np.ndarray, result: ChunkResult) -> None:
        if self._ended[row]:
            raise SimulatorError(f"row {row} was stepped after its episode ended: reset it first")
        for action, (move, _) in enumerate(chunk_HA):
            self._place[row] = np.clip(self._place[row] + STEP * np.clip(move, -1, 1), -1, 1)
            self._steps[row] += 1
            solved = abs(self._place[row] - self._goal[row]) < TOLERANCE
            result.valid[row, action] = True
            result.reward[row, action] = float(solved)
            result.terminated[row, action] = solved
            result.truncated[row, action] = not solved and self._steps[row] >= self.config.max_episode_steps
            result.success[row] = solved
            if row in self._recorded:
                assert result.frames is not None
                result.frames[row].append(self._pictures([row])[0])
            if solved or result.truncated[row, action]:
                self._ended[row] = True
                break

    def _fault(self) -> str:
        config = self.config
        if config.fault == "none" or self._chunks != config.fault_step:
            return "none"
        if config.fault_file:
            try:
                Path(config.fault_file).touch(exist_ok=False)
            except FileExistsError:
                return "none"
        if config.fault == "die":
            os._exit(3)
        if config.fault == "hang":
            time.sleep(3600)
        if config.fault == "slow":
            self._sleep_s = 10 * config.step_seconds
        if config.fault == "raise":
            raise RuntimeError("the fake simulator was told to raise")
        return config.fault

    def _pictures(self, rows: Sequence[int]) -> np.ndarray:
        pictures = np.zeros((len(rows), SIZE, SIZE, 3), np.uint8)
        pictures[:, 0, 0, 0] = np.rint((self._place[rows] + 1) * 127)
        pictures[:, 0, 0, 1] = np.rint((self._goal[rows] + 1) * 127)
        pictures[:, 0, 0, 2] = self._steps[rows]
        return pictures

    def _observe(self, rows: Sequence[int]) -> Observation:
        pictures = self._pictures(rows)
        state = np.stack([self._place[rows], self._goal[rows]], 1).astype(np.float32)
        text = [self.spec.tasks[self._task[row]].instruction for row in rows]
        images: dict[str, Any] = {"front": pictures, "wrist": 255 - pictures}
        if self.config.batched:
            import torch

            return Observation(
                {name: torch.from_numpy(one) for name, one in images.items()}, torch.from_numpy(state), text
            )
        return Observation(images, state, text)

    def _to_torch(self, result: ChunkResult) -> None:
        import torch

        for name in ("reward", "terminated", "truncated", "valid", "success"):
            setattr(result, name, torch.from_numpy(getattr(result, name)))

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = set(rows)

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        names = ("_place", "_goal", "_task", "_steps", "_ended")
        return [{name: np.array(getattr(self, name)[row]) for name in names} for row in rows]

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        for row, state in zip(rows, states, strict=True):
            for name, value in state.items():
                getattr(self, name)[row] = value
        return self._observe(list(rows))

    def expert(self, rows: Sequence[int], horizon: int) -> Any:
        place_n, goal_n = self._place[rows].copy(), self._goal[rows]
        chunk_nHA = np.zeros((len(place_n), horizon, 2), np.float32)
        for action in range(horizon):
            chunk_nHA[:, action, 0] = np.clip((goal_n - place_n) / STEP, -1, 1)
            place_n += STEP * chunk_nHA[:, action, 0]
        return chunk_nHA

    def close(self) -> None:
        pass


def fewest_steps(place: float, goal: float) -> int:
    """Return the env steps that the best policy needs from ``place``."""
    return max(0, math.ceil((abs(goal - place) - TOLERANCE) / STEP + 1e-9))
