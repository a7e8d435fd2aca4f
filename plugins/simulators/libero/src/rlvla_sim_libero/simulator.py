"""The LIBERO simulator: N environments in one process, stepped one after another; those of one task share its scene.

Letters: N rows, H actions in a chunk, A = 7 action dimensions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlvla.errors import SimulatorError
from rlvla.simulator import Array, ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla_sim_libero import LiberoConfig, describe, published, startup, step_limits

startup.import_libero()  # before MuJoCo: the environment variables that it reads are set there

from rlvla_sim_libero.built_tasks import Built, BuiltTasks  # noqa: E402
from rlvla_sim_libero.renderer import check_rendering  # noqa: E402
from rlvla_sim_libero.scene import Episode, Scene, StockScene  # noqa: E402
from rlvla_sim_libero.task_files import TaskFiles  # noqa: E402

log = logging.getLogger(__name__)

_RUNNING, _ENDED, _EMPTY = 0, 1, 2


@dataclass
class _Running:
    """What a row runs."""

    built: Built
    episode: Episode


class LiberoSimulator(Simulator):
    """LIBERO tasks as rlvla steps them: whole chunks, and pictures of the last executed action only."""

    def __init__(self, config: LiberoConfig, rows: int) -> None:
        self.spec = describe(config)
        self._config = config
        self._success_reward = config.success_reward
        self._files = TaskFiles(config, self.spec.tasks)
        if problem := startup.memory_problem(config, rows, 1):
            raise SimulatorError(problem)
        self._files.check()
        self._renderer_name = check_rendering()
        self._rows = rows
        self._limits = step_limits(config, self.spec.tasks)
        self._cameras = [camera.name for camera in self.spec.cameras]
        self._built = BuiltTasks(lambda task: Scene(self._files.bddl(task)), config.image_size, config.kept_tasks)
        self._running: list[_Running | None] = [None] * rows
        self._stock: list[StockScene | None] = [None] * rows
        self._task_of = [0] * rows
        self._steps = [0] * rows
        self._condition = [_EMPTY] * rows
        self._recorded: set[int] = set()
        size = config.image_size
        self._images = {name: np.zeros((rows, size, size, 3), np.uint8) for name in self._cameras}
        self._state = np.zeros((rows, self.spec.state_dim), np.float32)
        if config.bddl_file is not None:
            self._enter(0, 0)  # what LIBERO cannot build of it is said now

    # The contract ----------------------------------------------------------------------------------------------------

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        rows = [int(row) for row in rows]
        if not len(rows) == len(seeds) == len(starts):
            raise ValueError(
                f"got {len(rows)} rows, {len(seeds)} seeds and {len(starts)} starts, wanted one of each a row"
            )
        stored = [self._files.stored(start) for start in starts]  # all checked before any row is touched
        for row, seed, start, state in zip(rows, seeds, starts, stored, strict=True):
            scene = self._enter(row, start.task)
            scene.reset(int(seed), state, self._config.settle_steps)
            if scene.is_solved():
                log.warning(
                    "%s, initial state %s is solved before the first action", self._name(start.task), start.state
                )
            self._steps[row] = 0
            self._condition[row] = _RUNNING
            self._observe(row)
        return self._observation(rows)

    def step(self, chunk_NHA: Array, active_N: Array) -> ChunkResult:
        chunk_NHA = np.asarray(chunk_NHA)
        active_N = np.asarray(active_N, dtype=bool)
        if chunk_NHA.ndim != 3 or chunk_NHA.shape[0] != self._rows or chunk_NHA.shape[2] != self.spec.action_dim:
            raise ValueError(
                f"actions have shape {chunk_NHA.shape}, LIBERO takes [{self._rows} rows, H, {self.spec.action_dim}] "
                "(3 position, 3 rotation, 1 gripper)"
            )
        if active_N.shape != (self._rows,):
            raise ValueError(f"active has shape {active_N.shape}, wanted one flag a row: ({self._rows},)")
        active = [int(row) for row in np.flatnonzero(active_N)]
        if never := [row for row in active if self._condition[row] == _EMPTY]:
            raise ValueError(f"rows {never} are active but were never reset")
        if over := [row for row in active if self._condition[row] != _RUNNING]:
            raise SimulatorError(f"rows {over} were stepped after their episode ended: reset them first")
        if not np.isfinite(chunk_NHA[active_N]).all():
            broken = [row for row in active if not np.isfinite(chunk_NHA[row]).all()]
            raise ValueError(f"actions of rows {broken} are not finite (NaN or infinity): the policy diverged")
        shape = chunk_NHA.shape[:2]
        reward, terminated, truncated, valid = (np.zeros(shape, kind) for kind in (np.float32, bool, bool, bool))
        success = np.zeros(self._rows, bool)
        frames: list[list[np.ndarray]] = [[] for _ in range(self._rows)]
        for row in active:
            self._run_chunk(row, chunk_NHA[row], reward, terminated, truncated, valid, success, frames[row])
        empty = np.zeros((0, *next(iter(self._images.values())).shape[1:]), np.uint8)
        video = [np.stack(taken) if taken else empty for taken in frames] if self._recorded else None
        return ChunkResult(self._observation(range(self._rows)), reward, terminated, truncated, valid, success, video)

    def prepare(self, tasks: Sequence[int]) -> None:
        if not self._config.stock_path:
            self._built.prepare([int(task) for task in tasks])

    def close(self) -> None:
        for scene in self._stock:
            if scene is not None:
                scene.close()
        self._built.close()
        self._running, self._stock = [None] * self._rows, [None] * self._rows
        self._condition = [_EMPTY] * self._rows

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = {int(row) for row in rows}

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Array]]:
        if not self.spec.restorable:
            return super().get_state(rows)
        states = []
        for row in rows:
            if self._condition[row] == _EMPTY:
                raise SimulatorError(f"row {row} was never reset: there is no episode to save")
            counters = np.array([self._task_of[row], self._steps[row], self._condition[row]], np.int64)
            states.append({"counters": counters, **self._scene_of(row).save()})
        return states

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Array]]) -> Observation:
        if not self.spec.restorable:
            return super().set_state(rows, states)
        for row, saved in zip(rows, states, strict=True):
            task, steps, condition = (int(number) for number in saved["counters"])
            self._files.check_task(task)
            self._enter(row, task).restore(saved)
            self._steps[row], self._condition[row] = steps, condition
            self._observe(row)
        return self._observation(rows)

    def versions(self) -> dict[str, str]:
        names = (*startup.PINS, *startup.ASSET_PACKAGES[:1], "numpy", "scipy", "numba")
        found = {name: startup.version(name) for name in names}
        warning = startup.mujoco_warning(published(self._config))
        drawing = {"MUJOCO_GL": startup.set_environment(), "GL_RENDERER": self._renderer_name}
        return {**found, **drawing, **({"warning": warning} if warning else {})}

    # Its parts -------------------------------------------------------------------------------------------------------

    def _run_chunk(
        self,
        row: int,
        actions_HA: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
        success: np.ndarray,
        frames: list[np.ndarray],
    ) -> None:
        """Execute one row's actions until its episode ends; the picture is taken at the last one."""
        scene = self._scene_of(row)
        recorded = row in self._recorded
        for index, action in enumerate(actions_HA.astype(np.float64)):
            solved = scene.step(action)
            self._steps[row] += 1
            valid[row, index] = True
            if solved:
                terminated[row, index] = success[row] = True
                reward[row, index] = self._success_reward
            elif self._steps[row] >= self._limits[self._task_of[row]]:
                truncated[row, index] = True
            ended = solved or truncated[row, index]
            if ended:
                self._condition[row] = _ENDED
            last = ended or index == len(actions_HA) - 1
            if last:
                self._observe(row)
            elif recorded:
                self._observe(row, self._cameras[:1])
            if recorded:
                frames.append(self._images[self._cameras[0]][row].copy())
            if ended:
                return

    def _observe(self, row: int, cameras: Sequence[str] | None = None) -> None:
        scene = self._scene_of(row)
        cameras = self._cameras if cameras is None else cameras
        if isinstance(scene, StockScene):
            for name in cameras:
                self._images[name][row] = scene.picture(name)
            self._state[row] = scene.stock_proprioception()
            return
        running = self._running[row]
        assert running is not None, "a row that is observed runs a task"
        renderer = running.built.renderer
        pose = scene.pose()
        with scene.lamps_as_shown():
            for name in cameras:
                renderer.draw(scene.model, pose, scene.camera(name), self._images[name][row])
        self._state[row] = scene.proprioception(pose)

    def _observation(self, rows: Sequence[int]) -> Observation:
        chosen = list(rows)
        return Observation(
            images={name: pictures[chosen] for name, pictures in self._images.items()},
            state=self._state[chosen],
            instruction=[self.spec.tasks[self._task_of[row]].instruction for row in chosen],
        )

    def _scene_of(self, row: int) -> Scene:
        """Return the scene of a row that was reset, with the row's environment present in it."""
        if (stock := self._stock[row]) is not None:
            return stock
        running = self._running[row]
        assert running is not None, "the row was reset"
        running.built.scene.enter(running.episode)
        return running.built.scene

    def _enter(self, row: int, task: int) -> Scene:
        """Let the row run a task, which is compiled where no row runs it and none was kept; returns its scene."""
        if self._task_of[row] != task or (self._running[row] is None and self._stock[row] is None):
            self._leave(row)
            if self._config.stock_path:
                self._stock[row] = StockScene(self._files.bddl(task), self._cameras, self._config.image_size)
            else:
                self._running[row] = _Running(*self._built.lend(task))
            self._task_of[row] = task
        return self._scene_of(row)

    def _leave(self, row: int) -> None:
        """Take the row from its task."""
        self._condition[row] = _EMPTY
        running, self._running[row] = self._running[row], None
        if running is not None:
            self._built.give_back(self._task_of[row], running.episode)
        stock, self._stock[row] = self._stock[row], None
        if stock is not None:
            stock.close()

    def _name(self, task: int) -> str:
        return self.spec.tasks[task].name
