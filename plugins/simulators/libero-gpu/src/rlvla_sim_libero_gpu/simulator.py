"""The LIBERO simulator on a GPU: rows of one task are worlds of one batch; what they show stays on the device.

Letters: N rows, n chosen rows, W worlds of a batch, H actions in a chunk, A = 7 action dimensions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from rlvla_sim_libero import CAMERAS, published, startup, step_limits
from rlvla_sim_libero.task_files import TaskFiles

startup.import_libero()  # before MuJoCo: the environment variables that it reads are set there

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from rlvla.arrays import on_host  # noqa: E402
from rlvla.errors import SimulatorError  # noqa: E402
from rlvla.mujoco_warp.rows import check_shapes, checked_rows  # noqa: E402
from rlvla.mujoco_warp.start import check_deterministic, checked_device  # noqa: E402
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
    """What happened in a chunk, on the device."""

    reward: Tensor
    """float ``[N, H]``."""
    terminated: Tensor
    """bool ``[N, H]``, as the next two."""
    truncated: Tensor
    valid: Tensor
    success: Tensor
    """bool ``[N]``, as the next two."""
    diverged: Tensor
    left_out: Tensor

    @classmethod
    def none(cls, rows: int, horizon: int, device: torch.device) -> _Outcome:
        """Return that of a chunk in which nothing has happened yet."""
        flags = torch.zeros(3, rows, horizon, dtype=torch.bool, device=device)
        ends = torch.zeros(3, rows, dtype=torch.bool, device=device)
        return cls(torch.zeros(rows, horizon, device=device), *flags, *ends)


@dataclass(frozen=True)
class _Places:
    """Rows of a group and their worlds, on the host and on the device."""

    rows: list[int]
    worlds: list[int]
    row_n: Tensor
    world_n: Tensor


class LiberoGpuSimulator(Simulator):
    """LIBERO tasks as rlvla steps them: whole chunks, and pictures of the last executed action only."""

    def __init__(self, config: LiberoGpuConfig, rows: int, capture: bool = True) -> None:
        self.spec = describe(config)
        self._config, self._rows, self._capture = config, rows, capture
        self._device = checked_device(config.device)
        if config.deterministic:
            check_deterministic()
        self._files = TaskFiles(config, self.spec.tasks)
        self._files.check()
        if warning := startup.mujoco_warning(published(config)):
            log.info("%s", warning)
        self._limits = step_limits(config, self.spec.tasks)
        self._cameras = [CAMERAS[role] for role in config.cameras]
        look = Look(tuple(self._cameras), config.image_size, config.texture_size)
        self._groups = Groups(
            self._compiled,
            lambda scene, first, count: self._batch(scene, first, count, look),
            config,
            rows,
            len(self.spec.tasks),
        )
        self._places_of: WeakKeyDictionary[Group, _Places] = WeakKeyDictionary()
        """What was uploaded last for each group."""
        if config.bddl_file is not None:
            self._groups.prepare(0)  # what its goal asks for may be nothing that can be judged here
        self._task_of = [0] * rows
        self._condition = np.full(rows, _EMPTY)
        self._steps = torch.zeros(rows, dtype=torch.long, device=self._device)
        self._left_out = np.zeros(rows, bool)
        """Episodes that are counted already."""
        self._unstable: set[int] = set()
        """Tasks that were told to have diverged."""
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
        rows = checked_rows(rows, self._rows)
        if not len(rows) == len(seeds) == len(starts):
            raise ValueError(
                f"got {len(rows)} rows, {len(seeds)} seeds and {len(starts)} starts, wanted one of each a row"
            )
        if not rows:
            return self._observation(rows)
        stored = [self._files.stored(start) for start in starts]

        def begun(place: int) -> Begun:
            start = starts[place]
            drawn = self._groups.starts(start.task)
            return drawn.get(self._layout(int(seeds[place])), start.state, stored[place])

        self._begin(rows, [start.task for start in starts], begun)
        self._condition[rows] = _RUNNING
        self._steps[rows] = 0
        return self._observation(rows)

    def _layout(self, seed: int) -> int:
        """Return the seed that places what is placed: one of ``layouts``, or each its own."""
        layouts = self._config.layouts
        return seed if layouts is None else derive(seed, "layout") % layouts

    def _begin(self, rows: list[int], tasks: Sequence[int], begun_at: Callable[[int], Begun]) -> None:
        self._condition[rows] = _EMPTY  # until they have begun: there may be no room
        self._left_out[rows] = False
        places = self._groups.place(rows, tasks, begun_at)
        begun = [begun_at(place) for place in range(len(rows))]
        for row, task in zip(rows, tasks, strict=True):
            self._task_of[row] = task
        for group in {id(one): one for one, _ in places}.values():
            mine = [number for number, (one, _) in enumerate(places) if one is group]
            with group.batch.worlds.turn():
                group.batch.begin([places[number][1] for number in mine], [begun[number] for number in mine])
                self._look(group, self._places(group, [rows[number] for number in mine]))

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        active_N = np.asarray(on_host(active_N), bool)
        chunk = torch.as_tensor(chunk_NHA).to(self._device, torch.float32)
        self._check_step(chunk, active_N)
        outcome = _Outcome.none(*chunk.shape[:2], self._device)
        frames: list[list[Tensor]] = [[] for _ in range(self._rows)]
        groups = [
            (group, self._places(group, rows))
            for group, rows in self._groups.running(np.flatnonzero(active_N).tolist())
        ]
        # From here on the host waits for no batch until all have been given their work (videos apart).
        with side_by_side(group.batch.worlds for group, _ in groups):
            plays = [(group, self._play(group, places, chunk, outcome, frames)) for group, places in groups]
            for _ in range(chunk.shape[1] + 1):
                for group, play in plays:
                    with group.batch.worlds.lane():
                        next(play, None)
            for group, places in groups:
                with group.batch.worlds.lane():
                    self._look(group, places)
        counts = self._ended(outcome, groups)
        return ChunkResult(
            self._observation(),
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            outcome.valid,
            outcome.success,
            self._films(frames) if self._recorded else None,
            counts=counts,
        )

    def _places(self, group: Group, rows: list[int]) -> _Places:
        """Return where rows of a group are; uploaded only where that has changed."""
        worlds = [group.world_of(row) for row in rows]
        known = self._places_of.get(group)
        if known is None or (known.rows, known.worlds) != (rows, worlds):
            row_n, world_n = self._uploaded([rows, worlds])
            known = self._places_of[group] = _Places(rows, worlds, row_n, world_n)
        return known

    def _uploaded(self, numbers: Any) -> Tensor:
        """Return integers on the device; the host does not wait for what runs there."""
        here = torch.tensor(numbers, dtype=torch.long)
        here = here.pin_memory() if self._device.type == "cuda" else here
        return here.to(self._device, non_blocking=True)

    def _play(
        self, group: Group, places: _Places, chunk: Tensor, outcome: _Outcome, frames: list[list[Tensor]]
    ) -> Iterator[None]:
        """Execute the chunk's actions in the worlds of some rows, each until its episode ends; yields after each.

        So batches get their actions in turns: two that got a whole chunk each at once took 1.3 times as long on an H200 (decision
        089).
        """
        batch, limit = group.batch, self._limits[self._task_of[places.rows[0]]]
        row_n, world_n = places.row_n, places.world_n
        action_W = torch.zeros(batch.count, chunk.shape[2], device=self._device)
        live_W = torch.zeros(batch.count, dtype=torch.bool, device=self._device)
        live_n = torch.ones(len(places.rows), dtype=torch.bool, device=self._device)
        for number in range(chunk.shape[1]):
            action_W[world_n] = chunk[row_n, number]
            live_W[world_n] = live_n
            batch.step(action_W, live_W)
            diverged_n = batch.worlds.diverged[world_n] & live_n
            solved_n = batch.solved[world_n] & live_n & ~diverged_n
            self._steps[row_n] += live_n
            over_n = solved_n | diverged_n
            late_n = live_n & ~over_n & (self._steps[row_n] >= limit)
            outcome.valid[row_n, number] = live_n
            outcome.terminated[row_n, number] = over_n
            outcome.truncated[row_n, number] = late_n
            outcome.reward[row_n, number] = solved_n * self._config.success_reward
            outcome.success[row_n] |= solved_n
            outcome.diverged[row_n] |= diverged_n
            if self._recorded:
                self._film(group, places.rows, live_n, frames)
            live_n = live_n & ~(over_n | late_n)
            yield
        outcome.left_out[row_n] = batch.worlds.overflowed()[world_n]

    def _ended(self, outcome: _Outcome, groups: Sequence[tuple[Group, _Places]]) -> dict[str, float]:
        """Wait for a chunk, note whose episodes have ended, and return what is counted."""
        over_N = (outcome.terminated | outcome.truncated).any(1)
        over, diverged, left_out = on_host(torch.stack([over_N, outcome.diverged, outcome.left_out]))
        self._condition[over] = _ENDED
        newly = left_out & ~self._left_out
        self._left_out |= left_out
        for group, places in groups:
            if newly[places.rows].any():
                group.batch.worlds.warn()
        for row in np.flatnonzero(diverged).tolist():
            self._say_diverged(self._task_of[row])
        return {"contacts_left_out": float(newly.sum()), "worlds_diverged": float(diverged.sum())}

    def _say_diverged(self, task: int) -> None:
        if task not in self._unstable:
            self._unstable.add(task)
            log.warning(
                "task %s: the physics of a world diverged (positions or velocities that are no numbers, or beyond 1e10); its episode "
                "ended as a failure. Metric sim/worlds_diverged counts them; this is said once a task",
                self.spec.tasks[task].name,
            )

    def _check_step(self, chunk: Tensor, active_N: np.ndarray) -> None:
        check_shapes(chunk, active_N, self._rows, "3 position, 3 rotation, 1 gripper", self.spec.action_dim)
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
        """Give the memory of worlds, pictures and programs back; compiled scenes, too."""
        self._groups.close()
        self._images = {}
        self._condition[:] = _EMPTY

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def _look(self, group: Group, places: _Places) -> None:
        """Take new pictures of some rows of a group, and read their state."""
        for name, pictures in group.batch.draw().items():
            self._images[name][places.row_n] = pictures[places.world_n]
        self._state[places.row_n] = group.batch.state()[places.world_n]

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

    def _observation(self, rows: Sequence[int] | None = None) -> Observation:
        """Return what some rows show; None: all."""
        if rows is None:
            chosen: Any = slice(None)
            rows = range(self._rows)
        else:
            chosen = self._uploaded(list(rows))
        return Observation(
            images={name: pictures[chosen] for name, pictures in self._images.items()},
            state=self._state[chosen],
            instruction=[self.spec.tasks[self._task_of[row]].instruction for row in rows],
        )

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = [int(row) for row in rows]

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        states = []
        steps = self._steps.tolist()
        for row in checked_rows(rows, self._rows):
            if self._condition[row] == _EMPTY:
                raise SimulatorError(f"row {row} was never reset: there is no episode to save")
            group = self._groups.of(row)
            with group.batch.worlds.turn():
                (begun,) = group.batch.saved([group.world_of(row)])
            counters = np.array([self._task_of[row], steps[row], self._condition[row]], np.int64)
            states.append({"counters": counters, **begun.arrays()})
        return states

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        if not (rows := checked_rows(rows, self._rows)):
            return self._observation(rows)
        if len(rows) != len(states):
            raise ValueError(f"got {len(rows)} rows and {len(states)} states, wanted one of each a row")
        tasks, steps, conditions = np.stack([one["counters"] for one in states]).T.tolist()
        for task in tasks:
            self._files.check_task(task)
        self._begin(rows, tasks, [Begun.from_arrays(one) for one in states].__getitem__)
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
