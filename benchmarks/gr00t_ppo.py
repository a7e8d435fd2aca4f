"""PPO with a full-size GR00T N1.5 on LIBERO, one GPU, a few steps under each scheduler: how fast, and what holds it back.

    python benchmarks/gr00t_ppo.py --out results --machine "one H200, 16 CPU cores"
    python benchmarks/gr00t_ppo.py --out /tmp/gr00t --tiny                   # small sizes on the fake simulator, a CPU

The work of a step: 64 environments (4 in each of 16 processes) x 80 env steps of one task of LIBERO spatial, two 256-pixel
cameras rendered, chunks of 10, one pass over 512 chunks in optimizer steps of 256; backbone frozen, its features kept, head
trained. Weights are random (made on the GPU), so no rollout succeeds and nothing is learned; time does not know. Figures are
the run's own metrics: means over all steps but the first two, which compile and fill pipes (``..._run_...``: the run's own
count of the same). Each scheduler runs in a process of its own; an existing result of another one stays.
"""

from __future__ import annotations

import argparse
import json
import logging
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parent.parent / "examples" / "gr00t_libero_ppo_full-async_cuda.py"
SCHEDULERS: dict[str, dict[str, Any]] = {
    "sync": {"use": "sync"},
    "async-rollout": {"use": "async-rollout"},
    "full-async": {"use": "full-async", "max_staleness": 1},
}
KEYS = (
    "env_steps_per_second",
    "time/",
    "memory/",
    "rollout/generator_batch",
    "train/generator_gap",
    "train/staleness",
    "train/samples",
)
_WARM = 2


def recipe(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden
    from rlvla_model_gr00t import tiny
    from rlvla_model_gr00t.header import HeadShape, QwenShape, SiglipShape

    made = runpy.run_path(str(RECIPE))["recipe"]()
    sizes: dict[str, Any] = {"siglip": SiglipShape(), "qwen": QwenShape(), "head": HeadShape()}
    if options.tiny:
        sizes = {"action_dim": 2, "state_dim": 2}
    tiny.write(place / "checkpoint", weights=False, tags=("libero_franka",), **sizes)
    change: dict[str, Any] = {
        "sim": {"num_envs": options.envs, "max_episode_steps": 240, "tasks": [0]},
        "model": {"path": str(place / "checkpoint"), "tokenizer_path": None, "horizon": 10, "keep_features": 4096},
        "algo": {"window": 8, "windows_per_step": options.envs, "passes": 1, "minibatch_size": 256},
        "scheduler": SCHEDULERS[name],
        "train": {"micro_batch": options.micro_batch},
        "eval": {"every": 0},
        "run": {
            "steps": options.steps,
            "slots": options.slots,
            "directory": str(place),
            "name": name,
            "without": ["display", "tensorboard"],
        },
    }
    if options.tiny:
        change["sim"] = {"use": "fake", "num_envs": 4, "max_episode_steps": 40}
        change["algo"] |= {"window": 2, "windows_per_step": 4, "minibatch_size": 8}
        change["run"] |= {"device": "cpu", "sim_in_process": True, "slots": 2}
        change["model"] |= {"dtype": "fp32", "pad_to": 128, "state_keys": None, "action_keys": None}
    return overridden(made, change)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train under one scheduler; returns what the steps after the first ones were."""
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
    for key in lines[-1]:
        values = [line[key] for line in lines[_WARM:] if isinstance(line.get(key), (int, float))]
        if key.startswith(KEYS) and values:
            found[key] = values[-1] if "_run" in key or "/run_" in key else sum(values) / len(values)
    found["env_steps_per_second_by_step"] = [round(line["env_steps_per_second"], 1) for line in lines]
    return found


def markdown(found: dict[str, Any]) -> str:
    """Return a table, one column a scheduler."""
    rows = found["runs"]
    names = list(dict.fromkeys(key for row in rows for key in row if key != "scheduler"))
    lines = [f"# PPO of GR00T N1.5 on {found['machine']}, {found['date']}", ""]
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
    parser.add_argument("--out", type=Path, required=True, help="folder for gr00t_ppo.json and .md")
    parser.add_argument("--machine", default="", help="what the result says it was measured on")
    parser.add_argument("--schedulers", nargs="+", choices=list(SCHEDULERS), default=list(SCHEDULERS))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16, help="parts of the environments, a process each")
    parser.add_argument("--micro-batch", type=int, default=64, help="chunks in one forward and backward pass")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", choices=list(SCHEDULERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one:
        (options.out / f"{options.one}.json").write_text(json.dumps(measure(options.one, options)))
        return
    place = options.out / "gr00t_ppo.json"
    before = json.loads(place.read_text())["runs"] if place.is_file() else []
    found: dict[str, Any] = {"machine": options.machine or "this machine", "date": time.strftime("%Y-%m-%d")}
    found["runs"] = [row for row in before if row["scheduler"] not in options.schedulers]
    failed = False
    for name in options.schedulers:
        done = subprocess.run([sys.executable, *sys.argv, "--one", name], check=False)
        file = options.out / f"{name}.json"
        result = {"scheduler": name, "failed": f"exit code {done.returncode}"}
        if done.returncode == 0:
            result = json.loads(file.read_text())
            file.unlink()
        failed |= "failed" in result
        found["runs"] = sorted([*found["runs"], result], key=lambda row: list(SCHEDULERS).index(row["scheduler"]))
        place.write_text(json.dumps(found, indent=1))
        place.with_suffix(".md").write_text(markdown(found))
    print(markdown(found))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
