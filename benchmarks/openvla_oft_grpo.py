"""GRPO with a full-size OpenVLA-OFT on LIBERO, one GPU, a few steps under each scheduler: does it fit, and how fast is it.

    python benchmarks/openvla_oft_grpo.py --out results --machine "one H200, 16 CPU cores"
    python benchmarks/openvla_oft_grpo.py --out /tmp/oft --tiny                # small sizes on the fake simulator, a CPU

The work of a step: 32 environments x 128 env steps in groups of 8, two 256-pixel cameras rendered, chunks of 8, LoRA of rank
32, one optimizer step on 512 chunks. Weights are random (made on the GPU), so no rollout succeeds and nothing is learned;
time does not know. The first step warms up and is left out: env steps and seconds are summed over all others (a step of
full-async may end without any env step), phases are their means, bounds and overlap are those of the run (which leave out
as many steps more as weights may be old). full-async plays ahead and ends by training alone, so the fewer steps, the lower
its rate comes out: give it many. Each scheduler runs in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parent.parent / "examples" / "openvla-oft_libero_grpo_sync_cuda.py"
SCHEDULERS: dict[str, dict[str, Any]] = {
    "sync": {"use": "sync"},
    "async-rollout": {"use": "async-rollout"},
    "full-async": {"use": "full-async", "max_staleness": 1},
}
OF_RUN = ("env_steps_per_second_run", "time/run_")
"""First parts of names of metrics that are of all steps so far."""
MEANS = ("time/", "memory/", "train/generator_gap", "train/staleness_max", "train/samples")
RATES = ("time/overlap_efficiency",)
"""Ratios of single steps, whose mean says nothing."""


def recipe(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden
    from rlvla_model_openvla_oft import tiny
    from rlvla_model_openvla_oft.header import DINO, SIGLIP, LlamaShape

    made = runpy.run_path(str(RECIPE))["recipe"]()
    sizes: dict[str, Any] = {"llama": LlamaShape(vocab_size=32064), "dino": DINO, "siglip": SIGLIP, "image_size": 224}
    if options.tiny:
        sizes = {"action_dim": 2, "state_dim": 2}
    tiny.write(place / "checkpoint", weights=False, data_sets=("libero_spatial_no_noops",), **sizes)
    change: dict[str, Any] = {
        "sim": {"num_envs": 32, "max_episode_steps": 128},
        "model": {"path": str(place / "checkpoint"), "rollout": options.rollout},
        "algo": {"groups_per_step": 4, "minibatch_size": 512, "success_low": 0.0, "success_high": 1.0},
        "scheduler": SCHEDULERS[name],
        "train": {"micro_batch": options.micro_batch},
        "eval": {"every": 0},
        "run": {"steps": options.steps, "directory": str(place), "name": name, "without": ["display", "tensorboard"]},
    }
    if options.tiny:
        change["sim"] = {"use": "fake", "num_envs": 4, "max_episode_steps": 16}
        change["algo"] |= {"group_size": 2, "groups_per_step": 2, "minibatch_size": 8}
        change["run"] |= {"device": "cpu", "sim_in_process": True, "slots": 2}
        change["model"] |= {"dtype": "fp32", "lora_rank": 4}
    return overridden(made, change)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train under one scheduler; returns what the steps after the first were."""
    import torch

    import rlvla

    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with rlvla.build(**recipe(name, Path(folder), options)) as run:
            run.train()
        seconds = time.perf_counter() - began
        text = (Path(folder) / name / "metrics.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if "env_steps" in line and "step" in line]
    found: dict[str, Any] = {"scheduler": name, "steps": len(lines), "seconds": seconds}
    if torch.cuda.is_available():
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found | summary(lines)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the steps after the first were together.

    Args:
        lines: the metrics of each step, two or more; ``env_steps`` counts from the run's start.
    """
    first, *counted = lines
    env_steps, seconds = counted[-1]["env_steps"] - first["env_steps"], sum(line["time/step_s"] for line in counted)
    found: dict[str, Any] = {
        "env_steps": env_steps,
        "env_steps_per_second": env_steps / seconds,
        "env_steps_of_each_step": [now["env_steps"] - before["env_steps"] for before, now in itertools.pairwise(lines)],
        "seconds_of_each_step": [line["time/step_s"] for line in counted],
    }
    for key, last in counted[-1].items():
        values = [line[key] for line in counted if isinstance(line.get(key), (int, float))]
        if key.startswith(OF_RUN):
            found[key] = last
        elif key.startswith(MEANS) and key not in RATES and values:
            found[key] = sum(values) / len(values)
    return found


def markdown(found: dict[str, Any]) -> str:
    """Return a table, one column a scheduler."""
    rows = found["runs"]
    names = list(dict.fromkeys(key for row in rows for key in row if key != "scheduler"))
    lines = [f"# GRPO of OpenVLA-OFT on {found['machine']}, {found['date']}", ""]
    lines += [found["note"], ""] if "note" in found else []
    lines += ["| | " + " | ".join(row["scheduler"] for row in rows) + " |", "|" + " --- |" * (len(rows) + 1)]
    for key in names:
        cells = [
            f"{row[key]:.4g}" if isinstance(row.get(key), (int, float)) else str(row.get(key, "-")) for row in rows
        ]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run each scheduler in a process of its own, and write what they say after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for openvla_oft_grpo.json and .md")
    parser.add_argument("--machine", default="", help="what the result says it was measured on")
    parser.add_argument("--schedulers", nargs="+", choices=list(SCHEDULERS), default=list(SCHEDULERS))
    parser.add_argument("--steps", type=int, default=6, help="training steps, 3 or more")
    parser.add_argument("--micro-batch", type=int, default=32, help="chunks in one forward and backward pass")
    parser.add_argument("--rollout", choices=("same", "fp8"), default="same", help="products while acting")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", choices=list(SCHEDULERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 3:
        parser.error(
            f"--steps: got {options.steps}, wanted 3 or more: the first is left out, and with stale weights the second"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one:
        (options.out / f"{options.one}.json").write_text(json.dumps(measure(options.one, options)))
        return
    found: dict[str, Any] = {
        "machine": options.machine or "this machine",
        "date": time.strftime("%Y-%m-%d"),
        "runs": [],
    }
    for name in options.schedulers:
        done = subprocess.run([sys.executable, *sys.argv, "--one", name], check=False)
        file = options.out / f"{name}.json"
        result = {"scheduler": name, "failed": f"exit code {done.returncode}"}
        if done.returncode == 0:
            result = json.loads(file.read_text())
            file.unlink()
        found["runs"].append(result)
        (options.out / "openvla_oft_grpo.json").write_text(json.dumps(found, indent=1))
        (options.out / "openvla_oft_grpo.md").write_text(markdown(found))
    print(markdown(found))
    if any("failed" in row for row in found["runs"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
