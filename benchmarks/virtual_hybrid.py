"""Where the hybrid placement pays: simulation, generation and training on 8 GPUs. Everything here is *simulated*.

Hybrid: simulators on some GPUs, generators on the others, training on all; each simulator's environments in k stages that
alternate with the generators. Against it: *disaggregated* (simulators, generators and trainer on GPUs of their own, nothing
overlaps; 2/2/4, or the best split), the same pipelined with k = 2, and *collocated* (everything on all GPUs in turn).

    python benchmarks/virtual_hybrid.py [--output benchmarks/results/virtual_hybrid.json]

Work: 256 environments on simulators that run on GPUs, 20 chunk steps a rollout, then training. A call with n environments
takes c (f 64 + (1 - f) n): a part f of what 64 take does not shrink. Shares are of the GPU seconds at 64 a call. The sweep
varies simulation / (simulation + generation) and training's share of all; offloading (parameters and optimizer of the phase
that ends) is a share of the ideal step, charged to hybrid and collocated.

With d simulator devices, e generators, k stages on each device, n = 256 / (d k), g and s seconds of a call:

    round   = max(d k g(n) / e, k s(n), g(n) + s(n))
    rollout = 20 round + what does not overlap at the ends (s(n) after the last call, or g(n) before the first step)

where s is of the device with most environments. A stage is one slot: one simulator call, one request. The stages and the
split of hybrid are those with the shortest step (k of 1, 2, 4; simulators on 2 to 6 GPUs). A grid of points is run in virtual
time with the product's schedulers; the largest deviation is part of the result.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.checks import split
from rlvla.configs import read_one
from rlvla.plugin import find
from rlvla.testing.virtual import Latency, World, play

GPUS, ENVS, CHUNKS, REFERENCE = 8, 256, 20, 64
PUBLISHED = 1.88
STAGES = (1, 2, 4)
SPLITS = (2, 3, 4, 5, 6)
FIXED = ((0.0, 0.0, 0.0), (0.3, 0.1, 0.0), (0.3, 0.1, 0.02), (0.5, 0.1, 0.02), (0.8, 0.1, 0.02))
"""Fixed part of simulation and of generation, offloading."""
MIXES = tuple(round(0.05 * number, 2) for number in range(1, 20))
TRAINING = tuple(round(0.05 * number, 2) for number in range(1, 19))


@dataclass(frozen=True)
class Work:
    """A step's work: GPU seconds add up to 1 in calls of 64."""

    mix: float
    """Simulation / (simulation + generation)."""
    training: float
    """Share of all."""
    fixed_simulate: float = 0.0
    fixed_generate: float = 0.0
    offload: float = 0.0
    """Share of an ideal step (1 / 8 s) for going from rollout to training and back."""

    @property
    def _calls(self) -> float:
        return CHUNKS * ENVS / REFERENCE

    def simulate(self, rows: float) -> float:
        """Return the seconds of a simulator's chunk step."""
        return self._seconds(self.mix * (1 - self.training), self.fixed_simulate, rows)

    def generate(self, rows: float) -> float:
        """Return the seconds of a generator's call."""
        return self._seconds((1 - self.mix) * (1 - self.training), self.fixed_generate, rows)

    def _seconds(self, share: float, fixed: float, rows: float) -> float:
        return share / self._calls * (fixed + (1 - fixed) * rows / REFERENCE)

    def train(self, gpus: int) -> float:
        """Return the seconds of training."""
        return self.training / gpus

    @property
    def offloading(self) -> float:
        """Return the seconds of offloading in a step."""
        return self.offload / GPUS


# ---- closed form -----------------------------------------------------------------------------------------------------


def rollout_seconds(work: Work, devices: int, generators: int, stages: int) -> float:
    """Return how long 20 chunks of all environments take."""
    slots = devices * stages
    call = work.generate(ENVS / slots)
    stage = work.simulate(sum(split(ENVS, slots)[:stages]) / stages)
    generating, simulating = slots * call / generators, stages * stage
    if call + stage >= max(generating, simulating):
        return CHUNKS * (call + stage) + (stages - 1) * min(call, stage)
    return CHUNKS * max(generating, simulating) + (stage if generating >= simulating else call)


def hybrid_seconds(work: Work, devices: int, stages: int) -> float:
    """Return a step's seconds with simulators on so many GPUs and generators on the others."""
    return rollout_seconds(work, devices, GPUS - devices, stages) + work.train(GPUS) + work.offloading


def derived(work: Work) -> tuple[float, int, int]:
    """Return the best hybrid step's seconds, simulator GPUs and stages."""
    return min((hybrid_seconds(work, devices, stages), devices, stages) for devices in SPLITS for stages in STAGES)


def disaggregated_seconds(work: Work, devices: int, generators: int, stages: int = 1) -> float:
    """Return a step's seconds with all roles apart. Rows are split over generators as if that cost nothing."""
    trainers = GPUS - devices - generators
    if stages == 1:
        rollout = CHUNKS * (work.simulate(ENVS / devices) + work.generate(ENVS / generators))
    else:
        stage, call = work.simulate(ENVS / devices / stages), work.generate(ENVS / generators / stages)
        rollout = CHUNKS * stages * max(stage, call) + min(stage, call)
    return rollout + work.train(trainers)


def best_disaggregated(work: Work, stages: tuple[int, ...] = (1,)) -> tuple[float, str]:
    """Return the best split's seconds, and the split."""
    splits = ((one, other) for one in range(1, GPUS - 1) for other in range(1, GPUS - one))
    return min(
        (disaggregated_seconds(work, one, other, count), f"{one}/{other}/{GPUS - one - other} k={count}")
        for one, other in splits
        for count in stages
    )


def collocated_seconds(work: Work) -> float:
    """Return a step's seconds with all roles on all GPUs, one after the other."""
    rows = ENVS / GPUS
    return CHUNKS * (work.simulate(rows) + work.generate(rows)) + work.train(GPUS) + work.offloading


# ---- virtual time ----------------------------------------------------------------------------------------------------


def virtual_seconds(
    work: Work, devices: int, generators: int, trainers: int, stages: int, use: str = "hybrid"
) -> float:
    """Return a step's seconds on the product's scheduler and graph; the second step's, without offloading."""
    sizes = split(ENVS, devices * stages)
    count, seconds = len(sizes), [work.simulate(rows) for rows in sizes]
    call, row = work.generate(0), work.generate(1) - work.generate(0)
    world = World(
        slots=sizes,
        generators=generators,
        on=lambda kind, number: [(f"gpu-{number * devices // count}", 1.0)] if kind == "simulator" else [],
        window=CHUNKS,
        units_per_step=ENVS,
        steps=2,
        latency=Latency(
            simulate=lambda slot, step: seconds[slot],
            generate_call=call,
            generate_row=row,
            train=lambda step: work.train(trainers),
        ),
        episode=lambda slot, number: 1_000_000,
    )
    plugin = find("scheduler", use)
    options = {"stages": stages} if use == "hybrid" else {}
    marks = play(plugin.load()(read_one(plugin.config, options)), world).marks
    return marks[1].seconds - marks[0].seconds


def checked() -> Iterator[tuple[str, float, float]]:
    """Run corners and the middle of the sweep in virtual time; yields a name, closed form and virtual seconds."""
    for mix, training, fixed in itertools.product((0.05, 0.3, 0.5, 0.7, 0.95), (0.05, 0.45), (FIXED[0], FIXED[3])):
        work = Work(mix, training, fixed[0], fixed[1])
        at = f"simulation {mix:.2f} of rollout, training {training:.2f}, fixed {fixed[0]}/{fixed[1]}"
        for devices, stages in sorted({(4, 1), (4, 2), (4, 4), (2, 4), (6, 2), derived(work)[1:]}):
            generators = GPUS - devices
            closed = hybrid_seconds(work, devices, stages)
            name = f"hybrid {devices}/{generators}/8 k={stages}: {at}"
            yield name, closed, virtual_seconds(work, devices, generators, GPUS, stages)
        yield f"2/2/4: {at}", disaggregated_seconds(work, 2, 2), virtual_seconds(work, 2, 2, 4, 1)
        yield f"2/2/4 k=2: {at}", disaggregated_seconds(work, 2, 2, 2), virtual_seconds(work, 2, 2, 4, 2)
        yield f"collocated: {at}", collocated_seconds(work), virtual_seconds(work, 8, 8, 8, 1, use="sync")


# ---- the map ---------------------------------------------------------------------------------------------------------

GAINS = {
    "4/4/8 k=1 over 2/2/4": lambda work: disaggregated_seconds(work, 2, 2) / hybrid_seconds(work, 4, 1),
    "4/4/8 k=2 over 2/2/4": lambda work: disaggregated_seconds(work, 2, 2) / hybrid_seconds(work, 4, 2),
    "4/4/8 k=4 over 2/2/4": lambda work: disaggregated_seconds(work, 2, 2) / hybrid_seconds(work, 4, 4),
    "derived over 2/2/4": lambda work: disaggregated_seconds(work, 2, 2) / derived(work)[0],
    "derived over 2/2/4 pipelined (k=2)": lambda work: disaggregated_seconds(work, 2, 2, 2) / derived(work)[0],
    "derived over best disaggregated": lambda work: best_disaggregated(work)[0] / derived(work)[0],
    "derived over best disaggregated, pipelined": lambda work: best_disaggregated(work, STAGES)[0] / derived(work)[0],
    "derived over collocated": lambda work: collocated_seconds(work) / derived(work)[0],
    "pipelining alone: derived k over k=1, each with its best split": lambda work: (
        min(hybrid_seconds(work, devices, 1) for devices in SPLITS) / derived(work)[0]
    ),
}
PICTURES = ("4/4/8 k=2 over 2/2/4", "derived over 2/2/4", "derived over best disaggregated", "derived over collocated")


def sweep(fixed: tuple[float, float, float]) -> dict[str, Any]:
    """Return every gain, by training share and mix, and what was derived."""
    works = [[Work(mix, training, *fixed) for mix in MIXES] for training in TRAINING]
    return {
        "gains": {name: np.array([[gain(work) for work in row] for row in works]) for name, gain in GAINS.items()},
        "derived": [[derived(work)[1:] for work in row] for row in works],
    }


def summary(gains: Any) -> dict[str, Any]:
    """Return a gain over the sweep in a few numbers."""
    reached = np.argwhere(gains >= PUBLISHED)
    row, column = np.unravel_index(gains.argmax(), gains.shape)
    found: dict[str, Any] = {
        "least": round(float(gains.min()), 2),
        "median": round(float(np.median(gains)), 2),
        "most": round(float(gains.max()), 2),
        "most_at": {"simulation_of_rollout": MIXES[column], "training": TRAINING[row]},
        "share_at_least_1.88": round(float((gains >= PUBLISHED).mean()), 2),
    }
    if len(reached):
        mixes, trainings = [MIXES[one] for one in reached[:, 1]], [TRAINING[one] for one in reached[:, 0]]
        found["1.88_within"] = {
            "simulation_of_rollout": [min(mixes), max(mixes)],
            "training": [min(trainings), max(trainings)],
        }
    return found


def draw(sweeps: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the maps, with the line of the published gain."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(sweeps), len(PICTURES), figsize=(14, 2.7 * len(sweeps)), layout="constrained")
    for row, (fixed, found) in zip(axes, sweeps.items(), strict=True):
        for axis, name in zip(row, PICTURES, strict=True):
            gains = found["gains"][name]
            picture = axis.pcolormesh(MIXES, TRAINING, gains, vmin=0.5, vmax=4.0, cmap="viridis", shading="nearest")
            if gains.min() < PUBLISHED < gains.max():
                line = axis.contour(MIXES, TRAINING, gains, [PUBLISHED], colors="white")
                axis.clabel(line, fmt="%.2f")
            if gains.min() < 1.0 < gains.max():
                axis.contour(MIXES, TRAINING, gains, [1.0], colors="red", linewidths=1)
            axis.set_title(f"{name}\nfixed {fixed}", fontsize=8)
            axis.set_xlabel("simulation / (simulation + generation)", fontsize=7)
            axis.set_ylabel("training's share", fontsize=7)
            axis.tick_params(labelsize=7)
    figure.colorbar(picture, ax=axes, label="gain (simulated); white: 1.88, red: 1")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def markdown(result: dict[str, Any], picture: str) -> str:
    """Return the result as a page."""
    lines = [
        "# Hybrid placement on 8 GPUs (simulated)",
        "",
        f"Closed form over {len(MIXES) * len(TRAINING)} mixes of work, checked in virtual time at {result['checked']} points "
        f"(corners, the middle, every derived choice there) against the product's schedulers: largest deviation "
        f"{100 * result['largest_deviation']:.1f} % ({result['largest_deviation_at']}). Nothing here ran on a GPU; "
        f"{result['machine']}, {result['cpu_s']:.0f} s of CPU. Method: `benchmarks/virtual_hybrid.py`.",
        "",
        "Gains over all mixes (least / median / most, and the share of mixes at 1.88 or more). *Fixed* is the part of a call of "
        "64 that does not shrink with its environments, of simulation and of generation; *offload* a share of the ideal step.",
        "",
        "| fixed, offload | " + " | ".join(GAINS) + " |",
        "|---|" + "---|" * len(GAINS),
    ]
    for fixed, found in result["sweeps"].items():
        cells = [
            f"{one['least']} / {one['median']} / {one['most']}; {100 * one['share_at_least_1.88']:.0f} %"
            for one in found.values()
        ]
        lines.append(f"| {fixed} | " + " | ".join(cells) + " |")
    against = [found["derived over collocated"] for found in result["sweeps"].values()]
    lines += [
        "",
        f"Everything on all GPUs in turn (collocated) is at least as fast in every mix: the derived split reaches "
        f"{max(one['most'] for one in against)} of it at most, {min(one['median'] for one in against)} to "
        f"{max(one['median'] for one in against)} in the median. Hybrid is for what does not fit into one GPU together.",
        "",
        "Where 4/4/8 with k = 2 gains 1.88 or more over 2/2/4:",
        "",
        "| fixed, offload | simulation / (simulation + generation) | training's share |",
        "|---|---|---|",
    ]
    for fixed, found in result["sweeps"].items():
        within = found["4/4/8 k=2 over 2/2/4"].get("1.88_within")
        if within:
            one, other = within["simulation_of_rollout"], within["training"]
            lines.append(f"| {fixed} | {one[0]} to {one[1]} | {other[0]} to {other[1]} |")
        else:
            lines.append(f"| {fixed} | nowhere | |")
    lines += [
        "",
        "What is derived, in shares of the mixes:",
        "",
        "| fixed, offload | k | simulators' GPUs |",
        "|---|---|---|",
    ]
    for fixed, found in result["derived"].items():
        lines.append(f"| {fixed} | {found['stages']} | {found['devices']} |")
    return "\n".join([*lines, "", f"![Maps of the gain]({picture})", ""])


def shares(values: list[int]) -> str:
    """Return how often each value occurs, in percent."""
    return ", ".join(f"{one}: {100 * values.count(one) / len(values):.0f} %" for one in sorted(set(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file; a page and a picture are written beside it")
    arguments = parser.parse_args()
    began = time.process_time()
    points = list(checked())
    deviation, at = max((abs(virtual / closed - 1), name) for name, closed, virtual in points)
    sweeps = {f"{one}/{other}, {100 * offload:.0f} %": sweep((one, other, offload)) for one, other, offload in FIXED}
    result = {
        "simulated": True,
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "checked": len(points),
        "largest_deviation": deviation,
        "largest_deviation_at": at,
        "sweeps": {
            fixed: {name: summary(one) for name, one in found["gains"].items()} for fixed, found in sweeps.items()
        },
        "derived": {
            fixed: {
                "devices": shares([one[0] for row in found["derived"] for one in row]),
                "stages": shares([one[1] for row in found["derived"] for one in row]),
            }
            for fixed, found in sweeps.items()
        },
        "cpu_s": round(time.process_time() - began, 1),
    }
    page = markdown(result, f"{arguments.output.stem}.png" if arguments.output else "")
    print(page)
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
        arguments.output.with_suffix(".md").write_text(page)
        draw(sweeps, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
