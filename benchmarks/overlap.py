"""How much of what can overlap does: each scheduler on simulators, generator and trainer that sleep, in real time.

The same latencies run twice: on real actors (threads of this process; the model and the trainer do next to nothing beside
sleeping), and on fake ones in virtual time, where the controller costs nothing. Rates, bounds and overlap efficiency are
those of the run's own metrics (``rlvla.timekeeping``), without warm-up and the last step, beside which nothing is played;
``of_virtual_time`` is virtual over real seconds of
the whole run: what the controller, threads and clocks cost, and nothing else. What a span costs is measured beside.

Chunk steps take what LIBERO's took on the machine of a profile (``rlvla profile --sim libero``), drawn again for every slot,
batches and training steps what GR00T N1.5 took on the same machine (``results/gr00t*.json``); then what a log-normal with
long tails draws, with a slow generator and on windows so short that a step's slowest slot decides.

    python benchmarks/overlap.py [--profile F] [--steps 8] [--output benchmarks/results/overlap.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlvla
from rlvla import profile
from rlvla.configs import read_one
from rlvla.plugin import find
from rlvla.profile import Profile
from rlvla.testing.fakes.simulator import FakeSimulator
from rlvla.testing.virtual import Latency, World, play
from rlvla.timekeeping import Timekeeper
from rlvla.tracing import SpanFile

SLOTS, ROWS = 8, 2
RESULTS = Path(__file__).parent / "results"
PROFILE = RESULTS / "profile_libero_16_cores.json"
SCHEDULERS: dict[str, dict[str, Any]] = {
    "sync": {"use": "sync"},
    "async-rollout": {"use": "async-rollout"},
    "full-async, staleness 0": {"use": "full-async", "max_staleness": 0},
    "full-async, staleness 1": {"use": "full-async", "max_staleness": 1},
    "hybrid": {"use": "hybrid"},
}
_NO_END = 1_000_000
_DRAWS = 997
"""Chunk steps of a slot after which its seconds repeat."""


@dataclass(frozen=True)
class Load:
    """What the actors of a run take."""

    window: int
    """Chunks of a unit."""
    chunk_s: Any
    """Seconds of a chunk step, by slot and number of the step."""
    train_s: float
    """Of a training step."""
    call_s: float = 0.02
    """Of a batch, beside its rows."""
    row_s: float = 0.002

    @property
    def latency(self) -> Latency:
        return Latency(
            simulate=lambda slot, step: float(self.chunk_s[slot, step % _DRAWS]),
            generate_call=self.call_s,
            generate_row=self.row_s,
            train=lambda step: self.train_s,
        )


def of_profile(measured: Profile) -> Load:
    """Return a load with a simulator's measured chunk steps, and a model's measured batches and training."""
    window = 16
    chunk_s = np.random.default_rng(0).choice(measured.chunk_steps(ROWS), (SLOTS, _DRAWS))
    acting = json.loads((RESULTS / "gr00t.json").read_text())["inference"]
    rows = np.array([one["batch"] for one in acting if one["batch"] <= SLOTS * ROWS])
    seconds = np.array([one["act_ms"] / 1000 for one in acting if one["batch"] <= SLOTS * ROWS]) * rows
    row_s, call_s = np.polyfit(rows, seconds, 1)
    training = next(
        one for one in json.loads((RESULTS / "gr00t_ppo.json").read_text())["runs"] if "train/samples" in one
    )
    train_s = training["time/train_s"] / training["train/samples"] * SLOTS * ROWS * window
    return Load(window, chunk_s, round(train_s, 2), round(float(call_s), 4), round(float(row_s), 4))


LONG_TAILS = Load(4, np.random.default_rng(0).lognormal(np.log(0.2), 0.4, (SLOTS, _DRAWS)), 0.8)


def sleeping(call: Callable[..., Any], seconds: Callable[[Any], float]) -> Callable[..., Any]:
    """Return a call that lasts so long, counted from its result."""

    def slow(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments, **options)
        time.sleep(max(0.0, seconds(result) - (time.perf_counter() - began)))
        return result

    return slow


def real(scheduler: dict[str, Any], load: Load, steps: int) -> tuple[float, float, list[dict[str, float]]]:
    """Return seconds of a run on real actors, the controller's CPU seconds for each slot chunk step, metrics by step."""
    heard: list[dict[str, float]] = []

    class Listener:
        @rlvla.hookimpl
        def on_step(self, metrics: dict[str, float]) -> None:
            heard.append(metrics)

    with tempfile.TemporaryDirectory() as folder:
        options = {"directory": folder, "name": "run", "slots": SLOTS, "sim_in_process": True, "threads": 1}
        quiet = {"without": ("tensorboard", "display", "report"), "device": "cpu", "save_every": 0, "steps": steps}
        with rlvla.build(
            sim={"use": "fake", "num_envs": SLOTS * ROWS, "max_episode_steps": _NO_END},
            model="fake",
            algo={"use": "ppo", "window": load.window, "passes": 1, "minibatch_size": None},
            scheduler=scheduler,
            run={**options, **quiet},
            listeners=[Listener()],
        ) as run:
            engine, latency = run._started(), load.latency
            for number, slot in enumerate(engine.graph.slots):
                simulator = slot.actor.actor._runner.simulator
                assert isinstance(simulator, FakeSimulator)
                times = iter(load.chunk_s[number])
                simulator.step = sleeping(simulator.step, lambda result, times=times: float(next(times)))
            generator, trainer = engine.generators[0].actor, engine.trainer.actor
            generator._choose = sleeping(  # inside of what the actors measure
                generator._choose, lambda action: latency.generate_call + latency.generate_row * len(action)
            )
            trainer._passes = sleeping(trainer._passes, lambda result: latency.train(0))
            began = time.perf_counter()
            controller = engine.wait(_cpu())
            run.train()
            seconds = time.perf_counter() - began
            controller = engine.wait(_cpu()) - controller
    return seconds, controller / (steps * SLOTS * load.window), heard


async def _cpu() -> float:
    """Return the CPU seconds of the thread that runs this."""
    return time.thread_time()


def world_of(load: Load, steps: int) -> World:
    """Return the fakes' world."""
    return World(
        slots=(ROWS,) * SLOTS,
        window=load.window,
        units_per_step=SLOTS * ROWS,
        steps=steps,
        latency=load.latency,
        episode=lambda slot, number: _NO_END,
    )


def measure(scheduler: dict[str, Any], load: Load, steps: int) -> dict[str, float]:
    """Return one row of the table."""
    plugin = find("scheduler", scheduler["use"])
    options = {name: value for name, value in scheduler.items() if name != "use"}
    virtual = play(plugin.load()(read_one(plugin.config, options)), world_of(load, steps))
    seconds, controller, heard = real(scheduler, load, steps)
    last = heard[-2]  # beside the last step nothing is played
    return {
        "seconds": round(seconds, 2),
        "virtual_seconds": round(virtual.seconds, 2),
        "env_steps_per_second": round(last["env_steps_per_second_run"], 1),
        "schedule_bound": round(last["env_steps_per_second_run_schedule_bound"], 1),
        "device_bound": round(last["env_steps_per_second_run_device_bound"], 1),
        "overlap_efficiency": round(last["time/run_overlap_efficiency"], 3),
        "of_virtual_time": round(virtual.seconds / seconds, 3),
        "virtual_overlap_efficiency": round(virtual.metrics[-2]["time/run_overlap_efficiency"], 3),
        "controller_ms_a_slot_chunk_step": round(1000 * controller, 3),
        "generator_batch_rows": round(float(np.mean([one.get("rollout/generator_batch_mean", 0) for one in heard])), 1),
        "staleness_mean": round(float(np.mean([one["train/staleness_mean"] for one in heard])), 2),
    }


def virtual_efficiency(load: Load, steps: int = 200) -> dict[str, float]:
    """Return what full-async reaches of its schedule bound in a long virtual run, by the staleness that it may have."""
    found = {}
    plugin = find("scheduler", "full-async")
    for staleness in (1, 2, 4):
        scheduler = plugin.load()(read_one(plugin.config, {"max_staleness": staleness}))
        last = play(scheduler, world_of(load, steps)).metrics[-1]
        found[str(staleness)] = round(last["time/run_overlap_efficiency"], 3)
    return found


def span_microseconds(spans: int = 20_000) -> dict[str, float]:
    """Return what a span costs the controller: to count it, and to write it to the timeline."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, file in (("counted", None), ("counted_and_written", SpanFile(Path(folder), 10**9))):
            times = Timekeeper(spans=file)
            times.begin(0.0, 1)
            began = time.thread_time()
            for number in range(spans):
                times.worked("sim-3", "simulate", 1000 * number, 9e-7, slots=[3], version=4, rows=2, cpu_seconds=0.1)
            times.finish(1.0, 1.0, 1, 0.0, ())
            found[name] = round(1e6 * (time.thread_time() - began) / spans, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of LIBERO, by `rlvla profile`")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    measured = profile.read(arguments.profile)
    loads = {f"{measured.sim}, as measured on {measured.machine}": of_profile(measured), "long tails": LONG_TAILS}
    found = {}
    for name, load in loads.items():
        rows = {}
        for scheduler, options in SCHEDULERS.items():
            rows[scheduler] = measure(options, load, arguments.steps)
            print(f"{name}: {scheduler:<24}", json.dumps(rows[scheduler]), flush=True)
        found[name] = {
            "chunk_seconds": {
                "mean": round(float(load.chunk_s.mean()), 4),
                "quantiles_05_50_95": np.quantile(load.chunk_s, (0.05, 0.5, 0.95)).round(4).tolist(),
                "max": round(float(load.chunk_s.max()), 4),
            },
            "window": load.window,
            "train_seconds": load.train_s,
            "batch_seconds": {"call": load.call_s, "row": load.row_s},
            "schedulers": rows,
            "full_async_of_its_bound_in_200_virtual_steps_by_staleness": virtual_efficiency(load),
            "speed_up_over_sync": round(rows["sync"]["seconds"] / rows["full-async, staleness 1"]["seconds"], 2),
        }
    result = {
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "slots": SLOTS,
        "rows_of_a_slot": ROWS,
        "steps": arguments.steps,
        "loads": found,
        "span_us": span_microseconds(),
    }
    print(json.dumps({name: one["speed_up_over_sync"] for name, one in found.items()} | result["span_us"]))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
