"""The ManiSkill simulator: N environments in one process, one by one on the CPU or as one batch on a GPU.

Letters: N rows, H actions in a chunk, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlvla.errors import SimulatorError
from rlvla.seeds import derive
from rlvla.simulator import Array, ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla_sim_maniskill import ManiSkillConfig, describe, header_of, instructions, startup

_RUNNING, _ENDED, _EMPTY = 0, 1, 2


class ManiSkillSimulator(Simulator):
    """ManiSkill tasks as rlvla steps them: whole chunks, and pictures of the last executed action only."""

    def __init__(self, config: ManiSkillConfig, rows: int) -> None:
        self.spec = describe(config)
        self._config = config
        self._rows = rows
        startup.import_maniskill(config.renderer)
        import torch

        from rlvla_sim_maniskill import instance

        self._torch = torch
        self._task = header_of(config)
        self._on_gpu = self.spec.device == "gpu"
        if self._on_gpu:
            self._instances = [instance.Instance(config, instance.made(config, rows, "gpu"))]
        else:
            self._instances = [instance.Instance(config, instance.made(config, 1, "cpu")) for _ in range(rows)]
        self._size = rows // len(self._instances)
        """Rows of an instance."""
        self._device = self._instances[0].device
        self._condition = np.full(rows, _EMPTY)
        self._instruction = [self.spec.tasks[0].instruction] * rows
        self._seed = [0] * rows
        self._played: list[list[np.ndarray]] = [[] for _ in range(rows)]
        """Actions of each row's episode, where a live episode can be restored."""
        shown = {one.name: (rows, one.height, one.width, 3) for one in self.spec.cameras}
        self._images = {
            name: torch.zeros(shape, dtype=torch.uint8, device=self._device) for name, shape in shown.items()
        }
        self._state = torch.zeros(rows, self.spec.state_dim, device=self._device)

    # The contract ----------------------------------------------------------------------------------------------------

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        rows = [int(row) for row in rows]
        if not len(rows) == len(seeds) == len(starts):
            raise ValueError(
                f"got {len(rows)} rows, {len(seeds)} seeds and {len(starts)} starts, wanted one of each a row"
            )
        for start in starts:
            self._check_start(start)
        for row, seed in zip(rows, seeds, strict=True):
            self._begin(row, int(seed))
        self._observe(rows)
        return self._observation(rows)

    def step(self, chunk_NHA: Array, active_N: Array) -> ChunkResult:
        torch = self._torch
        chunk = torch.as_tensor(chunk_NHA, dtype=torch.float32, device=self._device)
        active_N = np.asarray(active_N, dtype=bool)
        self._check_step(chunk, active_N)
        active = torch.as_tensor(active_N, device=self._device)
        parts = []
        for number, instance in enumerate(self._instances):
            own = slice(number * self._size, (number + 1) * self._size)
            parts.append(instance.run(chunk[own], active[own]))
        result = self._result(parts)
        self._keep(chunk, result)
        self._observe([int(row) for row in np.flatnonzero(active_N)])
        result.observation = self._observation(range(self._rows))
        return result

    def close(self) -> None:
        for instance in self._instances:
            instance.close()
        self._instances = []
        self._condition[:] = _EMPTY

    def record_video(self, rows: Sequence[int]) -> None:
        for number, instance in enumerate(self._instances):
            instance.recorded = {row - number * self._size for row in rows if row // self._size == number}

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Array]]:
        if not self.spec.restorable:
            return super().get_state(rows)
        states = []
        for row in rows:
            if self._condition[row] == _EMPTY:
                raise SimulatorError(f"row {row} was never reset: there is no episode to save")
            actions = np.array(self._played[row], np.float32).reshape(-1, self.spec.action_dim)
            numbers = np.array([self._seed[row], self._condition[row]], np.int64)
            states.append({"numbers": numbers, "actions": actions})
        return states

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Array]]) -> Observation:
        if not self.spec.restorable:
            return super().set_state(rows, states)
        for row, saved in zip(rows, states, strict=True):
            seed, condition = (int(number) for number in saved["numbers"])
            self._begin(row, seed)
            actions = self._torch.as_tensor(np.asarray(saved["actions"]))
            if len(actions):  # one row in each instance
                self._instances[row].run(actions[None], self._torch.ones(1, dtype=self._torch.bool))
            self._played[row] = list(np.asarray(saved["actions"]))
            self._condition[row] = condition
        self._observe(list(rows))
        return self._observation(rows)

    def versions(self) -> dict[str, str]:
        return {**startup.versions(), "physics": self.spec.device, **startup.renderer_versions()}

    # Its parts -------------------------------------------------------------------------------------------------------

    def _begin(self, row: int, seed: int) -> None:
        instance, place = self._instances[row // self._size], row % self._size
        instance.reset(place, derive(seed, "maniskill"))
        own = instance.instructions()
        some = instructions.wordings(self._task, self._config.wording, None if own is None else own[place])
        self._instruction[row] = instructions.choose(some, seed)
        self._seed[row], self._played[row] = seed, []
        self._condition[row] = _RUNNING

    def _result(self, parts: Sequence[Any]) -> ChunkResult:
        torch = self._torch
        fields = {}
        for name in ("reward", "terminated", "truncated", "valid", "success", "success_at_end"):
            whole = torch.cat([getattr(part, name) for part in parts])
            fields[name] = whole if self._on_gpu else whole.numpy()
        video = any(instance.recorded for instance in self._instances)
        frames = [[one.numpy() for one in row] for part in parts for row in part.frames] if video else None
        return ChunkResult(observation=Observation({}, fields["reward"], []), frames=frames, **fields)

    def _keep(self, chunk: Any, result: ChunkResult) -> None:
        """Note which rows ended, and the actions that were executed."""
        over = (result.terminated | result.truncated).any(1)
        self._condition[np.asarray(over.cpu() if self._on_gpu else over)] = _ENDED
        if self.spec.restorable:
            for row, count in enumerate(result.valid.sum(1)):
                self._played[row] += list(chunk[row, : int(count)].clone().numpy())  # the caller may reuse its array

    def _observe(self, rows: Sequence[int]) -> None:
        """Look at rows that have changed; on the GPU all are drawn at once, and those that stood still look the same."""
        for number in sorted({row // self._size for row in rows}):
            own = slice(number * self._size, (number + 1) * self._size)
            changed = [row - own.start for row in rows if own.start <= row < own.stop]
            state = self._instances[number].state()
            if state.shape[1] != self._state.shape[1]:
                raise SimulatorError(
                    f"{self._config.task} gives a state of {state.shape[1]} numbers, its task file says {self._state.shape[1]}: the "
                    f"task has changed since; write the file again: python -m rlvla_sim_maniskill {self._config.task} --output FILE"
                )
            self._state[own][changed] = state[changed]
            for name, pictures in self._instances[number].images().items():
                self._images[name][own][changed] = pictures[changed]

    def _observation(self, rows: Sequence[int]) -> Observation:
        chosen = list(rows)
        images = {name: pictures[chosen] for name, pictures in self._images.items()}
        state = self._state[chosen]
        if not self._on_gpu:
            images, state = {name: one.numpy() for name, one in images.items()}, state.numpy()
        return Observation(images, state, [self._instruction[row] for row in chosen])

    def _check_start(self, start: Start) -> None:
        if start.task != 0:
            raise SimulatorError(f"task {start.task} does not exist: {self._config.task} is the only one, number 0")
        if start.state is not None:
            raise SimulatorError(
                f"initial state {start.state} of {self._config.task} does not exist: wanted None, since its scenes are drawn "
                "from the seed"
            )

    def _check_step(self, chunk: Any, active_N: np.ndarray) -> None:
        wanted = (self._rows, self.spec.action_dim)
        if chunk.ndim != 3 or (chunk.shape[0], chunk.shape[2]) != wanted:
            raise ValueError(
                f"actions have shape {tuple(chunk.shape)}, {self._config.task} takes [{wanted[0]} rows, H, {wanted[1]}]"
            )
        if active_N.shape != (self._rows,):
            raise ValueError(f"active has shape {active_N.shape}, wanted one flag a row: ({self._rows},)")
        if never := np.flatnonzero(active_N & (self._condition == _EMPTY)).tolist():
            raise ValueError(f"rows {never} are active but were never reset")
        if over := np.flatnonzero(active_N & (self._condition == _ENDED)).tolist():
            raise SimulatorError(f"rows {over} were stepped after their episode ended: reset them first")
        if not bool(self._torch.isfinite(chunk[self._torch.as_tensor(active_N, device=chunk.device)]).all()):
            raise ValueError("actions are not finite (NaN or infinity): the policy diverged")
