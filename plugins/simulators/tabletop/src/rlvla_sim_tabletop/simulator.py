"""The tables one by one on the CPU: one compiled model and one renderer for all rows of a worker, one ``MjData`` a row.

Success: the named block has moved by more than 2.5 cm. Moving another one ends the episode as a failure.
Letters: N rows, H actions in a chunk.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("LP_NUM_THREADS", "0")  # llvmpipe's own threads cost more than they give at 64 pixels

import mujoco
import numpy as np

from rlvla.arrays import empty_result
from rlvla.errors import SimulatorError
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla_sim_tabletop import COLOURS, TEMPLATES, TabletopConfig, describe, scene
from rlvla_sim_tabletop.expert import STEP_M, pushes

_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass
class _Row:
    """What an episode needs beside the physics."""

    goal: int = 0
    instruction: str = TEMPLATES[0].format(COLOURS[0])
    steps: int = 0
    ended: bool = True
    origin: np.ndarray = field(default_factory=lambda: np.zeros((len(COLOURS), 2)))
    """Where the blocks stood at the start, in metres."""
    potential: float = 0.0


class TabletopSimulator(Simulator):
    """N tables."""

    def __init__(self, config: TabletopConfig, rows: int) -> None:
        self.config = config
        self.spec = describe(config)
        self._model = scene.compiled()
        self._data = [mujoco.MjData(self._model) for _ in range(rows)]
        self._rows = [_Row() for _ in range(rows)]
        try:
            self._renderer: mujoco.Renderer | None = mujoco.Renderer(self._model, config.image_size, config.image_size)
        except Exception as error:
            raise SimulatorError(
                f"cannot render with MUJOCO_GL={os.environ['MUJOCO_GL']}: {type(error).__name__}: {error}. On Debian: "
                "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri; or libosmesa6 and MUJOCO_GL=osmesa"
            ) from error
        for flag in ("SHADOW", "REFLECTION", "SKYBOX", "FOG", "HAZE"):
            self._renderer.scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{flag}")] = 0
        self._hand = self._model.body("hand").id
        self._blocks = [self._model.body(colour).id for colour in COLOURS]
        self._low, self._high = self._model.jnt_range[:3, 0].copy(), self._model.jnt_range[:3, 1].copy()
        self._pictures = np.zeros((rows, config.image_size, config.image_size, 3), np.uint8)
        self._recorded: set[int] = set()
        for row in range(rows):
            mujoco.mj_forward(self._model, self._data[row])

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        for row, seed, start in zip(rows, seeds, starts, strict=True):
            self._start(row, scene.drawn(seed, start, self.config.spacing), start.task)
        return self._observe(list(rows))

    def _start(self, row: int, begin: scene.Scene, goal: int) -> None:
        data, episode = self._data[row], self._rows[row]
        mujoco.mj_resetData(self._model, data)
        data.qpos[:] = begin.qpos_Q
        data.ctrl[:3] = data.qpos[:3]
        mujoco.mj_forward(self._model, data)
        episode.goal, episode.steps, episode.ended = goal, 0, False
        episode.instruction = TEMPLATES[begin.template].format(COLOURS[goal])
        episode.origin = begin.blocks_B2.copy()
        episode.potential = self._potential(row)
        self._render(row)

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        rows, horizon = len(self._rows), chunk_NHA.shape[1]
        result = empty_result(rows, horizon, video=bool(self._recorded))
        for row in np.flatnonzero(active_N):
            self._step_row(int(row), chunk_NHA[row], result)
        result.observation = self._observe(range(rows))
        return result

    def _step_row(self, row: int, chunk_HA: Any, result: ChunkResult) -> None:
        episode, data = self._rows[row], self._data[row]
        if episode.ended:
            raise SimulatorError(f"row {row} was stepped after its episode ended: reset it first")
        if not np.isfinite(chunk_HA).all():
            raise SimulatorError(f"row {row} got an action that is not finite: {np.asarray(chunk_HA).tolist()}")
        for action, move_A in enumerate(np.clip(chunk_HA, -1.0, 1.0) * STEP_M):
            data.ctrl[:3] = np.clip(data.ctrl[:3] + move_A, self._low, self._high)
            mujoco.mj_step(self._model, data, scene.SUBSTEPS)
            mujoco.mj_kinematics(self._model, data)  # mj_step leaves body positions one substep behind
            episode.steps += 1
            outcome = self._outcome(row)
            result.valid[row, action] = True
            result.reward[row, action] = self._reward(row, outcome)
            result.terminated[row, action] = outcome != 0
            result.truncated[row, action] = outcome == 0 and episode.steps >= self.config.max_episode_steps
            episode.ended = bool(result.terminated[row, action] or result.truncated[row, action])
            if row in self._recorded:
                self._render(row)
                assert result.frames is not None
                result.frames[row].append(self._pictures[row].copy())
            if episode.ended:
                result.success[row] = outcome == 1
                break
        if row not in self._recorded:
            self._render(row)

    def _outcome(self, row: int) -> int:
        """Return 1 if the named block has moved, -1 if another one has, else 0."""
        episode = self._rows[row]
        moved_B2 = self._data[row].xpos[self._blocks, :2] - episode.origin
        moved = ((moved_B2 * moved_B2).sum(1) > scene.MOVED_M**2).tolist()
        if True not in moved:
            return 0
        return 1 if moved[episode.goal] and moved.count(True) == 1 else -1

    def _reward(self, row: int, outcome: int) -> float:
        if not self.config.shaped_reward:
            return float(outcome == 1)
        episode, potential = self._rows[row], self._potential(row)
        progress, episode.potential = potential - episode.potential, potential
        return scene.PROGRESS * progress + {1: scene.SOLVED, -1: scene.WRONG, 0: 0.0}[outcome]

    def _potential(self, row: int) -> float:
        """Return -distance(hand, named block) + 2 x its displacement, in metres."""
        data, episode = self._data[row], self._rows[row]
        block, origin = data.xpos[self._blocks[episode.goal]].tolist(), episode.origin[episode.goal].tolist()
        displacement = math.dist(block[:2], origin)
        return 2 * min(displacement, scene.MOVED_M) - math.dist(data.xpos[self._hand].tolist(), block)

    def _render(self, row: int) -> None:
        assert self._renderer is not None, "rendering after close()"
        self._renderer.update_scene(self._data[row], camera="front")
        self._renderer.render(out=self._pictures[row])

    def _observe(self, rows: Sequence[int]) -> Observation:
        picked = list(rows)
        position = np.stack([self._data[row].qpos[:3] for row in picked])
        return Observation(
            images={"front": self._pictures[picked]},
            state=((position - scene.STATE_CENTRE) / scene.STATE_SCALE).astype(np.float32),
            instruction=[self._rows[row].instruction for row in picked],
        )

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = set(rows)

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        size = mujoco.mj_stateSize(self._model, _PHYSICS)
        states = []
        for row in rows:
            episode, physics = self._rows[row], np.empty(size)
            mujoco.mj_getState(self._model, self._data[row], physics, _PHYSICS)
            template = next(
                n for n, text in enumerate(TEMPLATES) if text.format(COLOURS[episode.goal]) == episode.instruction
            )
            states.append(
                {
                    "physics": physics,
                    "origin": episode.origin.copy(),
                    "potential": np.array(episode.potential),
                    "episode": np.array([episode.goal, template, episode.steps, episode.ended], np.int64),
                }
            )
        return states

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        for row, state in zip(rows, states, strict=True):
            goal, template, steps, ended = (int(number) for number in state["episode"])
            self._rows[row] = _Row(
                goal=goal,
                instruction=TEMPLATES[template].format(COLOURS[goal]),
                steps=steps,
                ended=bool(ended),
                origin=np.array(state["origin"]),
                potential=float(state["potential"]),
            )
            mujoco.mj_setState(self._model, self._data[row], np.asarray(state["physics"], np.float64), _PHYSICS)
            mujoco.mj_kinematics(self._model, self._data[row])
            mujoco.mj_camlight(self._model, self._data[row])
            self._render(row)
        return self._observe(list(rows))

    def expert(self, rows: Sequence[int], horizon: int) -> np.ndarray:
        chunk_nHA = np.empty((len(rows), horizon, 3), np.float32)
        for place, row in enumerate(rows):
            data = self._data[row]
            chunk_nHA[place] = pushes(
                data.qpos[:3], data.ctrl[:3], data.xpos[self._blocks, :2], self._rows[row].goal, horizon
            )
        return chunk_nHA

    def versions(self) -> dict[str, str]:
        return {"mujoco": mujoco.__version__, "MUJOCO_GL": os.environ["MUJOCO_GL"]}

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
