"""What ManiSkill costs here, against ManiSkill's own loop measured in the same run.

    python benchmarks/maniskill_sim.py --machine "2-core x86-64 CPU" --output benchmarks/results/maniskill_sim.json
    python benchmarks/maniskill_sim.py --machine M --output F --processes 1 2 4 8 16 --renderer gpu

CPU time of an env step of PushCube in pictures (its one camera, 128x128) and in state: ManiSkill's own ``env.step`` (which
draws at every action) and chunks of 8 actions here, from equal seeds with equal actions; the end states must be equal bit for
bit. With ``--processes``: env steps/s of that many worker processes, each with ``--rows`` environments, stepped side by side
as a run does it; resets are in it, starting and the first picture are not. Physics runs on the CPU. Actions are random. CPU
time is summed over all threads of a process, and both ways play each chunk in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.configs import Choice
from rlvla.devices import machine, usable_cores
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator
from rlvla_sim_maniskill import ManiSkillConfig, plugin

TASK = "PushCube-v1"
CHUNK = 8
OBSERVATIONS = ("state", "rgb")


class Workers:
    """Worker processes, each stepped by a thread of its own."""

    def __init__(self, config: ManiSkillConfig, processes: int, rows: int) -> None:
        choice = Choice(plugin, config)
        self.sims = [SubprocessSimulator(choice, rows, CHUNK, name=f"sim-{n}") for n in range(processes)]
        self._pool = ThreadPoolExecutor(processes)
        self._episodes = [0] * processes
        list(self._pool.map(lambda sim: sim.wait_ready(), self.sims))
        list(self._pool.map(lambda number: self._reset(number, list(range(rows))), range(processes)))

    def _reset(self, number: int, rows: list[int]) -> None:
        first = self._episodes[number]
        self._episodes[number] += len(rows)
        self.sims[number].reset(rows, [first + place for place in range(len(rows))], [Start(0)] * len(rows))

    def play(self, seconds: float) -> tuple[float, float]:
        """Step all of them for some seconds; returns env steps a second, and processor seconds of the workers an env step."""
        began = time.perf_counter()
        found = list(self._pool.map(lambda number: self._play(number, began + seconds), range(len(self.sims))))
        steps, cpu_seconds = (sum(some) for some in zip(*found, strict=True))
        return steps / (time.perf_counter() - began), cpu_seconds / steps

    def _play(self, number: int, until: float) -> tuple[int, float]:
        sim = self.sims[number]
        random = np.random.default_rng(number)
        active = np.ones(sim.rows, bool)
        steps, cpu_seconds = 0, 0.0
        width = sim.spec.action_dim
        while time.perf_counter() < until:
            result = sim.step(random.uniform(-1, 1, (sim.rows, CHUNK, width)).astype(np.float32), active)
            steps += int(result.valid.sum())
            cpu_seconds += sim.cpu_seconds
            if (ended := np.flatnonzero((result.terminated | result.truncated).any(1))).size:
                self._reset(number, [int(row) for row in ended])
                cpu_seconds += sim.cpu_seconds
        return steps, cpu_seconds

    def close(self) -> None:
        list(self._pool.map(lambda sim: sim.close(), self.sims))
        self._pool.shutdown()


def cpu_time(observation: str, renderer: str, chunks: int) -> dict[str, Any]:
    """Compare CPU time of an env step, chunk by chunk in turns; both ways must end in the same state bit for bit."""
    actions = np.random.default_rng(0).uniform(-1, 1, (chunks + 1, CHUNK, 7)).astype(np.float32)
    ours = Ours(observation, renderer)
    stock = Stock(observation, renderer, ours.seeds())
    took = [[one.timed(chunk) for one in (ours, stock)] for chunk in actions][1:]  # the first makes what is made once
    same = bool(np.array_equal(ours.state(), stock.state()))
    ours.close()
    stock.close()
    ours_ms, stock_ms = np.array(took).mean(0) * 1e3 / CHUNK
    ratios = np.sort([stock / ours for ours, stock in took])
    return {
        "steps": chunks * CHUNK,
        "same_state": same,
        "stock_step_cpu_ms": round(float(stock_ms), 2),
        "step_cpu_ms": round(float(ours_ms), 2),
        "ratio": round(float(np.median(ratios)), 2),
        "ratio_of_chunks_from_to": [round(float(ratios[0]), 2), round(float(ratios[-1]), 2)],
    }


class Ours:
    """One environment of the plugin's."""

    def __init__(self, observation: str, renderer: str) -> None:
        from rlvla_sim_maniskill.simulator import ManiSkillSimulator

        config = ManiSkillConfig(
            task=TASK,
            observation=observation,
            renderer=renderer,
            backend="cpu",
            max_episode_steps=10**6,
            ignore_terminations=True,
        )  # type: ignore[arg-type]
        self._simulator = ManiSkillSimulator(config, rows=1)
        self._simulator.reset([0], [0], [Start(0)])
        self._active = np.array([True])

    def seeds(self) -> list[int]:
        seeds: list[int] = self._simulator._instances[0].env._episode_seed.tolist()
        return seeds

    def timed(self, chunk: np.ndarray) -> float:
        """Play a chunk; returns its processor seconds."""
        began = time.process_time()
        self._simulator.step(chunk[None], self._active)
        return time.process_time() - began

    def state(self) -> np.ndarray:
        return np.asarray(self._simulator._instances[0].env.get_state())

    def close(self) -> None:
        self._simulator.close()


class Stock:
    """The same environment, made and stepped by ManiSkill."""

    def __init__(self, observation: str, renderer: str, seeds: list[int]) -> None:
        import gymnasium

        from rlvla_sim_maniskill import startup, vulkan

        draws = "sapien_cuda" if vulkan.chosen(renderer) == "gpu" else "sapien_cpu"  # type: ignore[arg-type]
        self._quiet = startup.quiet
        with self._quiet():
            self._env = gymnasium.make(
                TASK,
                obs_mode=observation,
                control_mode="pd_ee_delta_pose",
                sim_backend="physx_cpu",
                render_backend=draws,
            ).unwrapped
            self._env.reset(seed=seeds)

    def timed(self, chunk: np.ndarray) -> float:
        """Play a chunk; returns its processor seconds."""
        import torch

        with self._quiet():
            began = time.process_time()
            for action in chunk:
                self._env.step(torch.from_numpy(action[None]))
            return time.process_time() - began

    def state(self) -> np.ndarray:
        return np.asarray(self._env.get_state())

    def close(self) -> None:
        self._env.close()


def throughput(observation: str, renderer: str, processes: int, rows: int, seconds: float) -> dict[str, Any]:
    """Return env steps a second of many processes, whose scenes are kept from episode to episode."""
    config = ManiSkillConfig(
        task=TASK,
        observation=observation,
        renderer=renderer,
        backend="cpu",
        fresh_scenes=False,
    )  # type: ignore[arg-type]
    workers = Workers(config, processes, rows)
    workers.play(seconds / 4)  # warm-up
    rate, cpu_seconds = workers.play(seconds)
    versions = workers.sims[0].versions()
    peak = sum(sim.peak_bytes for sim in workers.sims)
    workers.close()
    return {
        "observation": observation,
        "processes": processes,
        "rows": rows,
        "env_steps_per_second": round(rate, 1),
        "step_cpu_ms": round(cpu_seconds * 1e3, 2),
        "resident_peak_mib_a_process": round(peak / processes / 2**20),
        "renderer": versions["renderer"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=machine(), help="what the result says it was measured on")
    parser.add_argument("--output", type=Path, required=True, help="JSON; parts that are not measured now are kept")
    parser.add_argument("--observations", nargs="+", default=list(OBSERVATIONS), choices=OBSERVATIONS)
    parser.add_argument("--renderer", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--chunks", type=int, default=20, help="of 8 actions each, for CPU time; 0: not measured")
    parser.add_argument("--processes", type=int, nargs="+", default=[])
    parser.add_argument("--rows", type=int, default=4, help="environments a process")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each throughput")
    options = parser.parse_args()
    result: dict[str, Any] = json.loads(options.output.read_text()) if options.output.is_file() else {}

    def note(part: str, found: Any) -> None:
        sys.stdout.write(f"{part}: {json.dumps(found)}\n")
        sys.stdout.flush()
        result[part] = found
        options.output.write_text(json.dumps(result, indent=1) + "\n")

    note("machine", options.machine)
    note("setting", {"task": TASK, "chunk": CHUNK, "cores": usable_cores(), "renderer": options.renderer})
    if options.chunks:
        note("cpu_time", {one: cpu_time(one, options.renderer, options.chunks) for one in options.observations})
    rates = []
    for observation in options.observations:
        for processes in options.processes:
            rates.append(throughput(observation, options.renderer, processes, options.rows, options.seconds))
            note("throughput", rates)
    return 0


if __name__ == "__main__":
    sys.exit(main())
