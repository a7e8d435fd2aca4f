"""How many batches and worlds there are when rows come and go, and which are closed. Batches that count, no physics."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from libero_gpu_world import needs_warp

pytestmark = needs_warp


@dataclass(eq=False)
class Counted:
    """A batch, or a scene, that is only counted."""

    count: int = 0
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Tables:
    """Rows whose episodes last 8 to 27 chunks and then go on with any task, or with the same one for some episodes."""

    rows: int
    tasks: int
    episodes: int = 1
    kept: int = 16
    room: int = 10**6
    """Worlds that fit."""
    made: list[Counted] = field(default_factory=list)

    def __post_init__(self) -> None:
        from rlvla_sim_libero_gpu.groups import Groups

        config: Any = SimpleNamespace(kept_tasks=self.kept)
        compiled: Any = lambda task: (Counted(), None)  # noqa: E731
        self.groups = Groups(compiled, self._batch, config, self.rows, self.tasks)
        self._random = random.Random(0)
        self._task = [self._random.randrange(self.tasks) for _ in range(self.rows)]
        self._left = [self._random.randint(8, 27) for _ in range(self.rows)]
        self._played = [0] * self.rows

    def _batch(self, scene: Any, first: Any, count: int) -> Any:
        from rlvla.mujoco_warp.room import NoRoom

        if self.held() + count > self.room:
            raise NoRoom(f"{count} worlds do not fit")
        self.made.append(Counted(count))
        return self.made[-1]

    def held(self) -> int:
        return sum(batch.count for batch in self.made if not batch.closed)

    def place(self, rows: list[int], tasks: list[int]) -> None:
        begun: Any = lambda place: None  # noqa: E731
        places = self.groups.place(rows, tasks, begun)
        assert [group.rows[row] for row, (group, _) in zip(rows, places, strict=True)] == [at for _, at in places]
        assert not any(group.batch.closed for group, _ in places)

    def chunk(self) -> int:
        """Play a chunk; returns how many batches were stepped."""
        running = self.groups.running(range(self.rows))
        places = [(id(group), group.world_of(row)) for group, rows in running for row in rows]
        assert len(set(places)) == self.rows, "two rows in one world"
        over = []
        for row in range(self.rows):
            self._left[row] -= 1
            if not self._left[row]:
                over.append(row)
                self._left[row] = self._random.randint(8, 27)
                self._played[row] += 1
                if self._played[row] % self.episodes == 0:
                    self._task[row] = self._random.randrange(self.tasks)
        if over:
            self.place(over, [self._task[row] for row in over])
        return len(running)

    def run(self, chunks: int) -> float:
        """Play; returns batches stepped in a chunk."""
        self.place(list(range(self.rows)), self._task)
        return sum(self.chunk() for _ in range(chunks)) / chunks


@pytest.mark.parametrize(
    ("rows", "tasks", "episodes", "stepped", "worlds", "made"),
    [
        (256, 10, 1, 10.5, 700, 20),  # 36.9 batches a chunk where each has as many worlds as rows looked for one
        (256, 10, 8, 10.5, 500, 15),  # 43.0
        (256, 90, 1, 87, 960, 160),  # 232.8; 86 tasks have rows
        (64, 10, 1, 10.5, 170, 15),  # 25.8
    ],
)
def test_a_task_has_few_batches(rows: int, tasks: int, episodes: int, stepped: float, worlds: int, made: int) -> None:
    tables = Tables(rows, tasks, episodes)
    assert tables.run(1000) <= stepped
    assert tables.held() <= worlds
    assert len(tables.made) <= made


def test_rows_that_all_change_their_task_leave_no_more_idle_worlds_than_rows() -> None:
    tables = Tables(32, 8)
    for task in range(8):
        tables.place(list(range(32)), [task] * 32)
        assert len(tables.groups.running(range(32))) == 1
        assert tables.held() <= 2 * 32


def test_rows_that_begin_go_where_most_are_so_others_run_empty() -> None:
    tables = Tables(12, 1)
    tables.place([0, 1], [0, 0])
    assert [batch.count for batch in tables.made] == [12], "one task: all rows may come"
    tables = Tables(40, 10)
    tables.place(list(range(30)), [0] * 30)
    tables.place(list(range(30, 40)), [0] * 10)
    assert [batch.count for batch in tables.made] == [30, 10], "no task has more worlds than there are rows"
    tables.place(list(range(20)), [1] * 20)
    tables.place(list(range(30, 40)), [0] * 10)  # these begin anew
    running = tables.groups.running(range(20, 40))
    assert len(running) == 1 and running[0][0].batch.count == 30


def test_where_there_is_no_room_idle_batches_go_and_rows_get_what_they_need() -> None:
    tables = Tables(40, 10, room=60)
    tables.place(list(range(40)), [0] * 40)
    with pytest.raises(Exception, match="worlds do not fit"):
        tables.place(list(range(30)), [1] * 30)
    tables.place(list(range(40)), [2] * 20 + [3] * 20)
    assert tables.held() <= 60 and tables.made[0].closed


def test_worlds_for_rows_to_come_take_no_room_that_rows_need() -> None:
    tables = Tables(40, 4, room=41)
    tables.place(list(range(40)), [row % 4 for row in range(40)])
    assert tables.held() == 40, "as many worlds as rows, though each task would have had some to spare"
    made = len(tables.made)
    tables.place(list(range(40)), [row % 4 for row in range(40)])
    assert len(tables.made) == made, "rows that begin their task again stay where they are"


def test_what_does_not_fit_says_what_is_there() -> None:
    with pytest.raises(Exception, match=r"10 worlds do not fit. 30 worlds of 3 batches are there .* 30 of 40 env"):
        Tables(40, 4, room=39).place(list(range(40)), [row % 4 for row in range(40)])


def test_tasks_that_are_kept_no_more_close_their_batches() -> None:
    tables = Tables(4, 4, kept=0)
    tables.place([0, 1, 2, 3], [0] * 4)
    tables.place([0, 1, 2, 3], [1] * 4)
    assert [batch.closed for batch in tables.made] == [True, False]
    tables.groups.close()
    assert all(batch.closed for batch in tables.made)
