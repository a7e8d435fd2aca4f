"""The RoboTwin simulator: N environments stepped one after the other (a run gives each a process of its own).

Letters: N rows, H actions in a chunk, A action dimensions (14).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlvla.arrays import empty_result
from rlvla.errors import SimulatorError
from rlvla.simulator import Array, ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla_sim_robotwin import RoboTwinConfig, describe, seeds, startup
from rlvla_sim_robotwin.episode import Episode

_RUNNING, _ENDED, _EMPTY = 0, 1, 2


class RoboTwinSimulator(Simulator):
    """RoboTwin tasks as rlvla steps them: a chunk is one motion, success ends it, and its rest is not executed."""

    def __init__(self, config: RoboTwinConfig, rows: int) -> None:
        self.spec = describe(config)
        self._config = config
        self._rows = rows
        task_class = startup.import_task(config)
        self._seeds = seeds.read(config.seeds_path, config.task) if config.seeds_path else ()
        self._episodes = [Episode(config, task_class) for _ in range(rows)]
        self._condition = np.full(rows, _EMPTY)
        self._solved = np.zeros(rows, bool)
        self._seed = [0] * rows
        """Asked for; the one really played is the episode's."""
        self._steps = [0] * rows
        self._played: list[list[np.ndarray]] = [[] for _ in range(rows)]
        """Chunks of each row's episode, as they were given to it."""
        self._filmed: set[int] = set()
        self._seen = False
        """A picture was looked at."""
        shapes = {one.name: (rows, one.height, one.width, 3) for one in self.spec.cameras}
        self._low, self._high = (
            np.concatenate([np.full(part.size, getattr(part, end), np.float32) for part in self.spec.action])
            for end in ("low", "high")
        )
        self._images = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
        self._state = np.zeros((rows, self.spec.state_dim), np.float32)

    # The contract ----------------------------------------------------------------------------------------------------

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        rows = [int(row) for row in rows]
        if not len(rows) == len(seeds) == len(starts):
            raise ValueError(
                f"got {len(rows)} rows, {len(seeds)} seeds and {len(starts)} starts, wanted one of each a row"
            )
        chosen = [self._chosen(int(seed), start) for seed, start in zip(seeds, starts, strict=True)]
        for row, seed in zip(rows, chosen, strict=True):
            self._begin(row, seed)
            self._observe(row)
        return self._observation(rows)

    def step(self, chunk_NHA: Array, active_N: Array) -> ChunkResult:
        chunk, active = np.asarray(chunk_NHA, np.float32), np.asarray(active_N, bool)
        self._check_step(chunk, active)
        chunk = chunk.clip(self._low, self._high)  # the way to a far target would be timed point by point
        result = empty_result(self._rows, chunk.shape[1], video=bool(self._filmed))
        result.success_at_end = np.zeros(self._rows, bool)
        for row in map(int, np.flatnonzero(active)):
            self._advance(row, chunk[row], result)
            self._observe(row)
        result.observation = self._observation(range(self._rows))
        return result

    def close(self) -> None:
        for episode in self._episodes:
            episode.close()
        self._condition[:] = _EMPTY

    def record_video(self, rows: Sequence[int]) -> None:
        self._filmed = set(rows)

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Array]]:
        states = []
        for row in rows:
            if self._condition[row] == _EMPTY:
                raise SimulatorError(f"row {row} was never reset: there is no episode to save")
            chunks = self._played[row]
            numbers = [self._seed[row], self._steps[row], self._condition[row], self._solved[row]]
            states.append(
                {
                    "numbers": np.array(numbers, np.int64),
                    "lengths": np.array([len(one) for one in chunks], np.int64),
                    "actions": np.concatenate([np.zeros((0, self.spec.action_dim), np.float32), *chunks]),
                }
            )
        return states

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Array]]) -> Observation:
        for row, saved in zip(rows, states, strict=True):
            seed, steps, condition, solved = (int(number) for number in saved["numbers"])
            self._begin(row, seed)
            at = 0
            for length in map(int, saved["lengths"]):
                self._play(row, np.asarray(saved["actions"])[at : at + length], film=False)
                at += length
            self._steps[row], self._condition[row], self._solved[row] = steps, condition, bool(solved)
            self._observe(row)
        return self._observation(rows)

    def versions(self) -> dict[str, str]:
        return startup.versions(self._config)

    # Its parts -------------------------------------------------------------------------------------------------------

    def _chosen(self, seed: int, start: Start) -> int:
        """Return the runtime's seed for a start."""
        if start.task != 0:
            raise SimulatorError(f"task {start.task} does not exist: {self._config.task} is the only one, number 0")
        if not self._seeds:
            if start.state is not None:
                raise SimulatorError(
                    f"initial state {start.state} does not exist: without seeds_path scenes are drawn from the seed"
                )
            return seed % seeds.LIMIT
        if start.state is None or not 0 <= start.state < len(self._seeds):
            raise SimulatorError(
                f"initial state {start.state} does not exist: {self._config.seeds_path} holds {len(self._seeds)} seeds, "
                f"numbers 0 to {len(self._seeds) - 1}"
            )
        return self._seeds[start.state]

    def _begin(self, row: int, seed: int) -> None:
        self._condition[row] = _EMPTY
        self._episodes[row].reset(seed)
        self._condition[row], self._solved[row] = _RUNNING, False
        self._seed[row], self._steps[row], self._played[row] = seed, 0, []

    def _advance(self, row: int, chunk_HA: np.ndarray, result: ChunkResult) -> None:
        """Run a row's chunk and write down what came of it."""
        limit = self.spec.max_episode_steps
        actions = chunk_HA[: limit - self._steps[row]]
        before = bool(self._solved[row])
        executed, frames = self._play(row, actions, row in self._filmed)
        solved = bool(self._solved[row])
        last = executed - 1
        result.valid[row, :executed] = True
        result.success[row] = result.success_at_end[row] = solved  # type: ignore[index]
        earlier = before if self._config.relative_reward else False
        result.reward[row, last] = self._config.reward_coefficient * (float(solved) - float(earlier))
        result.terminated[row, last] = solved and not self._config.ignore_terminations
        result.truncated[row, last] = self._steps[row] >= limit and not result.terminated[row, last]
        if result.frames is not None:
            result.frames[row].extend(frames)
        if result.terminated[row, last] or result.truncated[row, last]:
            self._condition[row] = _ENDED

    def _play(self, row: int, actions_HA: np.ndarray, film: bool) -> tuple[int, list[np.ndarray]]:
        """Execute a chunk, or stand still where the task is solved; returns the executed actions and their frames."""
        if self._solved[row]:
            executed = len(actions_HA)
            frames = [self._images[self.spec.cameras[0].name][row].copy()] * executed if film else []
        else:
            played = self._episodes[row].play(actions_HA, self._steps[row], film)
            executed, frames = played.executed, played.frames
            self._solved[row] = played.success
            if played.success and self._config.ignore_terminations:
                frames += frames[-1:] * (len(actions_HA) - executed)
                executed = len(actions_HA)
            self._played[row].append(np.array(actions_HA, np.float32))  # the caller may reuse its array
        self._steps[row] += executed
        return executed, frames

    def _observe(self, row: int) -> None:
        pictures, self._state[row] = self._episodes[row].observe()
        if not self._seen:
            _refuse_blank(pictures)
            self._seen = True
        for name, picture in pictures.items():
            self._images[name][row] = picture

    def _observation(self, rows: Sequence[int]) -> Observation:
        chosen = list(rows)
        return Observation(
            images={name: pictures[chosen] for name, pictures in self._images.items()},
            state=self._state[chosen],
            instruction=[self._episodes[row].instruction or "-" for row in chosen],
        )

    def _check_step(self, chunk: np.ndarray, active: np.ndarray) -> None:
        wanted = (self._rows, self.spec.action_dim)
        if chunk.ndim != 3 or (chunk.shape[0], chunk.shape[2]) != wanted:
            raise ValueError(
                f"actions have shape {chunk.shape}, RoboTwin takes [{wanted[0]} rows, H, {wanted[1]}]: six joints and a "
                "gripper of the left arm, then of the right one"
            )
        if active.shape != (self._rows,):
            raise ValueError(f"active has shape {active.shape}, wanted one flag a row: ({self._rows},)")
        if never := np.flatnonzero(active & (self._condition == _EMPTY)).tolist():
            raise ValueError(f"rows {never} are active but were never reset")
        if over := np.flatnonzero(active & (self._condition == _ENDED)).tolist():
            raise SimulatorError(f"rows {over} were stepped after their episode ended: reset them first")
        if not np.isfinite(chunk[active]).all():
            raise ValueError("actions are not finite (NaN or infinity): the policy diverged")


def _refuse_blank(pictures: Mapping[str, np.ndarray]) -> None:
    """Look at a process's first picture: a broken driver draws one colour, and RL would learn from it."""
    head = pictures.get("head")
    if head is not None and head.min() == head.max():
        raise SimulatorError(
            f"camera head shows nothing but {head.min()}: the driver does not draw: rlvla doctor robotwin"
        )
