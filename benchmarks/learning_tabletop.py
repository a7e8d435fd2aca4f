"""Which algorithm learns tabletop at which level: PPO and GRPO at ratio level chunk, action and token, three seeds each.

Greedy success over 600 held-out episodes at the end of each run, and the success of training episodes on the way. A cell is
one algorithm at one level; a run is a cell and a seed. Finished runs stand in the results and are not run again, so a crash
costs one run, and several processes can share the work::

    python benchmarks/learning_tabletop.py                           # whatever is missing, then table and curves
    python benchmarks/learning_tabletop.py --cells ppo-token --seeds 0 1
    python benchmarks/learning_tabletop.py --render                  # table and curves of what there is

GRPO has a sparse reward (1 at success) and starts from weights cloned from demonstrations of the scripted expert: 128 of them
and 600 optimizer steps (``bc`` is that start by itself), or, in the cells that end in ``-64``, 64 and 400.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import rlvla
from rlvla.configs import overridden, read_file
from rlvla.demonstrations import record

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
RESULTS = HERE / "results" / "learning_tabletop.json"
SEEDS = (0, 1, 2)
EPISODES = 600
DEMONSTRATIONS = {"bc": 128, "bc-64": 64}
NOISE = 0.2

# The finer the level, the smaller the clip: the ratios of a chunk's 12 tokens multiply. A token's policy term is one twelfth
# of its chunk's, an action's a quarter, so the value term is scaled with it.
_FINER = {
    "action": {"algo": {"ratio_level": "action", "clip_low": 0.1, "clip_high": 0.1, "value_weight": 0.125}},
    "token": {"algo": {"ratio_level": "token", "clip_low": 0.1, "clip_high": 0.1, "value_weight": 0.04}},
}
# The horizon of 0.8 a chunk of 4 actions, in actions.
_BY_ACTION = {"credit_level": "action", "gamma": 0.8**0.25, "gae_lambda": 0.6**0.25}
_LONGER = {"run": {"steps": 160}}


def _ppo(*changes: Mapping[str, Any]) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    return "tiny_tabletop_ppo_sync_cpu.py", changes


def _grpo(*changes: Mapping[str, Any]) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    return "tiny_tabletop_grpo_sync_cpu.py", changes


CELLS: dict[str, tuple[str, tuple[Mapping[str, Any], ...]]] = {
    "ppo-chunk": _ppo(),
    "ppo-action": _ppo(_FINER["action"], _LONGER),
    "ppo-token": _ppo(_FINER["token"], _LONGER),
    "ppo-action-credit-action": _ppo(_FINER["action"], _LONGER, {"algo": _BY_ACTION}),
    "ppo-token-credit-action": _ppo(_FINER["token"], _LONGER, {"algo": _BY_ACTION}),
    "bc": ("tiny_tabletop_bc_sync_cpu.py", ()),
    "grpo-chunk": _grpo({"algo": {"ratio_level": "chunk", "clip_low": 0.2, "clip_high": 0.2}}),
    "grpo-action": _grpo({"algo": {"ratio_level": "action"}}),
    "grpo-token": _grpo(),
    "bc-64": ("tiny_tabletop_bc_sync_cpu.py", ({"run": {"steps": 40}},)),
    "grpo-chunk-64": _grpo({"algo": {"ratio_level": "chunk", "clip_low": 0.2, "clip_high": 0.2}}),
    "grpo-action-64": _grpo({"algo": {"ratio_level": "action"}}),
    "grpo-token-64": _grpo(),
    "grpo-token-scratch": _grpo({"model": {"path": None}}),
}
TARGETS = {"ppo-chunk": 0.95, "grpo-token": 0.85}
"""Greedy success that each seed should reach; 0.9 for the rest of PPO."""


class Curve:
    """Notes the success of training episodes."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.points: list[list[float]] = []

    @rlvla.hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if "rollout/success_once" in metrics:
            seconds = time.perf_counter() - self.began
            point = [step, metrics["env_steps"], round(seconds, 1), round(metrics["rollout/success_once"], 4)]
            self.points.append(point)


def run(cell: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one cell with one seed, and measure it."""
    example, changes = CELLS[cell]
    recipe = read_file(EXAMPLES / example)
    for change in changes:
        recipe = overridden(recipe, change)
    options = {"threads": 1, "slots": 1, "seed": seed, "name": f"{cell}-{seed}", "directory": str(folder)}
    recipe = overridden(recipe, {"run": {**options, "without": ("display", "tensorboard", "report")}})
    start: dict[str, Any] = {}
    if cell.startswith("bc"):
        path = folder / f"demonstrations-{seed}"
        record(sim="tabletop", episodes=DEMONSTRATIONS[cell], noise=NOISE, seed=seed, path=path)
        recipe = overridden(recipe, {"algo": {"path": str(path)}})
    elif cell.startswith("grpo") and not cell.endswith("-scratch"):
        cloned = "bc-64" if cell.endswith("-64") else "bc"
        start = run(cloned, seed, folder)
        last = max((folder / f"{cloned}-{seed}" / "checkpoints").iterdir())
        recipe = overridden(recipe, {"model": {"path": str(last / "model")}})
    curve, before = Curve(), _cpu_seconds()
    with rlvla.build(**recipe, listeners=[curve]) as one:
        one.train()
        seconds = time.perf_counter() - curve.began
        results = one.evaluate(episodes=EPISODES, num_envs=100, greedy=True)
        success, interval = results.success, results.interval
    return {
        "success": round(success, 4),
        "interval": [round(x, 4) for x in interval],
        "episodes": EPISODES,
        "steps": recipe["run"]["steps"],
        "env_steps": curve.points[-1][1] if curve.points else 0,
        "train_seconds": round(seconds, 1),
        "cpu_seconds": round(_cpu_seconds() - before, 1),
        "curve": curve.points,
        **({"start": start["success"]} if start else {}),
    }


def _cpu_seconds() -> float:
    """Return what this process and its ended children have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@contextmanager
def locked(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the results for a change that no other process sees half done."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = json.loads(file.read_text()) if file.is_file() else {}
        before = json.dumps(results)
        yield results
        if json.dumps(results) != before:
            part = file.with_suffix(".part")
            part.write_text(
                json.dumps(results, indent=None, separators=(",", ":")).replace('"curve"', '\n"curve"') + "\n"
            )
            os.replace(part, file)


def claim(file: Path, cell: str, seed: int) -> bool:
    """Take a run, unless it is done or another live process has it."""
    with locked(file) as results:
        runs = results.setdefault("runs", {})
        there = runs.get(f"{cell}/{seed}")
        if there is not None and ("success" in there or _alive(there["pid"])):
            return False
        runs[f"{cell}/{seed}"] = {"pid": os.getpid()}
        return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def render(file: Path) -> str:
    """Write the table and the curves of finished runs beside the results; returns the table."""
    results = json.loads(file.read_text())
    runs = {name: one for name, one in results["runs"].items() if "success" in one}
    lines = [
        "# Learning tabletop, by algorithm and level",
        "",
        f"Greedy success over {EPISODES} held-out episodes at the end of training, for each seed; tiny on tabletop, one thread "
        f"and one simulator worker a run, {results['machine']}, shared with other work (so CPU seconds, of all processes of "
        "a run and its evaluation, say more than wall time).",
        "",
        "| cell | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | wanted | env steps | steps | CPU s |",
        "|---" * (len(SEEDS) + 5) + "|",
    ]
    for cell in CELLS:
        done = {seed: runs[f"{cell}/{seed}"] for seed in SEEDS if f"{cell}/{seed}" in runs}
        shown = [f"{done[seed]['success']:.3f}" if seed in done else "not run" for seed in SEEDS]
        wanted = TARGETS.get(cell, 0.9 if cell.startswith("ppo") else 0.0)
        some = list(done.values())
        rest = (
            [
                f"{sum(one['env_steps'] for one in some) / len(some) / 1000:.0f} k",
                str(some[0]["steps"]),
                f"{sum(one['cpu_seconds'] for one in some) / len(some):.0f}",
            ]
            if some
            else ["", "", ""]
        )
        lines.append(f"| {cell} | " + " | ".join([*shown, f"{wanted:.2f}" if wanted else "", *rest]) + " |")
    lines += [
        "",
        f"`bc` is cloned from {DEMONSTRATIONS['bc']} demonstrations of the scripted expert (noise {NOISE}, recorded with the "
        f"run's seed) and is what `grpo-*` of the same seed starts from; `bc-64` from {DEMONSTRATIONS['bc-64']} and with fewer "
        "steps, for `grpo-*-64`; `grpo-token-scratch` starts from fresh weights. GRPO has the sparse reward (1 at success, else 0), PPO the shaped one and no demonstrations. "
        "Settings: the recipes in `examples/`, changed as `CELLS` in `benchmarks/learning_tabletop.py` says. A 95 % interval at "
        "0.95 is +-0.02. The column of steps says what each run took: `ppo-chunk` ran before its recipe grew from 120 to 140. "
        "GRPO's target of 0.85 is what its clones of 128 demonstrations reach already; GRPO adds the rest, and where a clone "
        "starts below 0.2 (`-64`, seed 2) it adds little.",
        "",
        f"![Success of training episodes]({file.with_suffix('.png').name})",
    ]
    text = "\n".join(lines) + "\n"
    file.with_suffix(".md").write_text(text)
    plot(runs, file.with_suffix(".png"))
    return text


def plot(runs: Mapping[str, Any], file: Path) -> None:
    """Draw success over env steps: a panel for each algorithm and level of credit, a colour for each ratio level."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "PPO, credit by chunk": {"ppo-chunk": "chunk", "ppo-action": "action", "ppo-token": "token"},
        "PPO, credit by action": {"ppo-action-credit-action": "action", "ppo-token-credit-action": "token"},
        "GRPO, sparse reward, from bc": {"grpo-chunk": "chunk", "grpo-action": "action", "grpo-token": "token"},
        "GRPO, sparse reward, from bc-64": {f"grpo-{level}-64": level for level in ("chunk", "action", "token")},
    }
    colours = {"chunk": "tab:blue", "action": "tab:orange", "token": "tab:green"}
    figure, axes = pyplot.subplots(1, 4, figsize=(15, 3.6), sharey=True)
    for axis, (title, cells) in zip(axes, panels.items(), strict=True):
        for cell, level in cells.items():
            for seed in SEEDS:
                if not (curve := runs.get(f"{cell}/{seed}", {}).get("curve")):
                    continue
                success = [point[3] for point in curve]
                smooth = [sum(some := success[max(0, i - 4) : i + 1]) / len(some) for i in range(len(success))]
                label = None if any(line.get_label() == level for line in axis.lines) else level
                axis.plot([point[1] / 1000 for point in curve], smooth, color=colours[level], label=label, linewidth=1)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("thousand env steps")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(title="ratio level", fontsize=8)
    axes[0].set_ylabel("success of training episodes\n(sampled; mean of 5 steps)")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cells", nargs="*", default=list(CELLS), choices=list(CELLS), metavar="CELL", help=", ".join(CELLS)
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="run nothing")
    args = parser.parse_args()
    with locked(args.output) as results:
        results.setdefault("machine", f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} CPU")
        results.setdefault("versions", {name: metadata.version(name) for name in ("rlvla", "torch", "mujoco")})
    for seed in [] if args.render else args.seeds:
        for cell in args.cells:
            if not claim(args.output, cell, seed):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = run(cell, seed, Path(folder))
            with locked(args.output) as results:
                results["runs"][f"{cell}/{seed}"] = found
            print(f"{cell} seed {seed}: {found['success']:.3f} after {found['train_seconds']:.0f} s", flush=True)
    print(render(args.output))


if __name__ == "__main__":
    main()
