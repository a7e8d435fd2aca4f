"""The compiled tasks of one process: built once for all rows that run them, kept a while when the last one leaves.

Building costs a compile (0.4 s) and, of the first task of a look, an upload of meshes and textures to a GL context (1 s in
software rendering); coming back to a task that was kept costs neither.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlvla_sim_libero.renderer import Renderer, Renderers
from rlvla_sim_libero.scene import Episode, Scene


@dataclass
class Built:
    """A compiled task and who draws it, known when the first picture is drawn."""

    scene: Scene
    renderers: Renderers
    rows: int = 0
    """Rows that run it."""
    _drawn_by: tuple[bytes, Renderer] | None = None

    @property
    def renderer(self) -> Renderer:
        if self._drawn_by is None:
            self._drawn_by = self.renderers.lend(self.scene.model)
        return self._drawn_by[1]

    def close(self) -> None:
        self.scene.close()
        if self._drawn_by is not None:
            self.renderers.give_back(self._drawn_by[0])
            self._drawn_by = None


class BuiltTasks:
    """Tasks by number, least recently left first.

    Args:
        build: compiles a task.
        size: of pictures, in pixels.
        kept: compiled tasks to keep that no row runs.
    """

    def __init__(self, build: Callable[[int], Scene], size: int, kept: int) -> None:
        self._build = build
        self._renderers = Renderers(size)
        self._kept = kept
        self._tasks: OrderedDict[int, Built] = OrderedDict()
        self.builds = 0
        """Tasks compiled so far."""

    def __len__(self) -> int:
        return len(self._tasks)

    def lend(self, task: int) -> tuple[Built, Episode]:
        """Return a compiled task, and an environment of it for one more row."""
        if task in self._tasks:
            self._tasks[task].rows += 1
        self.drop(self._kept)  # before another one is built: there is never more than that in memory
        if task not in self._tasks:
            self._tasks[task] = Built(self._build(task), self._renderers, rows=1)
            self.builds += 1
        built = self._tasks[task]
        return built, built.scene.lend()

    def prepare(self, tasks: Sequence[int]) -> None:
        """Compile tasks that rows will soon change to, as many as may be kept; nothing else is held for them."""
        missing = [task for task in tasks if task not in self._tasks]
        for task in tasks:
            if task in self._tasks:
                self._tasks.move_to_end(task)  # kept longest
        for task in missing[: max(0, self._kept - (len(tasks) - len(missing)))]:
            self.drop(self._kept - 1)
            self._tasks[task] = Built(self._build(task), self._renderers)
            self.builds += 1
            _ = self._tasks[task].renderer

    def give_back(self, task: int, episode: Episode) -> None:
        """Take a row's environment back; call :meth:`lend` for the row's next task afterwards."""
        built = self._tasks[task]
        built.rows -= 1
        built.scene.give_back(episode)
        self._tasks.move_to_end(task)

    def drop(self, kept: int) -> None:
        """Close all but the last ``kept`` tasks that no row runs."""
        idle = [task for task, built in self._tasks.items() if built.rows == 0]
        for task in idle[: max(0, len(idle) - kept)]:
            self._tasks.pop(task).close()

    def close(self) -> None:
        """Close all of them, whoever runs them."""
        for built in self._tasks.values():
            built.close()
        self._tasks.clear()
