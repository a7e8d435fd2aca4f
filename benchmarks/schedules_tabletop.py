"""Does overlapping cost success? full-async against sync on tabletop, the same seeds and equal env steps.

Both play and train the same windows; under full-async a chunk may be one version old. Greedy success over 600 held-out
episodes at the end, the 95 % interval (Student's t) of the difference paired by seed, and how old the chunks were. The third
cell centres the clip on the policy that acted (``proximal: behaviour``), as plain PPO does, the fourth between that and the
present one, without a forward pass. Seconds depend on what ran beside;
see ``overlap.py`` for speed. Finished runs stand in the results and are not run again.

    python benchmarks/schedules_tabletop.py [--jobs 6] [--output benchmarks/results/schedules_tabletop.json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import runpy
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parent.parent / "examples" / "tiny_tabletop_ppo_sync_cpu.py"
_OVERLAPPED = {"scheduler": {"use": "full-async", "max_staleness": 1}}
CELLS: dict[str, dict[str, Any]] = {
    "sync": {"scheduler": {"use": "sync"}},
    "full-async": _OVERLAPPED,
    "full-async, clip around the acting policy": {**_OVERLAPPED, "algo": {"proximal": "behaviour"}},
    "full-async, interpolated": {**_OVERLAPPED, "algo": {"proximal": "interpolate"}},
}
SEEDS = (0, 1, 2, 3, 4)
EPISODES = 600
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""Two-sided 95 % quantile of Student's t, by number of pairs."""


def run(cell: str, seed: int) -> dict[str, Any]:
    """Train once, and measure."""
    import rlvla
    from rlvla.configs import overridden

    ages: list[float] = []
    env_steps = 0.0

    class Ages:
        @rlvla.hookimpl
        def on_step(self, metrics: Mapping[str, float]) -> None:
            nonlocal env_steps
            ages.append(metrics["train/staleness_mean"])
            env_steps = metrics["env_steps"]

    recipe = runpy.run_path(str(RECIPE))["recipe"]()
    with tempfile.TemporaryDirectory() as folder:
        options = {"seed": seed, "slots": 4, "threads": 1, "directory": folder, "name": "run", "device": "cpu"}
        change = {**CELLS[cell], "run": {**options, "without": ("display", "tensorboard", "report")}}
        with rlvla.build(**overridden(recipe, change), listeners=[Ages()]) as one:
            began = time.perf_counter()
            one.train()
            seconds = time.perf_counter() - began
            results = one.evaluate(episodes=EPISODES, num_envs=100, greedy=True)
    old = statistics.mean(ages)
    return {
        "cell": cell,
        "seed": seed,
        "success": round(results.success, 4),
        "interval": [round(one, 4) for one in results.interval],
        "steps": len(ages),
        "env_steps": env_steps,
        "train_seconds": round(seconds, 1),
        "chunks_by_staleness": {"0": round(1 - old, 4), "1": round(old, 4)},
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each cell's paired difference to sync with its interval, over the seeds that both have."""
    by = {(one["cell"], one["seed"]): one for one in runs}
    found = {}
    for cell in [name for name in CELLS if name != "sync"]:
        seeds = [seed for seed in SEEDS if (cell, seed) in by and ("sync", seed) in by]
        if len(seeds) not in T_95:
            continue
        differences = [by[cell, seed]["success"] - by["sync", seed]["success"] for seed in seeds]
        mean = statistics.mean(differences)
        half = T_95[len(seeds)] * statistics.stdev(differences) / len(seeds) ** 0.5
        found[cell] = {
            "seeds": seeds,
            "differences": [round(one, 4) for one in differences],
            "mean": round(mean, 4),
            "interval": [round(mean - half, 4), round(mean + half, 4)],
        }
    return found


def markdown(result: dict[str, Any]) -> str:
    """Return the page beside the numbers."""
    lines = [
        f"# full-async against sync on tabletop, {result['machine']}",
        "",
        f"Success of greedy actions over {EPISODES} held-out episodes after the same training steps, by seed; the difference to sync,",
        "paired by seed, with its 95 % interval (Student's t); the share of trained chunks that were one version old. Seconds are",
        "not comparable: other runs ran beside.",
        "",
        "![success by seed, and age of chunks](schedules_tabletop.png)",
        "",
        f"| | {' | '.join(f'seed {seed}' for seed in SEEDS)} | difference | 95 % interval | one version old |",
        "|" + " --- |" * (len(SEEDS) + 4),
    ]
    for cell in CELLS:
        runs = {one["seed"]: one for one in result["runs"] if one["cell"] == cell}
        cells = [f"{runs[seed]['success']:.3f}" if seed in runs else "-" for seed in SEEDS]
        found = result["differences_to_sync"].get(cell)
        cells += [f"{found['mean']:+.3f}", "{:+.3f} to {:+.3f}".format(*found["interval"])] if found else ["-", "-"]
        old = statistics.mean(one["chunks_by_staleness"]["1"] for one in runs.values()) if runs else 0.0
        lines.append(f"| {cell} | {' | '.join(cells)} | {old:.1%} |")
    return "\n".join(lines) + "\n"


def draw(result: dict[str, Any], place: Path) -> None:
    """Draw success by seed, and how old the chunks were."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained", width_ratios=(2, 1))
    for number, cell in enumerate(CELLS):
        runs = sorted((one for one in result["runs"] if one["cell"] == cell), key=lambda one: one["seed"])
        at = [one["seed"] + 0.16 * (number - 1.5) for one in runs]
        ends = [
            [one["success"] - one["interval"][0] for one in runs],
            [one["interval"][1] - one["success"] for one in runs],
        ]
        left.errorbar(at, [one["success"] for one in runs], ends, fmt="o", ms=4, capsize=2, label=cell)
        if runs:
            old = statistics.mean(one["chunks_by_staleness"]["1"] for one in runs)
            right.barh(number, 1 - old, color="0.75")
            right.barh(number, old, left=1 - old, color=f"C{number}")
    left.set(xlabel="seed", ylabel=f"success, {EPISODES} episodes", xticks=SEEDS)
    left.legend(fontsize=8, loc="center")
    right.set(xlabel="trained chunks; grey: not stale", yticks=[], xlim=(0, 1))
    figure.savefig(place, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each keeps about two cores busy")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--cells", nargs="*", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "schedules_tabletop.json")
    args = parser.parse_args()
    runs = json.loads(args.output.read_text())["runs"] if args.output.is_file() else []
    done = {(one["cell"], one["seed"]) for one in runs}
    todo = [(cell, seed) for seed in args.seeds for cell in args.cells if (cell, seed) not in done]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for one in pool.map(run, *zip(*todo, strict=True)) if todo else ():
            print(json.dumps(one), flush=True)
            runs.append(one)
            result = {
                "machine": f"{os.cpu_count()}-core {platform.machine()} CPU, {args.jobs} runs at a time",
                "versions": {name: metadata.version(name) for name in ("rlvla", "torch", "mujoco")},
                "differences_to_sync": summary(runs),
                "runs": runs,
            }
            args.output.write_text(json.dumps(result, indent=1) + "\n")
    whole = json.loads(args.output.read_text())
    args.output.with_suffix(".md").write_text(markdown(whole))
    draw(whole, args.output.with_suffix(".png"))
    print(json.dumps(whole["differences_to_sync"], indent=1))


if __name__ == "__main__":
    main()
