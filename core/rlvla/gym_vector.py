"""A simulator behind Gymnasium's vector interface; apart, since a class must inherit from Gymnasium to be one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlvla.arrays import on_host
from rlvla.seeds import derive
from rlvla.simulator import Observation, Simulator
from rlvla.specs import Start
from rlvla.text import encode_text


class SimulatorVectorEnv(VectorEnv[Any, Any, Any]):
    """See :func:`rlvla.as_vector_env`."""

    def __init__(self, simulator: Simulator, rows: int, *, seed: int, tasks: Sequence[int] | None) -> None:
        spec = simulator.spec
        self.simulator = simulator
        self.num_envs = rows
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = gymnasium.spaces.Dict(
            {
                **{
                    one.name: gymnasium.spaces.Box(0, 255, (one.height, one.width, 3), np.uint8) for one in spec.cameras
                },
                "state": gymnasium.spaces.Box(-np.inf, np.inf, (spec.state_dim,), np.float32),
                "instruction": gymnasium.spaces.Box(0, 255, (spec.max_instruction_bytes,), np.uint8),
            }
        )
        low = np.array([part.low for part in spec.action for _ in range(part.size)], np.float32)
        high = np.array([part.high for part in spec.action for _ in range(part.size)], np.float32)
        self.single_action_space = gymnasium.spaces.Box(low, high)
        self.observation_space = batch_space(self.single_observation_space, rows)
        self.action_space = batch_space(self.single_action_space, rows)
        self._tasks = list(tasks) if tasks is not None else list(range(len(spec.tasks)))
        self._seed = seed
        self._episodes = [0] * rows
        self._done = np.zeros(rows, bool)
        self._last: dict[str, np.ndarray] = {}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._episodes = int(seed), [0] * self.num_envs
        rows = list(range(self.num_envs))
        self._last = self._packed(self._start(rows))
        self._done[:] = False
        return self._copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        resetting = np.flatnonzero(self._done)
        active = ~self._done
        result = self.simulator.step(np.asarray(actions, np.float32)[:, None], active)
        observation = self._packed(result.observation)
        for name, array in observation.items():
            self._last[name][active] = array[active]
        if len(resetting):
            fresh = self._packed(self._start([int(row) for row in resetting]))
            for name, array in fresh.items():
                self._last[name][resetting] = array
        terminated, truncated = on_host(result.terminated)[:, 0].copy(), on_host(result.truncated)[:, 0].copy()
        self._done = terminated | truncated
        info = {"success": on_host(result.success).copy()}
        return self._copy(), on_host(result.reward).astype(np.float64)[:, 0].copy(), terminated, truncated, info

    def _start(self, rows: list[int]) -> Observation:
        seeds, starts = [], []
        for row in rows:
            number = self._episodes[row]
            self._episodes[row] += 1
            task = self._tasks[(row + number * self.num_envs) % len(self._tasks)]
            states = self.simulator.spec.tasks[task].initial_states
            seeds.append(derive(self._seed, "episode", row, number))
            starts.append(Start(task, derive(self._seed, "state", row, number) % states if states else None))
        return self.simulator.reset(rows, seeds, starts)

    def _packed(self, observation: Observation) -> dict[str, np.ndarray]:
        return {
            **{name: on_host(picture).copy() for name, picture in observation.images.items()},
            "state": on_host(observation.state).astype(np.float32),
            "instruction": encode_text(observation.instruction, self.simulator.spec.max_instruction_bytes),
        }

    def _copy(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._last.items()}

    def close_extras(self, **kwargs: Any) -> None:
        self.simulator.close()
