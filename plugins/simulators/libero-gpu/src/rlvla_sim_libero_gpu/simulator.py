"""The LIBERO simulator on a GPU: rows of one task are worlds of one batch; what they show stays on the device.

Letters: N rows, n chosen rows, W worlds of a batch, H actions in a chunk, A = 7 action dimensions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvla_sim_libero import CAMERAS, published, startup, step_limits
from rlvla_sim_libero.task_files import TaskFiles

startup.import_libero()  # before MuJoCo: the environment variables that it reads are set there

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from rlvla.arrays import on_host  # noqa: E402
from rlvla.errors import SimulatorError  # noqa: E402
from rlvla.mujoco_warp.start import checked_device  # noqa: E402
from rlvla.mujoco_warp.worlds import Limits, side_by_side  # noqa: E402
from rlvla.seeds import derive  # noqa: E402
from rlvla.simulator import ChunkResult, Observation, Simulator  # noqa: E402
from rlvla.specs import Start  # noqa: E402
from rlvla_sim_libero.scene import Scene  # noqa: E402
from rlvla_sim_libero_gpu import LiberoGpuConfig, describe  # noqa: E402
from rlvla_sim_libero_gpu.batch import Batch, Look  # noqa: E402
from rlvla_sim_libero_gpu.goals import goal_of  # noqa: E402
from rlvla_sim_libero_gpu.groups import Group, Groups  # noqa: E402
from rlvla_sim_libero_gpu.starts import Begun, Starts  # noqa: E402

log = logging.getLogger(__name__)

_RUNNING, _ENDED, _EMPTY = 0, 1, 2


@dataclass
class _Outcome:
    """What happened in a chunk, on the device; bool and float ``[N, H]``."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


class LiberoGpuSimulator(Simulator):
    """LIBERO tasks as rlvla steps them: whole chunks, and pictures of the last executed action only."""

    def __init__(self, config: LiberoGpuConfig, rows: int, capture: bool = True) -> None:
        self.spec = describe(config)
        self._config, self._rows, self._capture = config, rows, capture
        self._device = checked_device(config.device)
        self._files = TaskFiles(config, self.spec.tasks)
        self._files.check()
        if warning := startup.mujoco_warning(published(config)):
            log.info("%s", warning)
        self._limits = step_limits(config, self.spec.tasks)
        self._cameras = [CAMERAS[role] for role in config.cameras]
        look = Look(tuple(self._cameras), config.image_size, config.texture_size)
        self._groups = Groups(
            self._compiled, lambda scene, first, count: self._batch(scene, first, count, look), config
        )
        if config.bddl_file is not None:
            self._groups.prepare(0)  # what its goal asks for may be nothing that can be judged here
        self._task_of = [0] * rows
        self._condition = np.full(rows, _EMPTY)
        self._steps = torch.zeros(rows, dtype=torch.long, device=self._device)
        self._recorded: list[int] = []
        size = config.image_size
        self._images = {
            name: torch.zeros(rows, size, size, 3, dtype=torch.uint8, device=self._device) for name in self._cameras
        }
        self._state = torch.zeros(rows, self.spec.state_dim, device=self._device)

    def _compiled(self, task: int) -> tuple[Scene, Starts]:
        scene = Scene(self._files.bddl(task))
        goal_of(scene)
        return scene, Starts(scene, self._config.settle_steps, self._config.kept_starts)

    def _batch(self, scene: Scene, first: Begun, count: int, look: Look) -> Batch:
        config = self._config
        return Batch(
            scene,
            first,
            count,
            limits=Limits(config.contacts, config.constraints),
            look=look,
            device=config.device,
            deterministic=config.deterministic,
            capture=self._capture,
        )

    # ---- the contract -----------------------------------------------------------------------------------------------

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        rows = [int(row) for row in rows]
        if not len(rows) == len(seeds) == len(starts):
            raise ValueError(
                f"got {len(rows)} rows, {len(seeds)} seeds and {len(starts)} starts, wanted one of each a row"
            )
        stored = [self._files.stored(start) for start in starts]
        begun = [
            self._groups.starts(start.task).get(self._layout(int(seed)), start.state, state)
            for seed, start, state in zip(seeds, starts, stored, strict=True)
        ]  # all of them, before a row is touched
        self._begin(rows, [start.task for start in starts], begun)
        self._condition[rows] = _RUNNING
        self._steps[rows] = 0
        return self._observation(rows)

    def _layout(self, seed: int) -> int:
        """Return the seed that places what is placed: one of ``layouts``, or each its own."""
        layouts = self._config.layouts
        return seed if layouts is None else derive(seed, "layout") % layouts

    def _begin(self, rows: list[int], tasks: Sequence[int], begun: Sequence[Begun]) -> None:
        places = self._groups.place(rows, tasks, begun)
        for row, task in zip(rows, tasks, strict=True):
            self._task_of[row] = task
        for group in {id(one): one for one, _ in places}.values():
            mine = [number for number, (one, _) in enumerate(places) if one is group]
            with group.batch.worlds.turn():
                group.batch.begin([places[number][1] for number in mine], [begun[number] for number in mine])
                self._look(group, [rows[number] for number in mine])

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        active_N = np.asarray(on_host(active_N), bool)
        chunk = torch.as_tensor(chunk_NHA).to(self._device, torch.float32)
        self._check_step(chunk, active_N)
        shape = chunk.shape[:2]
        outcome = _Outcome(
            torch.zeros(shape, device=self._device),
            *(torch.zeros(shape, dtype=torch.bool, device=self._device) for _ in range(3)),
        )
        frames: list[list[Tensor]] = [[] for _ in range(self._rows)]
        groups = self._groups.running(np.flatnonzero(active_N).tolist())
        with side_by_side(group.batch.worlds for group, _ in groups):
            for group, rows in groups:
                with group.batch.worlds.lane():
                    self._play(group, rows, chunk, outcome, frames)
                    self._look(group, rows)
        over_N = on_host((outcome.terminated | outcome.truncated).any(1))
        self._condition[over_N] = _ENDED
        return ChunkResult(
            self._observation(range(self._rows)),
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            outcome.valid,
            outcome.terminated.any(1),
            self._films(frames) if self._recorded else None,
            counts={"contacts_left_out": self._left_out(groups)},
        )

    def _play(
        self, group: Group, rows: list[int], chunk: Tensor, outcome: _Outcome, frames: list[list[Tensor]]
    ) -> None:
        """Execute the chunk's actions in the worlds of some rows, each until its episode ends."""
        batch, limit = group.batch, self._limits[self._task_of[rows[0]]]
        row_n = torch.as_tensor(rows, device=self._device)
        world_n = torch.as_tensor([group.world_of(row) for row in rows], device=self._device)
        action_W = torch.zeros(batch.count, chunk.shape[2], device=self._device)
        live_W = torch.zeros(batch.count, dtype=torch.bool, device=self._device)
        live_n = torch.ones(len(rows), dtype=torch.bool, device=self._device)
        for number in range(chunk.shape[1]):
            action_W[world_n] = chunk[row_n, number]
            live_W[world_n] = live_n
            batch.step(action_W, live_W)
            solved_n = batch.solved[world_n] & live_n
            self._steps[row_n] += live_n
            late_n = live_n & ~solved_n & (self._steps[row_n] >= limit)
            outcome.valid[row_n, number] = live_n
            outcome.terminated[row_n, number] = solved_n
            outcome.truncated[row_n, number] = late_n
            outcome.reward[row_n, number] = solved_n * self._config.success_reward
            if self._recorded:
                self._film(group, rows, live_n, frames)
            live_n = live_n & ~(solved_n | late_n)

    def _check_step(self, chunk: Tensor, active_N: np.ndarray) -> None:
        if chunk.ndim != 3 or (chunk.shape[0], chunk.shape[2]) != (self._rows, self.spec.action_dim):
            raise ValueError(
                f"actions have shape {tuple(chunk.shape)}, LIBERO takes [{self._rows} rows, H, {self.spec.action_dim}] "
                "(3 position, 3 rotation, 1 gripper)"
            )
        if active_N.shape != (self._rows,):
            raise ValueError(f"active has shape {active_N.shape}, wanted one flag a row: ({self._rows},)")
        if never := np.flatnonzero(active_N & (self._condition == _EMPTY)).tolist():
            raise ValueError(f"rows {never} are active but were never reset")
        if over := np.flatnonzero(active_N & (self._condition == _ENDED)).tolist():
            raise SimulatorError(f"rows {over} were stepped after their episode ended: reset them first")
        finite_N = on_host(torch.isfinite(chunk).flatten(1).all(1))
        if broken := np.flatnonzero(active_N & ~finite_N).tolist():
            raise ValueError(f"actions of rows {broken} are not finite (NaN or infinity): the policy diverged")

    def prepare(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            self._groups.prepare(int(task))

    def close(self) -> None:
        self._groups.close()
        self._condition[:] = _EMPTY

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def _look(self, group: Group, rows: list[int]) -> None:
        """Take new pictures of some rows of a group, and read their state."""
        row_n = torch.as_tensor(rows, device=self._device)
        world_n = torch.as_tensor([group.world_of(row) for row in rows], device=self._device)
        for name, pictures in group.batch.draw().items():
            self._images[name][row_n] = pictures[world_n]
        self._state[row_n] = group.batch.state()[world_n]

    def _film(self, group: Group, rows: list[int], live_n: Tensor, frames: list[list[Tensor]]) -> None:
        picture = group.batch.draw()[self._cameras[0]]
        live = live_n.tolist()
        for place, row in enumerate(rows):
            if row in self._recorded and live[place]:
                frames[row].append(picture[group.world_of(row)].clone())

    def _films(self, frames: list[list[Tensor]]) -> list[Tensor]:
        size = self._config.image_size
        none = torch.zeros(0, size, size, 3, dtype=torch.uint8, device=self._device)
        return [torch.stack(taken) if taken else none for taken in frames]

    def _observation(self, rows: Sequence[int]) -> Observation:
        chosen = torch.as_tensor(list(rows), device=self._device)
        return Observation(
            images={name: pictures[chosen] for name, pictures in self._images.items()},
            state=self._state[chosen],
            instruction=[self.spec.tasks[self._task_of[row]].instruction for row in rows],
        )

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = [int(row) for row in rows]

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def _left_out(self, groups: Sequence[tuple[Group, list[int]]]) -> float:
        """Return in how many of these rows contacts have been left out since their reset."""
        count = 0
        for group, rows in groups:
            overflowed = on_host(group.batch.worlds.overflowed())
            mine = sum(bool(overflowed[group.world_of(row)]) for row in rows)
            if mine:
                group.batch.worlds.warn()
            count += mine
        return float(count)

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        states = []
        steps = self._steps.tolist()
        for row in map(int, rows):
            if self._condition[row] == _EMPTY:
                raise SimulatorError(f"row {row} was never reset: there is no episode to save")
            group = self._groups.of(row)
            with group.batch.worlds.turn():
                (begun,) = group.batch.saved([group.world_of(row)])
            counters = np.array([self._task_of[row], steps[row], self._condition[row]], np.int64)
            states.append({"counters": counters, **begun.arrays()})
        return states

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        rows = [int(row) for row in rows]
        tasks, steps, conditions = np.stack([one["counters"] for one in states]).T.tolist()
        for task in tasks:
            self._files.check_task(task)
        self._begin(rows, tasks, [Begun.from_arrays(one) for one in states])
        self._condition[rows] = conditions
        self._steps[rows] = torch.as_tensor(steps, device=self._device)
        return self._observation(rows)

    def versions(self) -> dict[str, str]:
        names = (*startup.PINS, *startup.ASSET_PACKAGES[:1], "mujoco-warp", "warp-lang", "numpy", "torch")
        on_gpu = self._device.type == "cuda"
        name = torch.cuda.get_device_name(self._device) if on_gpu else "cpu"
        return {
            **{name: startup.version(name) for name in names},
            "physics": f"mujoco-warp on {name}",
            "deterministic": str(self._config.deterministic),
        }
