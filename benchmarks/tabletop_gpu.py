"""How fast the table is as one batch on a GPU, against its CPU backend in the same run.

    python benchmarks/tabletop_gpu.py --output benchmarks/results/tabletop_gpu.json
    python benchmarks/tabletop_gpu.py --tiny --output /tmp/tabletop_gpu.json     # four worlds on warp's CPU device

For each number of worlds, useful env steps/s of: physics alone (the captured program of an env step, random targets), whole
simulator calls with chunks of 8 (pictures, reward and success; 64 pixels, drawn once a chunk), and the same with chunks of one
action (pictures each step). Resets are in the last two. ``deterministic``: physics alone, once more with it. For the CPU backend
one worker process a core, likewise. Compiling kernels is apart (``first_call_s``), and so is a first round of each.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlvla.arrays import on_host
from rlvla.configs import Choice
from rlvla.devices import machine, usable_cores
from rlvla.errors import SimulatorError
from rlvla.simulator import Simulator
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator
from rlvla_sim_tabletop import TabletopConfig, plugin

CHUNK = 8
CPU_ROWS = 16
"""Environments of a worker of the CPU backend."""


class Player:
    """Steps a simulator with random chunks and resets what has ended."""

    def __init__(
        self, simulator: Simulator | SubprocessSimulator, rows: int, horizon: int, device: str = "cpu"
    ) -> None:
        self.simulator, self.rows, self._episodes = simulator, rows, 0
        random = torch.Generator().manual_seed(0)
        chunks = 2 * torch.rand(16, rows, horizon, 3, generator=random) - 1
        self._chunks = chunks.to(device) if device != "cpu" else chunks.numpy()
        self._reset(list(range(rows)))

    def _reset(self, rows: list[int]) -> None:
        first, self._episodes = self._episodes, self._episodes + len(rows)
        self.simulator.reset(rows, [first + place for place in range(len(rows))], [Start(row % 3) for row in rows])

    def round(self, number: int) -> int:
        """Play a chunk; returns the useful env steps in it."""
        result = self.simulator.step(self._chunks[number % 16], np.ones(self.rows, bool))
        if (ended := np.flatnonzero(on_host((result.terminated | result.truncated).any(1)))).size:
            self._reset([int(row) for row in ended])
        return int(on_host(result.valid).sum())


def rate(play: Callable[[int], int], seconds: float, wait: Callable[[], None] = lambda: None) -> float:
    """Return what ``play`` does a second, after three rounds that do not count."""
    for number in range(3):
        play(number)
    wait()
    began, done, number = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        done += play(number)
        number += 1
        if number % 8 == 0:
            wait()
    wait()
    return done / (time.perf_counter() - began)


def batched(worlds: int, device: str, seconds: float) -> dict[str, Any]:
    """Measure one number of worlds."""
    from rlvla_sim_tabletop.batched import BatchedTabletop

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    began = time.perf_counter()
    simulator = BatchedTabletop(TabletopConfig(backend="gpu", device=device), worlds)
    players = {name: Player(simulator, worlds, horizon, device) for name, horizon in (("chunks", CHUNK), ("steps", 1))}
    players["steps"].round(0)
    wait()
    found: dict[str, Any] = {"worlds": worlds, "first_call_s": round(time.perf_counter() - began, 1)}
    found["physics"] = round(physics(simulator, worlds, seconds, wait))
    for name, key in (("chunks", "pictures_once_a_chunk"), ("steps", "pictures_each_step")):
        players[name]._reset(list(range(worlds)))
        found[key] = round(rate(players[name].round, seconds, wait))
    if device == "cuda":
        found["gib"] = round(_taken_gib(), 2)
    found["reckoned_gib"] = round(simulator._worlds.room.needed / 2**30, 2)
    del players, simulator
    exact = BatchedTabletop(TabletopConfig(backend="gpu", device=device, deterministic=True), worlds)
    Player(exact, worlds, 1, device)
    found["physics_deterministic"] = round(physics(exact, worlds, seconds, wait))
    return found


def physics(simulator: Any, worlds: int, seconds: float, wait: Callable[[], None]) -> float:
    """Return env steps a second of the program alone."""
    place = simulator._worlds
    with place.turn():
        place.frozen.fill_(False)

    def play(number: int) -> int:
        with place.turn():
            if number % 10 == 0:
                low, high = simulator._low, simulator._high
                place["ctrl"].copy_(low + (high - low) * torch.rand_like(place["ctrl"]))
            simulator._step()
        return worlds

    return rate(play, seconds, wait)


def _taken_gib() -> float:
    free, whole = torch.cuda.mem_get_info()
    return (whole - free) / 2**30


def on_cores(workers: int, horizon: int, seconds: float) -> float:
    """Return env steps a second of the CPU backend, each worker stepped by a thread of its own."""
    choice = Choice(plugin, TabletopConfig())
    sims = [SubprocessSimulator(choice, CPU_ROWS, horizon, name=f"sim-{number}") for number in range(workers)]
    try:
        players = [Player(sim.wait_ready(), CPU_ROWS, horizon) for sim in sims]
        with ThreadPoolExecutor(workers) as threads:
            return sum(threads.map(lambda one: rate(one.round, seconds), players))
    finally:
        for sim in sims:
            sim.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=machine(), help="what the result says it was measured on")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--worlds", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--tiny", action="store_true", help="four worlds on warp's CPU device, half a second each")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("rlvla").setLevel(logging.INFO)
    device = "cpu" if options.tiny else "cuda"
    worlds, seconds = ([4], 0.5) if options.tiny else (options.worlds, options.seconds)
    result: dict[str, Any] = {}

    def note(part: str, found: Any) -> None:
        sys.stdout.write(f"{part}: {json.dumps(found)}\n")
        sys.stdout.flush()
        result[part] = found
        options.output.write_text(json.dumps(result, indent=1) + "\n")

    note("machine", options.machine)
    note("setting", {"device": device, "chunk": CHUNK, "image_size": 64, "env_steps_per_second": True})
    cores = usable_cores()
    try:
        rates = {name: round(on_cores(cores, horizon, seconds)) for name, horizon in (("once", CHUNK), ("each", 1))}
        found = {"pictures_once_a_chunk": rates["once"], "pictures_each_step": rates["each"]}
        note("cpu_backend", {"workers": cores, "rows": CPU_ROWS, **found})
    except SimulatorError as error:
        note("cpu_backend", f"not measured: {error}")
    rows: list[dict[str, Any]] = []
    for count in worlds:
        rows.append(batched(count, device, seconds))
        note("batched", rows)
    if isinstance(cpu := result["cpu_backend"], dict):
        ratios = {
            str(one["worlds"]): round(one["pictures_once_a_chunk"] / cpu["pictures_once_a_chunk"], 2) for one in rows
        }
        note("times_the_cpu_backend", ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
