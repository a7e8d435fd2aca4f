"""RL-VLA3's three schedules and ours, on latencies that fit its published throughput. Everything here is *simulated*.

The paper's table (LIBERO, GR00T N1.5, PPO, 8 GPUs, 256 environments, all roles on all GPUs) has five numbers. Several quite
different machines give all five (``READINGS``): the table does not say what its bottleneck was. ``ss``, ``as`` and ``aa`` are
schedulers on our graph (``rl_vla3_schedules.py``); then our schedulers run on the same latencies, and
full-async with one mechanism taken away at a time.

    python benchmarks/virtual_rl_vla3.py                                    # table on standard output, minutes
    python benchmarks/virtual_rl_vla3.py --output benchmarks/results/virtual_rl_vla3.json
    python benchmarks/virtual_rl_vla3.py --fit host-bound                   # fit a reading again

A GPU's machine: its slots run on a host that progresses ``jobs`` of them at once (serial seconds of an env step: messages,
stacking, rendering in turn), then each on cores of its own (parallel seconds of a control step, the slowest environment of
the slot counts, log-normal; with a small probability a chunk has a long tail); the generator wants half of the GPU (eager
code waits for its launches), the trainer 0.9: when both run, both slow down alike. Their push stops everybody for 8 s; ours
copies for 0.5 s on either side and travels beside everything else. Every schedule has the same windows of 48 chunks of 10
actions, resets, batches and training samples: 4 waves of 256 windows for each new version of the weights.

The schedule bound is the longest of what one version needs by its dependencies alone, at the batch sizes that were reached:
each host's work over its capacity; generator and trainer of a GPU, each serial in itself; the slowest slot's own chain of
chunks; and, since a unit may be ``max_staleness`` versions old, (rollout + training + publication) / (max_staleness + 1).
The device bound is the first of these, and each GPU's summed work.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rl_vla3_schedules import GPUS, WAVES, InOrder, RlVla3, StopsToPublish

from rlvla.batcher import Batcher
from rlvla.configs import read_one
from rlvla.plugin import find
from rlvla.scheduler import Scheduler
from rlvla.testing.virtual import Latency, World, play
from rlvla_sched_full_async import FullAsyncConfig

PAPER = {"ss-1": 217.27, "ss-2": 242.30, "ss-4": 240.13, "as-4": 344.47, "aa-4": 423.39}
"""Published throughput, taken as env steps/s; the paper's unit is not known to us. Other units scale all latencies alike."""
ENVS, ACTIONS, WINDOW = 256, 10, 48
VERSION_STEPS = ENVS * ACTIONS * WINDOW * WAVES
"""Env steps for each new version of the weights."""
GENERATOR_SHARE, TRAINER_SHARE = 0.5, 0.9
WARM_UP = 2
DRAWS = 499
"""Chunk steps of a slot after which its latencies repeat."""


@dataclass(frozen=True)
class Reading:
    """Latencies of one GPU's part of the machine, in seconds."""

    serial: float
    """Host work of an env step."""
    jobs: float
    """Slots that the host progresses at once."""
    parallel: float
    """Of a control step of one environment, mean."""
    spread: float
    """Sigma of its logarithm."""
    tail_rate: float
    """Chunks of one environment that have a long tail."""
    tail: float
    """Mean seconds of one."""
    call: float
    row: float
    """A batch of n takes ``call + n * row``."""
    sample: float
    """Training on a chunk, all passes, on one GPU."""
    free: tuple[str, ...] = ()
    """What was fitted; the rest was chosen."""


READINGS = {
    "host-bound": Reading(
        serial=0.02503,
        jobs=1.517,
        parallel=0.0091,
        spread=0.25,
        tail_rate=0.002,
        tail=3.0,
        call=0.25,
        row=0.03014,
        sample=0.05779,
        free=("serial", "jobs", "parallel", "row", "sample"),
    ),
    "generator overhead": Reading(
        serial=0.02106,
        jobs=4.0,
        parallel=0.01207,
        spread=0.25,
        tail_rate=0.002,
        tail=3.0,
        call=0.9459,
        row=0.01229,
        sample=0.09336,
        free=("serial", "parallel", "call", "row", "sample"),
    ),
    "long tails": Reading(
        serial=0.01206,
        jobs=4.0,
        parallel=0.01539,
        spread=0.5,
        tail_rate=0.02,
        tail=5.12,
        call=0.25,
        row=0.0488,
        sample=0.06978,
        free=("serial", "parallel", "tail", "row", "sample"),
    ),
}
RESIDUAL = 0.006
"""Each number of the table is met to this relative error, by seed 0."""


# ---- the machine -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def draws(slots: int, rows: int, spread: float, tail_rate: float, seed: int) -> tuple[Any, Any]:
    """Return, by slot and chunk step, the sum of the slowest environments' factors and of tails; a stream for each slot."""
    streams = [np.random.default_rng([seed, slot]) for slot in range(slots)]
    factors = [np.exp(one.normal(-(spread**2) / 2, spread, (DRAWS, ACTIONS, rows))).max(2).sum(1) for one in streams]
    tails = [
        np.where(one.random((DRAWS, rows)) < tail_rate, one.exponential(1.0, (DRAWS, rows)), 0.0).max(1)
        for one in streams
    ]
    return np.array(factors), np.array(tails)


def place(kind: str, number: int, slots: int) -> list[tuple[str, float]]:
    """Return the devices of an actor: a GPU's slots share a host, the trainer is on all GPUs."""
    if kind == "simulator":
        return [(f"host-{number * GPUS // slots}", 1.0)]
    if kind == "generator":
        return [(f"gpu-{number}", GENERATOR_SHARE)]
    return [(f"gpu-{gpu}", TRAINER_SHARE) for gpu in range(GPUS)]


def machine(
    reading: Reading,
    slot_rows: int,
    versions: int,
    *,
    waves_a_step: int,
    own_generator: bool = False,
    batch_rows: int | None = ENVS // GPUS,
    seed: int = 0,
) -> World:
    """Return a world of slots of so many rows; a training step takes so many waves.

    Args:
        reading: latencies.
        slot_rows: environments of a slot.
        versions: of the weights, to be played.
        waves_a_step: 1: four training steps a version.
        own_generator: a GPU's slots are served by its own generator; else by any.
        batch_rows: most rows in a call.
        seed: of the latencies.
    """
    slots = ENVS // slot_rows
    factors, tails = draws(slots, slot_rows, reading.spread, reading.tail_rate, seed)
    alone = (reading.parallel * factors + reading.tail * tails).tolist()
    host = ACTIONS * slot_rows * reading.serial
    training = reading.sample * ENVS * WINDOW / GPUS * waves_a_step
    return World(
        slots=(slot_rows,) * slots,
        generators=GPUS,
        stations=GPUS if own_generator else 1,
        on=lambda kind, number: place(kind, number, slots),
        capacities={f"host-{gpu}": reading.jobs for gpu in range(GPUS)},
        window=WINDOW,
        units_per_step=ENVS * waves_a_step,
        steps=versions * WAVES // waves_a_step,
        latency=Latency(
            simulate=lambda slot, step: host,
            simulate_alone=lambda slot, step: float(alone[slot][step % DRAWS]),
            reset_row=0.15,
            reset_alone=3.0,
            generate_call=reading.call,
            generate_row=reading.row,
            train=lambda step: training,
            snapshot=0.5,
            transfer=7.0,
            offer=0.5,
        ),
        episode=lambda slot, number: WINDOW,
        batch_rows=batch_rows,
    )


# ---- theirs ----------------------------------------------------------------------------------------------------------


def theirs(name: str, reading: Reading, seed: int = 0, versions: int = 1) -> float:
    """Return the env steps/s of one of the paper's five settings."""
    mode, stages = name.split("-")
    world = machine(
        reading, ENVS // GPUS // int(stages), versions, waves_a_step=1, own_generator=True, batch_rows=None, seed=seed
    )
    return versions * VERSION_STEPS / play(RlVla3(mode), world).seconds


def fit(reading: Reading, rounds: int = 5) -> Reading:
    """Return the reading with its free latencies fitted to the paper's numbers: Gauss-Newton on logarithms, damped."""
    wanted = np.log(list(PAPER.values()))

    def misfit(logs: Any) -> Any:
        tried = dataclasses.replace(reading, **dict(zip(reading.free, np.exp(logs).tolist(), strict=True)))
        return np.log([theirs(name, tried) for name in PAPER]) - wanted

    logs = np.log([getattr(reading, name) for name in reading.free])
    error = misfit(logs)
    for _ in range(rounds):
        slopes = np.array([(misfit(logs + 0.03 * one) - error) / 0.03 for one in np.eye(len(logs))]).T
        damped = np.linalg.solve(slopes.T @ slopes + 1e-3 * np.eye(len(logs)), -slopes.T @ error)
        steps = [logs + scale * damped for scale in (1.0, 0.4, 0.1)]
        errors = [misfit(one) for one in steps]
        best = min(range(len(steps)), key=lambda number: float(errors[number] @ errors[number]))
        if errors[best] @ errors[best] >= error @ error:
            break
        logs, error = steps[best], errors[best]
        print(
            np.round(100 * error, 2).tolist(),
            dict(zip(reading.free, np.exp(logs).round(5).tolist(), strict=True)),
            flush=True,
        )
    return dataclasses.replace(reading, **dict(zip(reading.free, np.exp(logs).tolist(), strict=True)))


# ---- ours ------------------------------------------------------------------------------------------------------------


def ours(use: str) -> Scheduler:
    """Return a scheduler of the product, as it comes."""
    plugin = find("scheduler", use)
    scheduler: Scheduler = plugin.load()(read_one(plugin.config, {}))
    return scheduler


@dataclass(frozen=True)
class Variant:
    """A scheduler, and how it is served."""

    scheduler: Callable[[], Scheduler]
    slot_rows: int = 4
    waves_a_step: int = WAVES
    own_generator: bool = False
    batch_rows: int = ENVS // GPUS
    cost_rule: bool = True
    versions: int = 6
    """Played. Not counted: the first two, which warm up, and the last, beside which nothing is played."""


AIM = 0.97
SMALL = "full-async, slots of 2"


def full_async() -> Scheduler:
    """Return full-async with its default bound of one version."""
    return ours("full-async")


OURS = {
    "sync": Variant(lambda: ours("sync"), versions=5),
    "async-rollout": Variant(lambda: ours("async-rollout"), versions=5),
    "hybrid": Variant(lambda: ours("hybrid"), versions=5),
    "full-async": Variant(full_async, versions=9),
    SMALL: Variant(full_async, slot_rows=2, versions=7),
}
STRICT = "service out of order (strict rounds, own generator, one request a call)"
SINGLE = "dynamic batches (one request a call)"
WITHOUT = {
    "versions that overlap (a barrier after each, as in aa)": Variant(
        lambda: RlVla3("aa", ordered=False), waves_a_step=1
    ),
    STRICT: Variant(lambda: InOrder(FullAsyncConfig()), own_generator=True),
    "any generator for any slot (own generator)": Variant(full_async, own_generator=True),
    SINGLE: Variant(full_async, batch_rows=4),
    "publication beside rollouts (all stop)": Variant(lambda: StopsToPublish(FullAsyncConfig())),
    "the rule for waiting (launch at once)": Variant(full_async, cost_rule=False),
    "small slots (of 8)": Variant(full_async, slot_rows=8),
    "small slots (of 32: one a GPU)": Variant(full_async, slot_rows=32),
}
"""full-async without one mechanism."""


def measure(variant: Variant, reading: Reading, seed: int = 0) -> dict[str, Any]:
    """Return throughput, bounds and staleness of a variant."""
    world = machine(
        reading,
        variant.slot_rows,
        variant.versions,
        waves_a_step=variant.waves_a_step,
        own_generator=variant.own_generator,
        batch_rows=variant.batch_rows,
        seed=seed,
    )
    scheduler = variant.scheduler()
    rule = Batcher._worth_waiting if variant.cost_rule else lambda self, rows: 0.0
    with mock.patch.object(Batcher, "_worth_waiting", rule):
        played = play(scheduler, world)
    marks = played.marks[WAVES // variant.waves_a_step - 1 :: WAVES // variant.waves_a_step]  # of versions
    before, after = marks[WARM_UP - 1], marks[-2]
    seconds = (after.seconds - before.seconds) / (len(marks) - 1 - WARM_UP)
    rows = played.batches[before.batches : after.batches]
    found = {"env_steps_per_second": VERSION_STEPS / seconds, "batch_rows": float(np.mean(rows))}
    if variant.waves_a_step < WAVES:
        return found
    needs = needed(world, reading, variant, float(np.mean(rows)), scheduler.spec.max_staleness)
    return found | {
        "device_bound": VERSION_STEPS / max(needs["host"], needs["gpu_work"]),
        "schedule_bound": VERSION_STEPS / max(needs.values()),
        "overlap_efficiency": max(needs.values()) / seconds,
        "binds": max(needs, key=lambda name: needs[name]),
        "staleness_mean": float(np.mean(played.staleness[WARM_UP:-1])),
        "staleness_max": float(max(played.staleness)),
    }


def needed(world: World, reading: Reading, variant: Variant, batch_rows: float, staleness: int) -> dict[str, float]:
    """Return the seconds that a version needs at least, by each dependency of a schedule, with calls of so many rows."""
    chunks = ENVS * WINDOW * WAVES // GPUS
    host = (chunks * ACTIONS * reading.serial + ENVS * WAVES // GPUS * world.latency.reset_row) / reading.jobs
    generate = chunks * (reading.call / batch_rows + reading.row)
    train = reading.sample * chunks
    alone = np.array(
        [[world.latency.simulate_alone(slot, step) for step in range(DRAWS)] for slot in range(len(world.slots))]
    )
    chunk = ACTIONS * variant.slot_rows * reading.serial + reading.call + reading.row * variant.slot_rows
    chain = WAVES * (WINDOW * (chunk + float(alone.mean(1).max())) + 3.0 + 0.15 * variant.slot_rows)
    publication = world.latency.snapshot + world.latency.transfer + world.latency.offer
    slowed = max(1.0, GENERATOR_SHARE + TRAINER_SHARE) - 1.0
    return {
        "host": host,
        "gpu_work": GENERATOR_SHARE * generate + TRAINER_SHARE * train,
        "generator_and_trainer": max(generate, train) + slowed * min(generate, train),
        "chain_of_a_slot": chain,
        "staleness": (max(host, generate, chain) + train + publication) / (staleness + 1),
    }


def report(reading: Reading, seeds: range) -> dict[str, Any]:
    """Return everything about a reading."""
    fitted = {name: [theirs(name, reading, seed) for seed in seeds] for name in PAPER}
    without_tails = measure(OURS["full-async"], dataclasses.replace(reading, tail_rate=0.0))
    return {
        "without_tails": without_tails,
        "latencies": dataclasses.asdict(reading),
        "theirs": {name: some[0] for name, some in fitted.items()},
        "residuals": {name: some[0] / PAPER[name] - 1 for name, some in fitted.items()},
        "theirs_over_seeds": {name: [min(some), max(some)] for name, some in fitted.items()},
        "ours": {name: measure(one, reading) for name, one in OURS.items()},
        "without": {name: measure(one, reading) for name, one in WITHOUT.items()},
    }


def markdown(result: dict[str, Any], picture: str) -> str:
    """Return the result as a page."""
    readings = result["readings"]
    lines = [
        "# RL-VLA3's schedules and ours on latencies that fit its table (simulated)",
        "",
        f"Simulated: no GPU and no simulator ran. {result['machine']}, {result['cpu_s']:.0f} s of CPU. "
        f"Trained env steps are counted ({VERSION_STEPS} a version of the weights), without {WARM_UP} versions of warming up "
        "and the last, beside which nothing is played. Method, the machine's model and both bounds: `benchmarks/virtual_rl_vla3.py`.",
        "",
        "## The five published numbers",
        "",
        "| | " + " | ".join(PAPER) + " | worst residual |",
        "|---|" + "---|" * (len(PAPER) + 1),
        "| paper | " + " | ".join(map(str, PAPER.values())) + " | |",
    ]
    for name, found in readings.items():
        cells = [f"{found['theirs'][one]:.1f} ({100 * found['residuals'][one]:+.2f} %)" for one in PAPER]
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * max(map(abs, found['residuals'].values())):.2f} % |")
    seeds = {name: found["theirs_over_seeds"]["aa-4"] for name, found in readings.items()}
    lines += [
        "",
        f"aa-4 over {result['seeds']} seeds of the latencies: "
        + "; ".join(f"{name} {low:.0f} to {high:.0f}" for name, (low, high) in seeds.items())
        + ".",
        "",
        "Fitted (the rest was chosen):",
        "",
    ]
    for name, found in readings.items():
        free = [f"{one} {found['latencies'][one]:g}" for one in found["latencies"]["free"]]
        chosen = [
            f"{one} {value:g}"
            for one, value in found["latencies"].items()
            if one not in {"free", *found["latencies"]["free"]}
        ]
        lines.append(f"* {name}: {', '.join(free)}; chosen {', '.join(chosen)}.")
    lines += [
        "",
        "## Ours",
        "",
        "| reading | scheduler | env steps/s | over their aa | device bound | schedule bound | overlap efficiency | binds | "
        "rows a call | staleness mean / max |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in readings.items():
        for scheduler, one in found["ours"].items():
            lines.append(
                f"| {name} | {scheduler} | {one['env_steps_per_second']:.1f} | "
                f"{one['env_steps_per_second'] / found['theirs']['aa-4']:.2f} | {one['device_bound']:.1f} | "
                f"{one['schedule_bound']:.1f} | {one['overlap_efficiency']:.3f} | {one['binds'].replace('_', ' ')} | "
                f"{one['batch_rows']:.1f} | {one['staleness_mean']:.1f} / {one['staleness_max']:.0f} |"
            )
    for name, found in readings.items():
        whole, small = found["ours"]["full-async"], found["ours"][SMALL]
        if whole["overlap_efficiency"] < AIM:
            lines += [
                "",
                f"In *{name}* full-async stays below {AIM} of its bound: a step trains when the slowest of its slots is done, and "
                "the bound takes waits to average out, which long tails do not within a version of staleness. Without the tails "
                f"the same reading reaches {found['without_tails']['overlap_efficiency']:.3f}; with them, slots of 2 environments, "
                f"of which fewer wait for a tail, {small['overlap_efficiency']:.3f}.",
            ]
    lines += [
        "",
        "## full-async without one mechanism",
        "",
        "Env steps/s, and what the mechanism brings on top of the others.",
        "",
        "| without | " + " | ".join(readings) + " |",
        "|---|" + "---|" * len(readings),
    ]
    for mechanism in WITHOUT:
        cells = []
        for found in readings.values():
            whole, part = found["ours"]["full-async"], found["without"][mechanism]
            gain = whole["env_steps_per_second"] / part["env_steps_per_second"] - 1
            cells.append(f"{part['env_steps_per_second']:.1f} ({100 * gain:+.1f} %)")
        lines.append(f"| {mechanism} | {' | '.join(cells)} |")
    order = [
        f"{100 * (found['without'][SINGLE]['env_steps_per_second'] / found['without'][STRICT]['env_steps_per_second'] - 1):+.1f} %"
        for found in readings.values()
    ]
    lines += [
        "",
        "Strict rounds need an own generator and one request a call, so their row takes away three at once; order alone is what "
        f"lies between it and *one request a call*: {', '.join(order)}.",
    ]
    return "\n".join([*lines, "", f"![Throughput by reading]({picture})", ""])


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw throughput by reading and schedule, and the schedule bound of full-async."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    readings = result["readings"]
    figure, axis = pyplot.subplots(figsize=(11, 4.5), layout="constrained")
    names = [*PAPER, *OURS]
    for place, name in enumerate(names):
        bars = [
            found["theirs"][name] if name in PAPER else found["ours"][name]["env_steps_per_second"]
            for found in readings.values()
        ]
        at = np.arange(len(readings)) + (place - len(names) / 2) * 0.09
        colour = (
            pyplot.cm.Greys(0.3 + 0.1 * place) if name in PAPER else pyplot.cm.viridis((place - len(PAPER)) / len(OURS))
        )
        axis.bar(at, bars, 0.08, label=f"RL-VLA3 {name}" if name in PAPER else name, color=colour)
    for number, found in enumerate(readings.values()):
        bound = found["ours"]["full-async"]["schedule_bound"]
        axis.plot(
            [number - 0.5, number + 0.45],
            [bound, bound],
            "r--",
            linewidth=1,
            label=None if number else "full-async's bound",
        )
    axis.set_xticks(range(len(readings)), list(readings))
    axis.set_ylabel("trained env steps/s (simulated)")
    axis.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def write(result: dict[str, Any], output: Path) -> None:
    """Write a result, and its page and picture beside it."""
    output.write_text(json.dumps(result, indent=1) + "\n")
    output.with_suffix(".md").write_text(markdown(result, f"{output.stem}.png"))
    draw(result, output.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", choices=list(READINGS), help="fit the latencies of one reading again, and print them")
    parser.add_argument("--seeds", type=int, default=3, help="of the latencies, for the fitted numbers")
    parser.add_argument("--output", type=Path, help="a JSON file; a page and a picture are written beside it")
    parser.add_argument("--render", action="store_true", help="write page and picture of the output that is there")
    arguments = parser.parse_args()
    if arguments.fit:
        print(fit(READINGS[arguments.fit]))
        return
    if arguments.render:
        write(json.loads(arguments.output.read_text()), arguments.output)
        return
    began = time.process_time()
    readings = {}
    for name, reading in READINGS.items():
        readings[name] = report(reading, range(arguments.seeds))
        print(name, json.dumps(readings[name]["ours"]), flush=True)
    result = {
        "simulated": True,
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "seeds": arguments.seeds,
        "readings": readings,
        "cpu_s": round(time.process_time() - began, 1),
    }
    if arguments.output:
        write(result, arguments.output)
    else:
        print(markdown(result, ""))


if __name__ == "__main__":
    main()
