"""PPO with a full-size GR00T N1.5 on LIBERO, one GPU, a few steps under each scheduler: how fast, and what holds it back.

    python benchmarks/gr00t_ppo.py --out results --machine "one H200, 16 CPU cores"
    python benchmarks/gr00t_ppo.py --out results --schedulers sync async-rollout --steps 9 --limit 75   # a few minutes
    python benchmarks/gr00t_ppo.py --out /tmp/gr00t --tiny                   # small sizes on the fake simulator, a CPU

The work of a step: 64 environments (4 in each of 16 processes) x 80 env steps of one task of LIBERO spatial, two 256-pixel
cameras rendered, chunks of 10, one pass over 512 chunks in optimizer steps of 256; backbone frozen, its features kept, head
trained. Weights are random (made on the GPU), so no rollout succeeds and nothing is learned; time does not know.

Rates are useful env steps over seconds, both summed over the steps that count; a bound is the same with the seconds that the
run's own metrics say it would take. Not counted are first steps, which compile and fill pipes (1; full-async 2), and
full-async's last one, beside which nothing is played. Everything else is a mean over those steps. Each scheduler runs in a
process of its own; what a killed one wrote so far counts, and an existing result of another scheduler stays.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
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
    "time/",
    "memory/",
    "rollout/generator_batch",
    "train/generator_gap",
    "train/staleness",
    "train/samples",
)
_WARM = {"full-async": 2}
_BOUNDS = ("device_bound", "schedule_bound")


def recipe(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden, read_file
    from rlvla_model_gr00t import tiny
    from rlvla_model_gr00t.header import HeadShape, QwenShape, SiglipShape

    made = read_file(RECIPE)
    place.mkdir(parents=True, exist_ok=True)
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
            "steps": options.steps or (8 if name == "full-async" else 4),
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


def train(name: str, options: argparse.Namespace) -> None:
    """Train under one scheduler, in a folder below ``--out``."""
    import rlvla

    logging.basicConfig(level=logging.INFO)
    with rlvla.build(**recipe(name, options.out / "runs", options)) as run:
        run.train()


def summary(name: str, file: Path) -> dict[str, Any]:
    """Return what the steps that count were."""
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.is_file() else []
    lines = [line for line in lines if "env_steps" in line and "step" in line]
    found: dict[str, Any] = {"scheduler": name, "steps": len(lines)}
    found["env_steps_per_second_by_step"] = [round(line["env_steps_per_second"], 1) for line in lines]
    counted = lines[_WARM.get(name, 1) : -1 if name == "full-async" else None]
    if not counted:
        return {**found, "failed": "no step to count"}
    found["counted_steps"] = [line["step"] for line in counted]
    useful = [line["env_steps_per_second"] * line["time/step_s"] for line in counted]
    found["env_steps_per_second"] = sum(useful) / sum(line["time/step_s"] for line in counted)
    for bound in _BOUNDS:
        rates = [line[f"env_steps_per_second_{bound}"] for line in counted]
        seconds = [steps / rate if rate else 0.0 for steps, rate in zip(useful, rates, strict=True)]
        found[f"env_steps_per_second_{bound}"] = sum(useful) / sum(seconds) if any(seconds) else 0.0
    if found["env_steps_per_second_schedule_bound"]:
        found["overlap_efficiency"] = found["env_steps_per_second"] / found["env_steps_per_second_schedule_bound"]
    for key in counted[-1]:
        values = [line[key] for line in counted if isinstance(line.get(key), (int, float))]
        if key.startswith(KEYS) and values and key not in found and "_run" not in key and "/run_" not in key:
            found[key] = sum(values) / len(values)
    return found


def markdown(found: dict[str, Any]) -> str:
    """Return a table, one column a scheduler."""
    rows = found["runs"]
    names = list(dict.fromkeys(key for row in rows for key in row if key != "scheduler"))
    lines = [f"# PPO of GR00T N1.5 on {found['machine']}, {found['date']}", ""]
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
    parser.add_argument("--out", type=Path, required=True, help="folder for gr00t_ppo.json and .md")
    parser.add_argument("--machine", default="", help="what the result says it was measured on")
    parser.add_argument("--schedulers", nargs="+", choices=list(SCHEDULERS), default=list(SCHEDULERS))
    parser.add_argument("--steps", type=int, default=None, help="training steps; 4, or 8 of full-async")
    parser.add_argument("--limit", type=float, default=None, help="seconds of a scheduler, after which it is ended")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16, help="parts of the environments, a process each")
    parser.add_argument("--micro-batch", type=int, default=128, help="chunks in one forward and backward pass")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", choices=list(SCHEDULERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one:
        train(options.one, options)
        return
    place = options.out / "gr00t_ppo.json"
    before = json.loads(place.read_text())["runs"] if place.is_file() else []
    found: dict[str, Any] = {"machine": options.machine or "this machine", "date": time.strftime("%Y-%m-%d")}
    found["runs"] = [row for row in before if row["scheduler"] not in options.schedulers]
    failed = False
    for name in options.schedulers:
        place_of_run = options.out / "runs" / name
        shutil.rmtree(place_of_run, ignore_errors=True)
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, *sys.argv, "--one", name]) as child:
            try:
                child.wait(options.limit)
            except subprocess.TimeoutExpired:
                child.kill()  # without a checkpoint, which takes longer than a step
        result = {**summary(name, place_of_run / "metrics.jsonl"), "seconds": time.perf_counter() - began}
        if child.returncode:
            result["ended_by"] = f"exit code {child.returncode}"
        shutil.rmtree(options.out / "runs", ignore_errors=True)
        failed |= "failed" in result
        found["runs"] = sorted([*found["runs"], result], key=lambda row: list(SCHEDULERS).index(row["scheduler"]))
        place.write_text(json.dumps(found, indent=1))
        place.with_suffix(".md").write_text(markdown(found))
    print(markdown(found))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
