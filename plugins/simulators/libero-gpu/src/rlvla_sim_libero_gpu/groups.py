"""Which world each row is: worlds of one task are batches of one compiled model.

A batch has a fixed number of worlds, and stepping few takes nearly as long as stepping many, so a task is to have few batches. Its
first has room for the rows that it will have by chance; where it runs out, the next has as many worlds again. Rows that begin are
packed into the batch that has most, so others run empty. Those are kept, of any task, for rows that come, up to as many worlds as
there are rows; the one that was left longest ago goes first. Where memory is short, no world is made for rows to come.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlvla.mujoco_warp.room import NoRoom
from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero_gpu import LiberoGpuConfig
from rlvla_sim_libero_gpu.batch import Batch
from rlvla_sim_libero_gpu.starts import Begun, Starts

Make = Callable[[Scene, Begun, int], Batch]
_DEVIATIONS = 3.0
"""Of the number of rows that a task has when each row draws its own: so many beyond the mean have a world in its first batch."""


def expected(rows: int, tasks: int) -> int:
    """Return how many of the rows one of the tasks will hardly ever exceed, if each row draws its task."""
    share = rows / tasks
    return min(rows, math.ceil(share + _DEVIATIONS * math.sqrt(share * (1 - 1 / tasks))))


@dataclass(eq=False)
class Group:
    """A batch and the rows in it."""

    batch: Batch
    rows: dict[int, int] = field(default_factory=dict)
    """Row to world."""

    left: int = 0
    """When a row was placed or left here last, in calls of :meth:`Groups.place`."""

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

    def worlds(self) -> int:
        return sum(group.batch.count for group in self.groups)


class Groups:
    """Tasks by number, the one that was left first first.

    Args:
        compiled: compiles a task.
        make: a batch of a task, waiting at a start, with so many worlds.
        config: how many tasks are kept that no row runs.
        rows: that there are.
        tasks: that there are.
    """

    def __init__(
        self,
        compiled: Callable[[int], tuple[Scene, Starts]],
        make: Make,
        config: LiberoGpuConfig,
        rows: int,
        tasks: int,
    ) -> None:
        self._compiled, self._make, self._kept, self._rows = compiled, make, config.kept_tasks, rows
        self._least = expected(rows, tasks)
        self._tasks: OrderedDict[int, _Task] = OrderedDict()
        self._of: dict[int, Group] = {}
        self._now = 0
        self._spares = True
        """Worlds are made for rows to come, too."""

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

    def place(
        self, rows: Sequence[int], tasks: Sequence[int], begun: Callable[[int], Begun]
    ) -> list[tuple[Group, int]]:
        """Let rows run tasks, where they are about to begin; returns group and world of each.

        Args:
            rows: numbers.
            tasks: of each.
            begun: returns where the row at a place of ``rows`` begins; asked for worlds that have to be made, so what does not fit
                shows before all are drawn.

        Raises:
            NoRoom: not even for as many worlds as rows, when everything that is idle has gone.
        """
        self._now += 1
        for task in tasks:
            self.prepare(task)
        try:
            self._seat(rows, tasks, begun)
        except NoRoom:
            if not self._spares:
                raise
            self._spares = False
            for row in rows:  # also from batches that were just made
                self._leave(row)
            self._drop_batches(0)
            self._seat(rows, tasks, begun)
        self._drop_tasks()
        self._drop_batches(self._rows)
        return [(self._of[row], self._of[row].rows[row]) for row in rows]

    def _seat(self, rows: Sequence[int], tasks: Sequence[int], begun: Callable[[int], Begun]) -> None:
        for row in rows:
            self._leave(row)
        for task in dict.fromkeys(tasks):
            mine = [number for number, one in enumerate(tasks) if one == task]
            self._settle(self._tasks[task], [rows[number] for number in mine], lambda first=mine[0]: begun(first))
            self._tasks.move_to_end(task)

    def _leave(self, row: int) -> None:
        if group := self._of.pop(row, None):
            del group.rows[row]
            group.left = self._now

    def _settle(self, task: _Task, rows: list[int], first: Callable[[], Begun]) -> None:
        """Give rows worlds of a task, those of the batch with most rows first, and make those that are missing."""
        missing = len(rows) - sum(len(group.free()) for group in task.groups)
        if missing > 0:
            task.groups.append(Group(self._made(task, first(), missing)))
        packed = sorted(task.groups, key=lambda group: (-len(group.rows), -group.batch.count))
        free = [(group, world) for group in packed for world in group.free()]
        for row, (group, world) in zip(rows, free, strict=False):
            group.rows[row], group.left = world, self._now
            self._of[row] = group

    def _made(self, task: _Task, first: Begun, missing: int) -> Batch:
        """Return a batch with the worlds that are missing and some for rows to come, where there is room for those."""
        there, wanted = task.worlds(), missing
        if self._spares:
            wanted = min(max(missing, self._least, there), max(missing, self._rows - there))
        try:
            return self._make(task.scene, first, wanted)
        except NoRoom:
            self._drop_batches(0)
        try:
            return self._make(task.scene, first, missing)
        except NoRoom as error:
            batches = [group.batch for one in self._tasks.values() for group in one.groups]
            held = sum(batch.count for batch in batches)
            raise NoRoom(
                f"{error}. {held} worlds of {len(batches)} batches are there already, for {len(self._of)} of {self._rows} "
                "environments: a slot of fewer environments, or of fewer tasks, takes less"
            ) from error

    def _drop_tasks(self) -> None:
        """Close all but the last ``kept_tasks`` tasks that no row runs."""
        idle = [number for number, task in self._tasks.items() if task.is_idle()]
        for number in idle[: max(0, len(idle) - self._kept)]:
            self._close(self._tasks.pop(number))

    def _drop_batches(self, kept: int) -> None:
        """Close the batches without rows that were left longest ago, until those that stay have no more worlds than ``kept``."""
        idle = [(group.left, task, group) for task in self._tasks.values() for group in task.groups if not group.rows]
        for _, task, group in sorted(idle, key=lambda one: -one[0]):
            kept -= group.batch.count
            if kept < 0:
                task.groups.remove(group)
                group.batch.close()

    @staticmethod
    def _close(task: _Task) -> None:
        for group in task.groups:
            group.batch.close()
        task.scene.close()

    def close(self) -> None:
        """Close all of them, whoever runs them."""
        for task in self._tasks.values():
            self._close(task)
        self._tasks.clear()
        self._of.clear()
