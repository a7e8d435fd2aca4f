"""PPO on ManiSkill's PushCube, for as long as is given: success over env steps and wall time.

    python benchmarks/maniskill_learning.py --machine "2-core x86-64 CPU"              # from state, ten minutes
    python benchmarks/maniskill_learning.py --rgb --machine M --minutes 20             # from pictures: a GPU and 16 cores

The recipes are ``examples/tiny_maniskill_ppo_sync_cpu.py`` and ``examples/tiny_maniskill_ppo_async-rollout_cuda.py``. Training
stops after ``--minutes`` of wall time, starting, drawing and evaluation included, or at the recipe's last step. Results (JSON,
table, curve) go beside ``--output``.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rlvla
from rlvla.configs import overridden, read_file
from rlvla.devices import machine
from rlvla.results import EvalResults

HERE = Path(__file__).parent
EXAMPLES = {
    "state": "tiny_maniskill_ppo_sync_cpu.py",
    "rgb": "tiny_maniskill_ppo_async-rollout_cuda.py",
}
_SPEED = (
    "env_steps_per_second_run",
    "env_steps_per_second_run_device_bound",
    "env_steps_per_second_run_schedule_bound",
    "time/run_overlap_efficiency",
    "time/busy_simulators",
    "time/busy_generator",
    "time/busy_trainer",
    "time/busy_cores",
    "time/slots_wait_for_chunks",
)
"""Noted of the last training step: what bounds the run."""
_BLOCK = 5
"""Training steps between two looks at the clock."""


class Curve:
    """Notes the success of training episodes and of evaluations."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.env_steps = 0.0
        self.training: list[list[float]] = []
        self.evaluations: list[list[float]] = []
        self.speed: dict[str, float] = {}

    def seconds(self) -> float:
        return round(time.perf_counter() - self.began, 1)

    @rlvla.hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.env_steps = metrics["env_steps"]
        self.speed = {name: round(metrics[name], 4) for name in _SPEED if name in metrics}
        if "rollout/success_once" in metrics:
            self.training.append([step, self.env_steps, self.seconds(), round(metrics["rollout/success_once"], 4)])

    @rlvla.hookimpl
    def on_evaluation(self, step: int, results: EvalResults) -> None:
        self.evaluations.append([step, self.env_steps, self.seconds(), round(results.success, 4)])
        sys.stdout.write(
            f"step {step}, {self.env_steps:.0f} env steps, {self.seconds():.0f} s: {results.success:.3f}\n"
        )
        sys.stdout.flush()


def run(
    kind: str, minutes: float, seed: int, episodes: int, overrides: Mapping[str, Any], part: Path
) -> dict[str, Any]:
    """Train one recipe with one seed until the time is over, and measure it; ``part`` keeps what is known meanwhile."""
    recipe = read_file(HERE.parent / "examples" / EXAMPLES[kind])
    recipe = overridden(overridden(recipe, overrides), {"run": {"seed": seed, "name": f"{kind}-{seed}"}})
    before = _cpu_seconds()
    evaluation, steps = recipe["eval"], recipe["run"]["steps"]
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"directory": folder, "without": ("display", "tensorboard", "report"), "save_every": 0}
        curve = Curve()
        with rlvla.build(**overridden(recipe, {"run": quiet, "eval": {"every": 0}}), listeners=[curve]) as one:
            start = one.evaluate(episodes=evaluation["episodes"])
            until = 0
            while curve.seconds() < minutes * 60 and until < steps:
                until = min(until + _BLOCK, steps)
                one.train(until)
                part.write_text(json.dumps(vars(curve)))
                if until % evaluation["every"] == 0 and until < steps:
                    one.evaluate(episodes=evaluation["episodes"])
            seconds = curve.seconds()
            end = one.evaluate(episodes=episodes)
    return {
        "start": _told(start),
        "end": _told(end),
        "steps": until,
        "env_steps": curve.env_steps,
        "seconds": seconds,
        "cpu_seconds": round(_cpu_seconds() - before, 1),
        "speed": curve.speed,
        "training": curve.training,
        "evaluations": curve.evaluations,
    }


def _told(results: EvalResults) -> dict[str, Any]:
    interval = [round(one, 4) for one in results.interval]
    return {"success": round(results.success, 4), "interval": interval, "episodes": len(results.episodes)}


def _cpu_seconds() -> float:
    """Return what this process and its ended children have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def render(file: Path) -> str:
    """Write table and curves of the results beside them; returns the table."""
    results = json.loads(file.read_text())
    what = {"state": "from state", "rgb": "from pictures"}[results["kind"]]
    lines = [
        f"# PPO on ManiSkill's PushCube, {what}",
        "",
        f"tiny, `examples/{EXAMPLES[results['kind']]}`, {results['machine']}. Greedy success over held-out episodes before and "
        "after training, with 95 % intervals; wall time without the last evaluation, processor time of all processes with it.",
        "",
        "| seed | before | after | training steps | env steps | wall s | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed, one in results["runs"].items():
        before, after = (_shown(one[name]) for name in ("start", "end"))
        numbers = f"{one['steps']} | {one['env_steps'] / 1000:.0f} k | {one['seconds']:.0f} | {one['cpu_seconds']:.0f}"
        lines.append(f"| {seed} | {before} | {after} | {numbers} |")
    lines += ["", f"![Success over env steps and over time]({file.with_suffix('.png').name})"]
    text = "\n".join(lines) + "\n"
    file.with_suffix(".md").write_text(text)
    plot(results["runs"], file.with_suffix(".png"))
    return text


def _shown(one: Mapping[str, Any]) -> str:
    return f"{one['success']:.3f} ({one['interval'][0]:.2f} to {one['interval'][1]:.2f})"


def plot(runs: Mapping[str, Any], file: Path) -> None:
    """Draw training success (mean of ten steps) and evaluations, over env steps and over minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for number, (seed, one) in enumerate(runs.items()):
        success = _smooth([point[3] for point in one["training"]])
        for axis, column, unit in ((axes[0], 1, 1000), (axes[1], 2, 60)):
            colour = f"C{number}"
            axis.plot(
                [p[column] / unit for p in one["training"]], success, color=colour, linewidth=1, label=f"seed {seed}"
            )
            evaluated = [p for p in one["evaluations"] if p[0] > 0]
            axis.plot([p[column] / unit for p in evaluated], [p[3] for p in evaluated], "o", color=colour, markersize=4)
    axes[0].set_xlabel("thousand env steps")
    axes[1].set_xlabel("minutes")
    axes[0].set_ylabel("success\n(line: training episodes; dots: greedy)")
    for axis in axes:
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _smooth(values: Sequence[float]) -> list[float]:
    return [sum(some := values[max(0, i - 9) : i + 1]) / len(some) for i in range(len(values))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rgb", action="store_true", help="from pictures; wants a GPU that draws, and many cores")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--episodes", type=int, default=256, help="of the last evaluation")
    parser.add_argument("--machine", default=machine(), help="what the result says it was measured on")
    parser.add_argument("--output", type=Path, help="JSON; finished seeds in it are kept")
    parser.add_argument("--overrides", type=json.loads, default={}, help="settings on top of the recipe, as JSON")
    parser.add_argument("--render", action="store_true", help="run nothing")
    options = parser.parse_args()
    kind = "rgb" if options.rgb else "state"
    output = options.output or HERE / "results" / f"maniskill_learning_{kind}.json"
    results: dict[str, Any] = json.loads(output.read_text()) if output.is_file() else {"runs": {}}
    if not options.render:
        results |= {"kind": kind, "machine": options.machine, "overrides": options.overrides}
        for seed in options.seeds:
            part = output.with_suffix(f".{seed}.part")
            results["runs"][str(seed)] = run(kind, options.minutes, seed, options.episodes, options.overrides, part)
            output.write_text(json.dumps(results).replace('"training"', '\n"training"') + "\n")
            part.unlink(missing_ok=True)
    sys.stdout.write(render(output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
