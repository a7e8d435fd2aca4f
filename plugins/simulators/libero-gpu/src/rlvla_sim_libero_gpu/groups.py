"""Which world each row is: worlds of one task are batches of one compiled model.

A batch has a fixed number of worlds. Rows that come to a task take its free worlds first; for those that find none another
batch is made, of as many worlds as rows are looking for one, so rows that are reset together run together. Batches in which
no row is any more are kept for their task, and go with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero_gpu import LiberoGpuConfig
from rlvla_sim_libero_gpu.batch import Batch
from rlvla_sim_libero_gpu.starts import Begun, Starts

Make = Callable[[Scene, Begun, int], Batch]


@dataclass
class Group:
    """A batch and the rows in it."""

    batch: Batch
    rows: dict[int, int] = field(default_factory=dict)
    """Row to world."""

    def world_of(self, row: int) -> int:
        """Return the world of a row that is here."""
        return self.rows[row]

    def free(self) -> list[int]:
        """Return worlds that no row has."""
        taken = set(self.rows.values())
        return [world for world in range(self.batch.count) if world not in taken]


@dataclass
class _Task:
    scene: Scene
    starts: Starts
    groups: list[Group] = field(default_factory=list)

    def is_idle(self) -> bool:
        return not any(group.rows for group in self.groups)


class Groups:
    """Tasks by number, the one that was left first first.

    Args:
        compiled: compiles a task.
        make: a batch of a task, waiting at a start, with so many worlds.
        config: how many tasks are kept that no row runs.
    """

    def __init__(self, compiled: Callable[[int], tuple[Scene, Starts]], make: Make, config: LiberoGpuConfig) -> None:
        self._compiled, self._make, self._kept = compiled, make, config.kept_tasks
        self._tasks: OrderedDict[int, _Task] = OrderedDict()
        self._of: dict[int, Group] = {}

    def prepare(self, task: int) -> None:
        """Compile a task, unless it is there."""
        if task not in self._tasks:
            self._tasks[task] = _Task(*self._compiled(task))

    def starts(self, task: int) -> Starts:
        """Return the starts of a task."""
        self.prepare(task)
        return self._tasks[task].starts

    def of(self, row: int) -> Group:
        """Return where a row is that was reset."""
        return self._of[row]

    def running(self, rows: Sequence[int]) -> list[tuple[Group, list[int]]]:
        """Return each group that some rows are in, with those."""
        found: dict[int, tuple[Group, list[int]]] = {}
        for row in rows:
            group = self._of[row]
            found.setdefault(id(group), (group, []))[1].append(row)
        return list(found.values())

    def place(self, rows: Sequence[int], tasks: Sequence[int], begun: Sequence[Begun]) -> list[tuple[Group, int]]:
        """Let rows run tasks, where they are about to begin; returns group and world of each."""
        for row, task in zip(rows, tasks, strict=True):
            self.prepare(task)
            if row in self._of and self._of[row] not in self._tasks[task].groups:
                del self._of[row].rows[row]
                del self._of[row]
        for task in dict.fromkeys(tasks):
            looking = [number for number, one in enumerate(tasks) if one == task and rows[number] not in self._of]
            self._settle(self._tasks[task], [rows[number] for number in looking], [begun[number] for number in looking])
            self._tasks.move_to_end(task)
        self._drop()
        return [(self._of[row], self._of[row].rows[row]) for row in rows]

    def _settle(self, task: _Task, rows: list[int], begun: Sequence[Begun]) -> None:
        """Give rows free worlds of a task, and make those that are missing."""
        free = [(group, world) for group in task.groups for world in group.free()]
        if len(rows) > len(free):
            group = Group(self._make(task.scene, begun[0], len(rows) - len(free)))
            task.groups.append(group)
            free += [(group, world) for world in group.free()]
        for row, (group, world) in zip(rows, free, strict=False):
            group.rows[row] = world
            self._of[row] = group

    def _drop(self) -> None:
        """Close all but the last ``kept_tasks`` tasks that no row runs."""
        idle = [number for number, task in self._tasks.items() if task.is_idle()]
        for number in idle[: max(0, len(idle) - self._kept)]:
            self._tasks.pop(number).scene.close()

    def close(self) -> None:
        """Close all of them, whoever runs them."""
        for task in self._tasks.values():
            task.scene.close()
        self._tasks.clear()
        self._of.clear()
