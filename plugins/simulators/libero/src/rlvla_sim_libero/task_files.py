"""The files of the tasks that a simulator offers: where they are, and their stored initial states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlvla.errors import SimulatorError
from rlvla.specs import Start, TaskSpec
from rlvla_sim_libero import LiberoTasks, published, startup
from rlvla_sim_libero.task_file import read_task_file
from rlvla_sim_libero.task_names import WORKSPACES, not_there


class TaskFiles:
    """Files of the tasks of a configuration, by task number."""

    def __init__(self, config: LiberoTasks, tasks: Sequence[TaskSpec]) -> None:
        self._own = config.bddl_file
        self._tasks = tasks
        self._published = published(config)
        self._stored: dict[int, np.ndarray] = {}

    def check(self) -> None:
        """Look whether everything is there.

        Raises:
            SimulatorError: a file is missing; says what to do.
        """
        startup.assets_folder()
        for task in range(len(self._tasks)):
            self.bddl(task)
        if self._own is not None:
            self._check_categories(self._own)

    def _check_categories(self, path: str) -> None:
        """Look whether LIBERO has what a task file calls its objects and fixtures."""
        from libero.libero.envs.objects import OBJECTS_DICT

        categories = read_task_file(path).categories
        unknown = {name: what for name, what in categories.items() if what not in {*OBJECTS_DICT, *WORKSPACES}}
        problems = [not_there(f"kind of object ({name})", what, OBJECTS_DICT) for name, what in unknown.items()]
        if problems:
            raise SimulatorError("\n".join(f"{path}: {problem}" for problem in problems))

    def bddl(self, task: int) -> Path:
        """Return a task's BDDL file."""
        return startup.task_file(self._published[task]) if self._own is None else Path(self._own).expanduser()

    def check_task(self, task: int) -> None:
        """Refuse a number that no task has."""
        if not 0 <= task < len(self._tasks):
            raise SimulatorError(f"task {task} does not exist: wanted a number from 0 to {len(self._tasks) - 1}")

    def stored(self, start: Start) -> np.ndarray | None:
        """Return the numbers of a stored initial state; None where the scene is drawn from the seed."""
        self.check_task(start.task)
        if start.state is None:
            return None
        task = self._tasks[start.task]
        if not 0 <= start.state < task.initial_states:
            wanted = (
                f"a number from 0 to {task.initial_states - 1}"
                if task.initial_states
                else "None, since its scenes are drawn from the seed"
            )
            raise SimulatorError(f"initial state {start.state} of {task.name} does not exist: wanted {wanted}")
        if start.task not in self._stored:
            with np.load(startup.states_file(self._published[start.task]), allow_pickle=False) as file:
                self._stored[start.task] = np.asarray(file["states"], dtype=np.float64)
        state: np.ndarray = self._stored[start.task][start.state]
        return state
