"""Files of seeds that a task is known to be solvable for: ``{task: {"task_name": task, "success_seeds": [...]}}``.

Source of the format: ``seeds/train_seeds.json`` and ``seeds/eval_seeds.json`` of RLinf's RoboTwin recipes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from rlvla.errors import ConfigError

LIMIT = 2**32
"""numpy's generator takes seeds below it."""
_FORMAT = '{"TASK": {"task_name": "TASK", "success_seeds": [3, 8, ...]}}'


def read(path: str, task: str) -> tuple[int, ...]:
    """Return a task's seeds, in the file's order.

    Raises:
        ConfigError: no such file, not of this format, without the task, or with seeds that are none.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"seeds_path: {path}: no such file; wanted JSON like {_FORMAT}")
    return _read(str(file.absolute()), file.stat().st_mtime_ns, task)


@lru_cache(maxsize=8)
def _read(path: str, changed: int, task: str) -> tuple[int, ...]:
    try:
        data = json.loads(Path(path).read_text())
    except (ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"seeds_path: {path}: not JSON: {error}; wanted {_FORMAT}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"seeds_path: {path}: got a {type(data).__name__}, wanted {_FORMAT}")
    if task not in data:
        there = ", ".join(sorted(map(str, data))) or "none"
        raise ConfigError(f"seeds_path: {path}: no seeds for {task!r}; it has: {there}")
    one = data[task]
    if not isinstance(one, dict) or not isinstance(one.get("success_seeds"), list):
        raise ConfigError(f"seeds_path: {path}: {task}: got {str(one)[:60]}, wanted {_FORMAT}")
    if one.get("task_name", task) != task:
        raise ConfigError(f"seeds_path: {path}: {task}: its task_name is {one['task_name']!r}: seeds of another task")
    return _checked(one["success_seeds"], f"seeds_path: {path}: {task}")


def _checked(found: list[object], where: str) -> tuple[int, ...]:
    wrong = [seed for seed in found if type(seed) is not int or not 0 <= seed < LIMIT]
    if wrong:
        raise ConfigError(f"{where}: got {wrong[:5]} among its seeds, wanted whole numbers from 0 to {LIMIT - 1}")
    seeds = tuple(seed for seed in found if isinstance(seed, int))
    if not seeds:
        raise ConfigError(f"{where}: success_seeds is empty, wanted one or more")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where}: {len(seeds) - len(set(seeds))} seeds come twice: wanted each once")
    return seeds
