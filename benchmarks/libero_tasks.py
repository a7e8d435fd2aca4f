"""Reset and step every LIBERO task without rendering, and compare with LIBERO's own environment bit for bit.

    python benchmarks/libero_tasks.py --machine "2-core x86-64 CPU" --out benchmarks/results/libero_tasks.json

For each of the 130 tasks: it builds; stored initial state 0 fits; nothing is solved at the start; the fast path gives the
same joint positions and velocities as LIBERO's own reset and steps; a reset after another episode gives the same bits as
the first; a saved episode continues with the same bits.
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
from rlvla_sim_libero.scene import Scene, StockScene  # noqa: E402

log = logging.getLogger("libero_tasks")


def look_at(task: Task, steps: int, settle_steps: int) -> dict[str, Any]:
    """Return what is true of one task."""
    began = time.process_time()
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        states = file["states"]
    scene = Scene(startup.task_file(task))
    build_s = time.process_time() - began
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 7))
    seed = 12345

    def run(one: Scene) -> list[np.ndarray]:
        one.reset(seed, states[0], settle_steps)
        seen = [one.model.body_pos.copy(), one.data.qpos.copy()]
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
    scene.close()
    stock = StockScene(startup.task_file(task), [], 16)
    reference = run(stock)
    began = time.process_time()
    for action in actions:
        stock.step(action)
    stock_step_ms = (time.process_time() - began) / steps * 1e3
    stock.close()

    def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

    return {
        "suite": task.suite,
        "task": task.name,
        "states": len(states),
        "solved_at_start": solved_at_start,
        "equals_stock": same(first, reference),
        "reset_repeats": same(first, again),
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
        **{key: sum(row[key] for row in whole) for key in ("equals_stock", "reset_repeats", "restores")},
        "step_cpu_ms_median": float(np.median([row["step_cpu_ms"] for row in whole])),
        "stock_step_cpu_ms_median": float(np.median([row["stock_step_cpu_ms"] for row in whole])),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if len(whole) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
