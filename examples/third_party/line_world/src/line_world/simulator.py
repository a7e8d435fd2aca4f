"""The line, all rows at once. Position and mark lie in [-1, 1]; full action moves the point by 0.2. Running against an
end that is not the goal ends the episode, as a failure.

Letters: N rows, H actions in a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from line_world import TASKS, LineWorldConfig, describe
from rlvla.errors import SimulatorError
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import Start

MOVE = 0.2
NEAR = 0.15


class LineWorld(Simulator):
    """N lines."""

    def __init__(self, config: LineWorldConfig, rows: int) -> None:
        self.config = config
        self.spec = describe(config)
        self.position = np.zeros(rows)
        self.mark = np.zeros(rows)
        self.task = np.zeros(rows, int)
        self.steps = np.zeros(rows, int)
        self.ended = np.ones(rows, bool)
        self.recorded: set[int] = set()

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        for row, seed, start in zip(rows, seeds, starts, strict=True):
            if not 0 <= start.task < len(TASKS) or start.state is not None:
                raise SimulatorError(f"line-world has tasks 0 and 1 and no stored initial states, got {start}")
            random = np.random.default_rng(seed)
            side = random.choice([-1.0, 1.0])
            self.position[row] = random.uniform(-0.2, 0.2)
            self.mark[row] = side * random.uniform(0.5, 0.9)
            self.task[row], self.steps[row], self.ended[row] = start.task, 0, False
        return self._observe(list(rows))

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        rows, horizon, _ = chunk_NHA.shape
        active_N = np.asarray(active_N, bool)
        if (active_N & self.ended).any():
            raise SimulatorError(f"rows {np.flatnonzero(active_N & self.ended).tolist()} ended: reset them first")
        reward, terminated, truncated, valid = (np.zeros((rows, horizon), kind) for kind in ("f4", "?", "?", "?"))
        success = np.zeros(rows, bool)
        frames: list[list[np.ndarray]] = [[] for _ in range(rows)]
        goal = np.where(self.task == 0, self.mark, -np.sign(self.mark))
        for action in range(horizon):
            live = active_N & ~self.ended
            before = np.abs(goal - self.position)
            moved = self.position + MOVE * np.clip(chunk_NHA[:, action, 0], -1, 1)
            self.position = np.where(live, np.clip(moved, -1, 1), self.position)
            self.steps += live
            after = np.abs(goal - self.position)
            there = after < NEAR
            valid[:, action] = live
            terminated[:, action] = live & (there | (np.abs(self.position) >= 1))
            truncated[:, action] = live & ~terminated[:, action] & (self.steps >= self.config.max_episode_steps)
            reward[:, action] = live * (before - after + there)
            success |= live & there
            self.ended |= terminated[:, action] | truncated[:, action]
            for row in self.recorded & set(np.flatnonzero(live)):
                frames[row].append(self._picture(row))
        return ChunkResult(
            observation=self._observe(list(range(rows))),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            success=success,
            frames=[np.array(one) for one in frames] if self.recorded else None,
        )

    def record_video(self, rows: Sequence[int]) -> None:
        self.recorded = set(rows)

    def close(self) -> None:
        pass

    def _observe(self, rows: list[int]) -> Observation:
        return Observation(
            images={"front": np.stack([self._picture(row) for row in rows])},
            state=self.position[rows, None].astype(np.float32),
            instruction=[TASKS[task] for task in self.task[rows]],
        )

    def _picture(self, row: int) -> np.ndarray:
        size = self.config.pixels
        picture = np.full((size, size, 3), 40, np.uint8)
        for place, colour in ((self.mark[row], (220, 40, 40)), (self.position[row], (40, 220, 40))):
            column = round((place + 1) / 2 * (size - 3))
            picture[size // 4 : -size // 4, column : column + 3] = colour
        return picture
