"""Does a run work with generator and trainer on a GPU: learning, precision, equality of both, resume.

    python benchmarks/gpu_check.py [--output benchmarks/results/gpu_check.json]

Real tabletop rendering where MuJoCo can render, else the fake simulator; skips nothing silently.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rlvla
from rlvla.configs import read_file

HERE = Path(__file__).parent
RECIPE = HERE.parent / "examples" / "tiny_tabletop_ppo_sync_cpu.py"


def measure(folder: Path, name: str, steps: int, **changes: Any) -> dict[str, Any]:
    """Train the quickstart with changes; returns what it reached and how fast."""
    recipe = read_file(RECIPE)
    recipe["run"] |= {
        "directory": str(folder),
        "name": name,
        "steps": steps,
        "without": ["tensorboard", "display", "report"],
    }
    for section, options in changes.items():
        recipe[section] = {**recipe[section], **options}
    with rlvla.build(**recipe) as run:
        began = time.perf_counter()
        plan = run.plan()
        run.train()
        seconds = time.perf_counter() - began
        success = run.evaluate(episodes=256).success
        lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if "env_steps" in line]
    half = metrics[len(metrics) // 2 :]

    def median(key: str) -> float:
        return float(np.median([one[key] for one in half]))

    return {
        "success": success,
        "seconds": round(seconds, 1),
        "plan": plan.splitlines()[1],
        "env_steps_per_second": round(median("env_steps_per_second")),
        "phase_seconds": {
            key: round(median(f"time/{key}_s"), 4) for key in ("reset", "generate", "simulate", "train", "publish")
        },
        "generator_gap_max": max(one["train/generator_gap"] for one in metrics),
    }


def main() -> None:
    """Run on the GPU in fp32 and bf16, and resume."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "gpu_check.json")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "machine": f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores",
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found["fp32"] = measure(folder, "fp32", options.steps, run={"device": "cuda"})
        found["bf16"] = measure(folder, "bf16", options.steps, run={"device": "cuda"}, train={"precision": "bf16"})
        found["cpu"] = measure(folder, "cpu", options.steps, run={"device": "cpu"})
        with rlvla.resume(folder / "fp32", {"run": {"steps": options.steps + 2}}) as run:
            run.train()
            found["resumed_to"] = run._started().graph.steps_done
        policy = rlvla.load(folder / "fp32", device="cuda")
        seen = {
            "images": {"front": np.zeros((64, 64, 3), np.uint8)},
            "state": np.zeros(3),
            "instruction": "push the red block",
        }
        other = rlvla.load(folder / "fp32", device="cpu")
        found["policy_cuda_cpu_difference"] = float(np.abs(policy.act(seen) - other.act(seen)).max())
        found["peak_gpu_gib"] = torch.cuda.max_memory_allocated() / 2**30
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
