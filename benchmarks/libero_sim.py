"""CPU time of an env step: LIBERO's own environment drawing at every step, against chunks that are drawn once.

    python benchmarks/libero_sim.py --machine "2-core x86-64 CPU" --out benchmarks/results/libero_sim.json

CPU time is summed over all threads of the process (software rendering has several), so a busy machine does not change
it much. Both run the same task, initial state and actions, and end at the same joint positions bit for bit (checked).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rlvla.specs import Start
from rlvla_sim_libero import LiberoConfig
from rlvla_sim_libero.simulator import LiberoSimulator

CHUNK = 8


def measure(suite: str, task: int, chunks: int, *, stock: bool) -> dict[str, Any]:
    """Return CPU milliseconds of a reset and of an env step, after one chunk of warm-up."""
    config = LiberoConfig(suite=suite, tasks=(task,), image_size=256, stock_path=stock)  # type: ignore[arg-type]
    simulator = LiberoSimulator(config, rows=1)
    actions = np.random.default_rng(0).uniform(-1, 1, (chunks + 1, 1, CHUNK, 7)).astype(np.float32)
    active = np.array([True])
    simulator.reset([0], [0], [Start(0, 0)])
    simulator.step(actions[0], active)
    began = time.process_time()
    simulator.reset([0], [1], [Start(0, 1)])
    reset_ms = (time.process_time() - began) * 1e3
    steps = 0
    began = time.process_time()
    for chunk in actions[1:]:
        # LIBERO's own loop draws at every step whatever the length of the chunk.
        steps += int(simulator.step(chunk, active).valid.sum())
    step_ms = (time.process_time() - began) / steps * 1e3
    scene = simulator._scenes[0]
    assert scene is not None, "the row was reset"
    qpos = scene.data.qpos.copy()
    versions = simulator.versions()
    simulator.close()
    return {"step_ms": step_ms, "reset_ms": reset_ms, "steps": steps, "qpos": qpos, "versions": versions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what the result says it was measured on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=5, help="of 8 actions each")
    options = parser.parse_args()
    rows = []
    versions: dict[str, str] = {}
    for suite, task in (("libero_spatial", 0), ("libero_10", 0)):
        stock = measure(suite, task, options.chunks, stock=True)
        ours = measure(suite, task, options.chunks, stock=False)
        versions = ours["versions"]
        rows.append(
            {
                "suite": suite,
                "task": task,
                "steps": ours["steps"],
                "same_qpos": bool(np.array_equal(stock["qpos"], ours["qpos"])),
                "stock_step_cpu_ms": round(stock["step_ms"], 1),
                "step_cpu_ms": round(ours["step_ms"], 1),
                "step_ratio": round(stock["step_ms"] / ours["step_ms"], 2),
                "stock_reset_cpu_ms": round(stock["reset_ms"]),
                "reset_cpu_ms": round(ours["reset_ms"]),
                "reset_ratio": round(stock["reset_ms"] / ours["reset_ms"], 2),
            }
        )
        sys.stdout.write(f"{rows[-1]}\n")
    result = {
        "machine": options.machine,
        "chunk": CHUNK,
        "pictures": "two of 256x256",
        "versions": versions,
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
