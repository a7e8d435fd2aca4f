"""Runs one recipe under several schedulers, a few steps each, and tells what the steps that count were.

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEDULERS: dict[str, dict[str, Any]] = {
    "sync": {"use": "sync"},
    "async-rollout": {"use": "async-rollout"},
    "full-async": {"use": "full-async", "max_staleness": 1},
    "hybrid": {"use": "hybrid", "stages": 2},
}
STEPS = {"sync": 4, "async-rollout": 4, "full-async": 9, "hybrid": 4}
MEANS = ("time/", "memory/", "rollout/generator_batch", "train/generator_gap", "train/staleness", "train/samples")
_WARM = {"full-async": 2}

Recipe = Callable[[str, Path, argparse.Namespace], dict[str, Any]]
"""Returns the mapping of a run under a scheduler; may write a checkpoint into the folder."""


def options(description: str | None, name: str) -> argparse.ArgumentParser:
    """Return the command line of :func:`compare`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {name}.json and .md")
    parser.add_argument("--machine", default="this machine", help="what the result says it was measured on")
    parser.add_argument("--schedulers", nargs="+", choices=list(SCHEDULERS), default=list(SCHEDULERS)[:3])
    parser.add_argument("--steps", type=int, default=None, help=f"training steps; else {STEPS}")
    parser.add_argument("--limit", type=float, default=None, help="seconds of a scheduler, after which it is ended")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the fake simulator, a CPU")
    parser.add_argument("--one", choices=list(SCHEDULERS), help=argparse.SUPPRESS)
    return parser


def compare(name: str, title: str, recipe: Recipe, chosen: argparse.Namespace) -> None:
    """Run each scheduler, and write ``name.json`` and ``name.md`` after each."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    runs = chosen.out / "runs"
    if chosen.one:
        _train(chosen.one, recipe, runs, chosen)
        return
    place = chosen.out / f"{name}.json"
    before = json.loads(place.read_text())["runs"] if place.is_file() else []
    found: dict[str, Any] = {"title": title, "machine": chosen.machine, "date": time.strftime("%Y-%m-%d")}
    found["runs"] = [row for row in before if row["scheduler"] not in chosen.schedulers]
    for scheduler in chosen.schedulers:
        shutil.rmtree(runs, ignore_errors=True)
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, *sys.argv, "--one", scheduler]) as child:
            try:
                child.wait(chosen.limit)
            except subprocess.TimeoutExpired:
                child.kill()  # without a checkpoint, which takes longer than a step
        result = {**summary(scheduler, runs / scheduler / "metrics.jsonl"), "seconds": time.perf_counter() - began}
        if child.returncode:
            result["ended_by"] = f"exit code {child.returncode}"
        found["runs"] = sorted([*found["runs"], result], key=lambda row: list(SCHEDULERS).index(row["scheduler"]))
        place.write_text(json.dumps(found, indent=1))
        place.with_suffix(".md").write_text(markdown(found))
    shutil.rmtree(runs, ignore_errors=True)
    print(markdown(found))
    if any("failed" in row for row in found["runs"]):
        raise SystemExit(1)


def _train(scheduler: str, recipe: Recipe, runs: Path, chosen: argparse.Namespace) -> None:
    import rlvla
    from rlvla.configs import overridden

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    runs.mkdir(parents=True, exist_ok=True)
    steps = chosen.steps or STEPS[scheduler]
    run = {"steps": steps, "directory": str(runs), "name": scheduler, "without": ["display", "tensorboard"]}
    change = {"scheduler": SCHEDULERS[scheduler], "eval": {"every": 0}, "run": run}
    with rlvla.build(**overridden(recipe(scheduler, runs, chosen), change)) as built:
        built.train()


def summary(scheduler: str, file: Path, warm: int | None = None) -> dict[str, Any]:
    """Return what the steps that count were; ``warm``: how many come before them."""
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.is_file() else []
    lines = [line for line in lines if "env_steps" in line and "step" in line]
    found: dict[str, Any] = {"scheduler": scheduler, "steps": len(lines)}
    found["env_steps_per_second_by_step"] = [round(line["env_steps_per_second"], 1) for line in lines]
    first = _WARM.get(scheduler, 1) if warm is None else warm
    counted = lines[first : -1 if scheduler == "full-async" else None]
    if not counted:
        return {**found, "failed": "no step to count"}
    found["counted_steps"] = [line["step"] for line in counted]
    useful = [line["env_steps_per_second"] * line["time/step_s"] for line in counted]
    found["env_steps_per_second"] = sum(useful) / sum(line["time/step_s"] for line in counted)
    for bound in ("env_steps_per_second_device_bound", "env_steps_per_second_schedule_bound"):
        rates = [line[bound] for line in counted]
        seconds = [steps / rate if rate else 0.0 for steps, rate in zip(useful, rates, strict=True)]
        found[bound] = sum(useful) / sum(seconds) if any(seconds) else 0.0
    if found["env_steps_per_second_schedule_bound"]:
        found["overlap_efficiency"] = found["env_steps_per_second"] / found["env_steps_per_second_schedule_bound"]
    for key in counted[-1]:
        values = [line[key] for line in counted if isinstance(line.get(key), (int, float))]
        if key.startswith(MEANS) and values and key not in found and "_run" not in key and "/run_" not in key:
            found[key] = sum(values) / len(values)
    return found


def markdown(found: dict[str, Any]) -> str:
    """Return a table, one column a scheduler."""
    rows = found["runs"]
    names = list(dict.fromkeys(key for row in rows for key in row if key != "scheduler"))
    lines = [f"# {found['title']} on {found['machine']}, {found['date']}", ""]
    lines += [found["note"], ""] if "note" in found else []
    lines += ["| | " + " | ".join(row["scheduler"] for row in rows) + " |", "|" + " --- |" * (len(rows) + 1)]
    for key in names:
        cells = [
            f"{row[key]:.4g}" if isinstance(row.get(key), (int, float)) else str(row.get(key, "-")) for row in rows
        ]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
