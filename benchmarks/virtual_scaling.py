"""Weak scaling to 256 GPUs, with the controller's own cost. Everything here is *simulated*, but the controller is measured.

    python benchmarks/virtual_scaling.py [--output benchmarks/results/virtual_scaling.json]
    python benchmarks/virtual_scaling.py --controller                # measure the controller again, on real actors, minutes

Every GPU brings 32 environments on 16 cores of its machine and has a generator; one trainer runs on all GPUs beside the
generators, eight GPUs are a machine, and a machine's slots are served by its own generators, in one queue (collocated runs of windows have
one for each GPU now, decision 055, which is 0.3 to 2.5 % less here). Latencies are of GR00T N1.5 on
LIBERO, measured on one H200 with 16 cores where not said otherwise: 780 env steps/s; 31 ms and 2.7 ms a row for a chunk of 10
actions; training 5.6 ms a chunk and pass (its floor of 2.8 ms doubled, as OpenVLA-OFT's measured factor is), 2 passes in
minibatches of 64 chunks a GPU; weights that train: 2.1 GB in bf16. Chunk steps vary log-normally by 20 %.

Between machines (assumed: 10 us, 50 GB/s for each GPU) and in them (measured on NVLink: 2 GiB all-reduced in 6.5 ms)::

    all-reduce of S bytes, n GPUs in m machines = 2 (n - 1) x latency + S / inside + 2 S (m - 1) / m / (8 x between)
    publication                                 = ceil(log2 n) x latency + S / between        (pipelined broadcast)

The controller is one serial server: every call of an actor costs it ``CONTROLLER_S[rows of a slot]``, measured on real actors
as CPU time of its thread for each slot's chunk step, which is one to two calls.

Env steps are counted as they are trained on, without two training steps of warming up and the last. Efficiency: env steps/s
a GPU over the same at 8 GPUs with a controller that costs nothing, so it includes what the controller takes at 8.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.configs import read_one
from rlvla.plugin import find
from rlvla.testing.virtual import Latency, World, play

MACHINE_GPUS, ENVS, ACTIONS, WINDOW = 8, 32, 10, 16
ENV_STEPS_PER_SECOND = 780.0
"""Of one GPU's environments."""
JITTER, DRAWS = 0.2, 499
CALL_S, ROW_S = 0.031, 0.0027
SAMPLE_S, PASSES, MINIBATCH = 0.0056, 2, 64
BYTES, LATENCY_S, INSIDE, BETWEEN = 2.1e9, 10e-6, 330e9, 50e9
SNAPSHOT_S = 0.02
CONTROLLER_S = {4: 0.00057, 8: 0.00065, 16: 0.00083, 32: 0.00089}
CONTROLLER_RAY_S = {16: 0.00192, 32: 0.00217}
"""Likewise under Ray, where a call goes to another process and windows of a slot belong to one rank (``ray_calls.py``)."""
CONTROLLER_RAY_RANK_S = 0.00005
"""And for each further rank that a slot's units belong to."""
STEPS, WARM_UP = 5, 2
GENERATOR_SHARE, TRAINER_SHARE = 1.0, 1.0


def all_reduce_seconds(gpus: int) -> float:
    """Return the seconds of one all-reduce of the gradients: a ring in each machine, rings of equals between them."""
    machines = gpus / MACHINE_GPUS
    between = 2 * (machines - 1) / machines / (MACHINE_GPUS * BETWEEN)
    return 2 * (gpus - 1) * LATENCY_S + BYTES * (1 / INSIDE + between)


def publication_seconds(gpus: int) -> float:
    """Return the seconds from the trainer's copy to all generators."""
    return math.ceil(math.log2(gpus)) * LATENCY_S + BYTES / (INSIDE if gpus <= MACHINE_GPUS else BETWEEN)


@lru_cache(maxsize=4)
def chunk_seconds(slots: int) -> list[list[float]]:
    """Return the seconds of chunk steps, by slot and step; a stream for each slot."""
    mean = ENVS * ACTIONS / ENV_STEPS_PER_SECOND
    streams = [np.random.default_rng([0, slot]) for slot in range(slots)]
    return [(mean * one.lognormal(-(JITTER**2) / 2, JITTER, DRAWS)).tolist() for one in streams]


def cluster(gpus: int, slot_rows: int, controller_s: float, minibatch: int = MINIBATCH) -> World:
    """Return a world of so many GPUs; a training step takes one window of each environment."""
    slots = gpus * ENVS // slot_rows
    seconds = chunk_seconds(slots)
    samples = ENVS * WINDOW * PASSES
    training = samples * SAMPLE_S + samples / minibatch * all_reduce_seconds(gpus)

    def on(kind: str, number: int) -> list[tuple[str, float]]:
        if kind == "generator":
            return [(f"gpu-{number}", GENERATOR_SHARE)]
        return [(f"gpu-{gpu}", TRAINER_SHARE) for gpu in range(gpus)] if kind == "trainer" else []

    return World(
        slots=(slot_rows,) * slots,
        generators=gpus,
        stations=max(1, gpus // MACHINE_GPUS),
        on=on,
        controller_s=controller_s,
        window=WINDOW,
        units_per_step=gpus * ENVS,
        steps=STEPS,
        latency=Latency(
            simulate=lambda slot, step: seconds[slot][step % DRAWS],
            generate_call=CALL_S,
            generate_row=ROW_S,
            train=lambda step: training,
            snapshot=SNAPSHOT_S,
            transfer=publication_seconds(gpus),
            offer=SNAPSHOT_S,
        ),
        episode=lambda slot, number: 1_000_000,
        batch_rows=ENVS,
    )


def rate(use: str, world: World) -> dict[str, float]:
    """Return trained env steps/s after warming up, how busy the controller was, and what the run cost here."""
    plugin = find("scheduler", use)
    began = time.process_time()
    played = play(plugin.load()(read_one(plugin.config, {})), world)
    cpu_s = time.process_time() - began
    before, after = played.marks[WARM_UP - 1], played.marks[-2]
    seconds = (after.seconds - before.seconds) / (len(played.marks) - 1 - WARM_UP)
    chunks = len(world.slots) * WINDOW * world.steps
    return {
        "env_steps_per_second": world.units_per_step * WINDOW * ACTIONS / seconds,
        "controller_busy": (after.devices["controller"] - before.devices["controller"])
        / (after.seconds - before.seconds),
        "batch_rows": float(np.mean(played.batches[before.batches : after.batches])),
        "cpu_s": round(cpu_s, 2),
        "cpu_us_a_slot_chunk_step": round(1e6 * cpu_s / chunks, 1),
    }


def neighbour(name: str) -> Any:
    """Return another benchmark."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def measured_controller(slot_rows: int, steps: int = 6) -> float:
    """Return the CPU seconds of the controller's thread for each slot chunk step, under full-async on real actors."""
    overlap = neighbour("overlap")
    overlap.ROWS = slot_rows
    return float(overlap.real({"use": "full-async"}, overlap.LONG_TAILS, steps)[1])


def call_seconds(slot_rows: int, free: dict[str, float], step_s: float) -> float:
    """Return what a call costs the controller, so that a slot's chunk step costs what was measured.

    Args:
        slot_rows: environments of a slot.
        free: a run whose controller costs nothing: how many slots share a call of the generator.
        step_s: of the controller's CPU for each slot's chunk step.
    """
    return step_s / (1 + slot_rows / free["batch_rows"])


def study(
    use: str, slot_rows: int, sizes: Sequence[int], minibatch: int = MINIBATCH, controller_s: float | None = None
) -> dict[str, Any]:
    """Return a scheduler's rates on slots of so many rows, by GPUs; ``controller_s`` stands for ``CONTROLLER_S``."""
    free = rate(use, cluster(8, slot_rows, 0.0, minibatch))
    call_s = call_seconds(slot_rows, free, CONTROLLER_S[slot_rows] if controller_s is None else controller_s)
    rows = {}
    for gpus in sizes:
        found: dict[str, Any] = rate(use, cluster(gpus, slot_rows, call_s, minibatch))
        found["efficiency"] = found["env_steps_per_second"] / gpus / (free["env_steps_per_second"] / 8)
        rows[str(gpus)] = found
        print(f"{use}, slots of {slot_rows}, {gpus} GPUs", json.dumps(found), flush=True)
    return {"free_at_8": free, "gpus": rows}


def markdown(result: dict[str, Any], picture: str) -> str:
    """Return the result as a page."""
    lines = [
        "# Weak scaling to 256 GPUs (simulated)",
        "",
        f"Simulated: no GPU and no simulator ran; {result['machine']}, shared with other work. 32 environments a GPU. What the "
        "controller takes was measured on real actors there, in ms of CPU for each slot chunk step, by rows of a slot: "
        + ", ".join(f"{rows}: {1000 * one:.2f}" for rows, one in CONTROLLER_S.items())
        + ". Latencies, formulas and how it is counted: `benchmarks/virtual_scaling.py`.",
        "",
        "Env steps/s a GPU; efficiency against 8 GPUs with a controller that costs nothing; share of time that the controller "
        "is busy; CPU seconds that the simulation took.",
        "",
        "| scheduler | slots of | GPUs | env steps/s a GPU | efficiency | controller busy | rows a call | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in result["studies"].items():
        use, rows = name.split(", slots of ")
        for gpus, one in found["gpus"].items():
            lines.append(
                f"| {use} | {rows} | {gpus} | {one['env_steps_per_second'] / int(gpus):.1f} | {one['efficiency']:.3f} | "
                f"{one['controller_busy']:.2f} | {one['batch_rows']:.1f} | {one['cpu_s']:.1f} |"
            )
    largest = {name: found["gpus"]["256"] for name, found in result["studies"].items() if "256" in found["gpus"]}
    worst = largest["full-async, slots of 4"]
    by_ray, larger = (largest[f"full-async, slots of {rows}, controller under Ray"] for rows in (16, 32))
    at_64 = result["studies"]["full-async, slots of 16, controller under Ray"]["gpus"]["64"]

    def reached(rows: int) -> str:
        one = largest[f"full-async, slots of {rows}"]
        return f"{one['efficiency']:.3f} ({one['env_steps_per_second'] / 256:.0f} env steps/s a GPU)"

    lines += [
        "",
        f"At 256 GPUs the limit is the controller: busy {100 * worst['controller_busy']:.0f} % of the time with slots of 4 "
        f"({worst['efficiency']:.3f}). Larger slots mean fewer calls: slots of 16 reach "
        f"{reached(16)}, of 32 {reached(32)}, each against 8 GPUs with its own slots. "
        f"With a controller that costs nothing slots of 16 would reach "
        f"{largest['full-async, slots of 16, controller free']['efficiency']:.3f}; fewer all-reduces, by minibatches of 256 "
        f"chunks a GPU, do not help ({largest['full-async, slots of 16, minibatches of 256']['efficiency']:.3f}). In lockstep (sync, and stages of "
        "hybrid) every phase waits for the controller's calls for all slots, and for the slowest of more slots. Under Ray a slot's "
        f"chunk step takes {1000 * CONTROLLER_RAY_S[16]:.2f} ms of the controller's CPU, where its windows belong to one rank, and "
        f"{1000 * CONTROLLER_RAY_RANK_S:.2f} ms for each further rank that its units belong to, as groups may: at 64 GPUs it is busy "
        f"{100 * at_64['controller_busy']:.0f} % of the time, at 256 {100 * by_ray['controller_busy']:.0f} %, and "
        f"{by_ray['efficiency']:.3f} is reached, with slots of 32 ({1000 * CONTROLLER_RAY_S[32]:.2f} ms) {larger['efficiency']:.3f}. "
        "Largest simulation: "
        f"256 GPUs, 8192 environments, {STEPS} training steps in {max(one['cpu_s'] for one in largest.values()):.0f} s of CPU.",
    ]
    return "\n".join([*lines, "", f"![Efficiency by GPUs]({picture})", ""])


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw efficiency and the controller's busy share by GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, found in result["studies"].items():
        gpus = [int(one) for one in found["gpus"]]
        for axis, value in zip(axes, ("efficiency", "controller_busy"), strict=True):
            axis.plot(gpus, [one[value] for one in found["gpus"].values()], "o-", label=name)
    axes[0].axhline(0.95, color="grey", linestyle=":")
    axes[0].set_ylabel("efficiency (simulated)")
    axes[0].set_ylim(0, 1.1)
    axes[1].set_ylabel("controller busy (simulated)")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("GPUs, 32 environments each")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


SIZES = (8, 16, 32, 64, 128, 256)
STUDIES: dict[str, dict[str, Any]] = {
    "full-async, slots of 16": {"use": "full-async", "slot_rows": 16, "sizes": SIZES},
    "full-async, slots of 4": {"use": "full-async", "slot_rows": 4, "sizes": (8, 64, 256)},
    "full-async, slots of 8": {"use": "full-async", "slot_rows": 8, "sizes": (8, 256)},
    "full-async, slots of 32": {"use": "full-async", "slot_rows": 32, "sizes": (8, 256)},
    "full-async, slots of 16, controller free": {
        "use": "full-async",
        "slot_rows": 16,
        "sizes": (8, 256),
        "controller_s": 0.0,
    },
    **{
        f"full-async, slots of {rows}, controller under Ray": {
            "use": "full-async",
            "slot_rows": rows,
            "sizes": (8, 64, 256),
            "controller_s": seconds,
        }
        for rows, seconds in CONTROLLER_RAY_S.items()
    },
    "full-async, slots of 16, minibatches of 256": {
        "use": "full-async",
        "slot_rows": 16,
        "sizes": (8, 256),
        "minibatch": 256,
    },
    **{
        f"{use}, slots of 16": {"use": use, "slot_rows": 16, "sizes": (8, 256)}
        for use in ("sync", "async-rollout", "hybrid")
    },
}


def write(result: dict[str, Any], output: Path) -> None:
    """Write a result, and its page and picture beside it."""
    output.write_text(json.dumps(result, indent=1) + "\n")
    output.with_suffix(".md").write_text(markdown(result, f"{output.stem}.png"))
    draw(result, output.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controller", action="store_true", help="measure the controller on real actors, and print it")
    parser.add_argument("--output", type=Path, help="a JSON file; a page and a picture are written beside it")
    arguments = parser.parse_args()
    if arguments.controller:
        for rows in CONTROLLER_S:
            print(f"{rows} rows: {1000 * measured_controller(rows):.3f} ms a slot chunk step")
        for ranks, of_slot in ((2, 1), (8, 4)):
            found = neighbour("ray_calls").measured(ranks=ranks, slots=2, rows=16, window=32, steps=6)
            print(f"Ray, 16 rows, {of_slot} ranks a slot: {found['controller_ms']:.3f} ms a slot chunk step")
        return
    result = {
        "simulated": True,
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "controller_s": CONTROLLER_S,
        "studies": {name: study(**one) for name, one in STUDIES.items()},
    }
    if arguments.output:
        write(result, arguments.output)
    else:
        print(markdown(result, ""))


if __name__ == "__main__":
    main()
