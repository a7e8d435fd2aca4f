"""Reset and step every LIBERO task without rendering, and compare with LIBERO's own environment bit for bit.

    python benchmarks/libero_tasks.py --machine "2-core x86-64 CPU" --out benchmarks/results/libero_tasks.json

For each of the 130 tasks: it builds; stored initial state 0 fits; nothing is solved at the start; the fast path gives the
same fixtures, joint positions and velocities as the first episode of a new upstream environment (``ControlEnv``, the class of
``OffScreenRenderEnv``, made, seeded, reset, set to the stored state and stepped: ``equals_upstream``; also its scene as drawn
from the seed: ``draws_as_upstream``) and as ``stock_path`` (``equals_stock``); a reset after another episode gives the same
bits as the first; a saved episode continues with the same bits. ``initializers`` counts the drawers and stoves that a task
file opens or lights.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rlvla_sim_libero import startup
from rlvla_sim_libero.tasks import SUITES, Task

startup.import_libero()
from rlvla_sim_libero.scene import OPEN_AND_WAIT, Scene, StockScene  # noqa: E402

log = logging.getLogger("libero_tasks")

Seen = list[np.ndarray]
_CLAIMS = ("draws_as_upstream", "equals_upstream", "equals_stock", "reset_repeats", "restores")


def _same(one: Seen, other: Seen) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _fixtures(model: Any) -> Seen:
    return [model.body_pos.copy(), model.body_quat.copy()]


def _upstream(task: Task, seed: int, state: np.ndarray, actions: np.ndarray, settle_steps: int) -> tuple[Seen, Seen]:
    """Return what the first reset of a new upstream environment draws, and its episode from a stored state."""
    from libero.libero.envs.env_wrapper import ControlEnv

    with startup.quiet():
        env = ControlEnv(str(startup.task_file(task)), has_offscreen_renderer=False, use_camera_obs=False)
        env.seed(seed)
        env.reset()
        model, data = env.sim.model._model, env.sim.data._data
        drawn = [*_fixtures(model), data.qpos.copy()]
        env.set_init_state(state)
        for _ in range(settle_steps):
            env.step(OPEN_AND_WAIT)
        seen = [*_fixtures(model), data.qpos.copy()]
        for action in actions:
            env.step(action)
            seen += [data.qpos.copy(), data.qvel.copy()]
        env.close()
    return drawn, seen


def look_at(task: Task, steps: int, settle_steps: int) -> dict[str, Any]:
    """Return what is true of one task."""
    began = time.process_time()
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        states = file["states"]
    scene = Scene(startup.task_file(task))
    build_s = time.process_time() - began
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 7))
    seed = 12345

    def run(one: Scene) -> Seen:
        one.reset(seed, states[0], settle_steps)
        seen = [*_fixtures(one.model), one.data.qpos.copy()]
        for action in actions:
            one.step(action)
            seen += [one.data.qpos.copy(), one.data.qvel.copy()]
        return seen

    scene.reset(seed, states[0], settle_steps)
    solved_at_start = scene.is_solved()
    first = run(scene)
    scene.reset(seed + 1, states[1], settle_steps)
    for action in actions:
        scene.step(action)
    again = run(scene)
    saved = scene.save()
    began = time.process_time()
    for action in actions:
        scene.step(action)
    step_ms = (time.process_time() - began) / steps * 1e3
    ahead = scene.data.qpos.copy()
    scene.restore(saved)
    for action in actions:
        scene.step(action)
    restored = np.array_equal(scene.data.qpos, ahead)
    scene._draw(seed)
    drawn, upstream = _upstream(task, seed, states[0], actions, settle_steps)
    draws_as_upstream = _same([*_fixtures(scene.model), scene.data.qpos], drawn)
    initializers = len(scene._initializers)
    scene.close()
    stock = StockScene(startup.task_file(task), [], 16)
    reference = run(stock)
    began = time.process_time()
    for action in actions:
        stock.step(action)
    stock_step_ms = (time.process_time() - began) / steps * 1e3
    stock.close()

    return {
        "suite": task.suite,
        "task": task.name,
        "states": len(states),
        "solved_at_start": solved_at_start,
        "initializers": initializers,
        "draws_as_upstream": draws_as_upstream,
        "equals_upstream": _same(first, upstream),
        "equals_stock": _same(first, reference),
        "reset_repeats": _same(first, again),
        "restores": restored,
        "build_cpu_s": round(build_s, 2),
        "step_cpu_ms": round(step_ms, 2),
        "stock_step_cpu_ms": round(stock_step_ms, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what the result says it was measured on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--settle-steps", type=int, default=10)
    parser.add_argument("--tasks", type=int, nargs="*", help="numbers in libero_130; all if left out")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tasks = SUITES["libero_130"]
    rows = []
    for number in options.tasks if options.tasks else range(len(tasks)):
        try:
            rows.append(look_at(tasks[number], options.steps, options.settle_steps))
        except Exception as error:
            rows.append(
                {"suite": tasks[number].suite, "task": tasks[number].name, "error": f"{type(error).__name__}: {error}"}
            )
        log.info("%d/%d %s", len(rows), len(tasks), rows[-1])
    whole = [row for row in rows if "error" not in row]
    result = {
        "machine": options.machine,
        "versions": {name: startup.version(name) for name in startup.PINS},
        "steps": options.steps,
        "settle_steps": options.settle_steps,
        "tasks": len(rows),
        "built": len(whole),
        "solved_at_start": sum(row["solved_at_start"] for row in whole),
        "tasks_with_initializers": sum(row["initializers"] > 0 for row in whole),
        **{key: sum(row[key] for row in whole) for key in _CLAIMS},
        "step_cpu_ms_median": float(np.median([row["step_cpu_ms"] for row in whole])),
        "stock_step_cpu_ms_median": float(np.median([row["stock_step_cpu_ms"] for row in whole])),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if len(whole) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
