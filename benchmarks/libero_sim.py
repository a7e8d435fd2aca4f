"""What LIBERO costs here, against LIBERO's own environment measured in the same run.

    python benchmarks/libero_sim.py --machine "2-core x86-64 CPU" --output benchmarks/results/libero_sim.json

Without other options: CPU time of an env step and a reset. Each further option adds its part to the file:

    --processes 1 2 4 8 16     env steps/s of that many worker processes: LIBERO's own loop (one environment a process,
                               all pictures at every step) and ours (``--rows`` environments a process)
    --memory 64                memory of 64 environments sharing worker processes, against one environment a process; with
                               several --tasks, of as many tasks in each process (``memory_of_tasks``)
    --soak 480 --envs 64       seconds of episodes with task changes; memory and handles must not grow
    --train 64 --steps 3       training steps of one policy on all tasks (tiny model)
    --swap 4                   resets to another task: compiled then, or prepared while nobody waited

On a machine with 16 cores and a GPU that draws (EGL), about 7, 2 and 9 minutes:

    python benchmarks/libero_sim.py --machine M --output F --processes 1 4 8 16 --rows 1 4 --seconds 12
    python benchmarks/libero_sim.py --machine M --output F --chunks 0 --memory 64 --alone 16
    python benchmarks/libero_sim.py --machine M --output F --chunks 0 --soak 480 --envs 64 --tasks 0 1 2
    python benchmarks/libero_sim.py --machine M --output F --chunks 0 --train 64 --suite libero_130 --all-tasks

Pictures are two of 256x256, chunks have 8 actions, actions are random. CPU time is summed over all threads of a process
(software rendering has several), so a busy machine does not change it much. Memory is the proportional set size (PSS: what
processes share is divided among them).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.configs import Choice
from rlvla.devices import usable_cores
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator
from rlvla_sim_libero import LiberoConfig, plugin

CHUNK = 8
ENDLESS = 10**6
SHORT = 64
"""Env steps of an episode in the soak, so that there are many resets."""
_SAMPLE_S = 10.0


class Workers:
    """Worker processes, each stepped by a thread of its own, as a run does it."""

    def __init__(self, config: LiberoConfig, sizes: list[int]) -> None:
        self.sims = [
            SubprocessSimulator(Choice(plugin, config), rows, CHUNK, name=f"sim-{n}") for n, rows in enumerate(sizes)
        ]
        self._pool = ThreadPoolExecutor(len(sizes))
        self._episodes = [0] * len(sizes)
        self._tasks = len(config.tasks or (0,))
        self.steps = [0] * len(sizes)
        """Env steps of each."""
        list(self._pool.map(lambda sim: sim.wait_ready(), self.sims))
        list(self._pool.map(lambda number: self._reset(number, range(self.sims[number].rows)), range(len(sizes))))

    def _reset(self, number: int, rows: Any) -> None:
        rows = list(rows)
        seeds = [self._episodes[number] + place for place in range(len(rows))]
        self._episodes[number] += len(rows)
        # With several tasks, each episode of a row is one of the next task: tasks are built and left all the time.
        starts = [Start((seed // self.sims[number].rows + number) % self._tasks, seed % 50) for seed in seeds]
        self.sims[number].reset(rows, seeds, starts)

    def play(self, seconds: float) -> float:
        """Step all of them for some seconds; returns env steps a second."""
        before, began = sum(self.steps), time.perf_counter()
        list(self._pool.map(lambda number: self._play(number, began + seconds), range(len(self.sims))))
        return (sum(self.steps) - before) / (time.perf_counter() - began)

    def _play(self, number: int, until: float) -> None:
        sim = self.sims[number]
        random = np.random.default_rng(number)
        active = np.ones(sim.rows, bool)
        while time.perf_counter() < until:
            result = sim.step(random.uniform(-1, 1, (sim.rows, CHUNK, 7)).astype(np.float32), active)
            self.steps[number] += int(result.valid.sum())
            if (ended := np.flatnonzero((result.terminated | result.truncated).any(1))).size:
                self._reset(number, ended)

    def usage(self) -> dict[str, float]:
        """Return memory in MiB and handles of all processes together."""
        folders = [Path("/proc") / str(sim.pid) for sim in self.sims]
        return {
            "pss_mib": round(sum(_pss_mib(folder) for folder in folders), 1),
            "files": sum(len(list((folder / "fd").iterdir())) for folder in folders),
            "threads": sum(len(list((folder / "task").iterdir())) for folder in folders),
            "mappings": sum(len((folder / "maps").read_text().splitlines()) for folder in folders),
            "gpu_mib": _gpu_mib(),
        }

    @property
    def versions(self) -> dict[str, str]:
        return self.sims[0].versions()

    def close(self) -> None:
        list(self._pool.map(lambda sim: sim.close(), self.sims))
        self._pool.shutdown()


def _pss_mib(folder: Path) -> float:
    line = next(one for one in (folder / "smaps_rollup").read_text().splitlines() if one.startswith("Pss:"))
    return int(line.split()[1]) / 1024


def _gpu_mib() -> float:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return sum(map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0.0


def cpu_time(suite: str, task: int, chunks: int) -> dict[str, Any]:
    """Compare CPU time of an env step and a reset; both ways must end at the same joint positions bit for bit."""
    stock, ours = (_cpu_time(suite, task, chunks, stock=stock) for stock in (True, False))
    return {
        "suite": suite,
        "task": task,
        "steps": ours["steps"],
        "same_qpos": bool(np.array_equal(stock["qpos"], ours["qpos"])),
        "stock_step_cpu_ms": round(stock["step_ms"], 1),
        "step_cpu_ms": round(ours["step_ms"], 1),
        "step_ratio": round(stock["step_ms"] / ours["step_ms"], 2),
        "stock_reset_cpu_ms": round(stock["reset_ms"]),
        "reset_cpu_ms": round(ours["reset_ms"]),
        "reset_ratio": round(stock["reset_ms"] / ours["reset_ms"], 2),
    }


def _cpu_time(suite: str, task: int, chunks: int, *, stock: bool) -> dict[str, Any]:
    from rlvla_sim_libero.simulator import LiberoSimulator

    simulator = LiberoSimulator(LiberoConfig(suite=suite, tasks=(task,), stock_path=stock), rows=1)  # type: ignore[arg-type]
    actions = np.random.default_rng(0).uniform(-1, 1, (chunks + 1, 1, CHUNK, 7)).astype(np.float32)
    active = np.array([True])
    simulator.reset([0], [0], [Start(0, 0)])
    simulator.step(actions[0], active)
    began = time.process_time()
    simulator.reset([0], [1], [Start(0, 1)])
    reset_ms = (time.process_time() - began) * 1e3
    steps = 0
    began = time.process_time()
    for chunk in actions[1:]:
        # LIBERO's own loop draws at every step whatever the length of the chunk.
        steps += int(simulator.step(chunk, active).valid.sum())
    step_ms = (time.process_time() - began) / steps * 1e3
    qpos = simulator._scene_of(0).data.qpos.copy()
    simulator.close()
    return {"step_ms": step_ms, "reset_ms": reset_ms, "steps": steps, "qpos": qpos}


def throughput(suite: str, task: int, processes: int, rows: int, seconds: float, *, stock: bool) -> dict[str, Any]:
    """Return env steps a second of many processes, resets apart."""
    config = LiberoConfig(suite=suite, tasks=(task,), stock_path=stock, max_episode_steps=ENDLESS)  # type: ignore[arg-type]
    workers = Workers(config, [rows] * processes)
    workers.play(seconds / 4)  # warm-up
    rate = workers.play(seconds)
    found = {
        "path": "stock" if stock else "ours",
        "processes": processes,
        "rows": rows,
        "env_steps_per_second": round(rate, 1),
        **workers.usage(),
    }
    workers.close()
    return found


def memory(suite: str, tasks: tuple[int, ...], envs: int, alone: int) -> dict[str, Any]:
    """Return memory per environment, of ``envs`` in a process a core and of ``alone`` in a process each."""
    found: dict[str, Any] = {"suite": suite, "tasks": list(tasks), "envs": envs}
    processes = min(envs, usable_cores())
    layouts = {
        "shared": [envs // processes + (number < envs % processes) for number in range(processes)],
        "one_a_process": [1] * alone,
    }
    for name, sizes in layouts.items():
        workers = Workers(LiberoConfig(suite=suite, tasks=tasks), sizes)  # type: ignore[arg-type]
        for number, sim in enumerate(workers.sims):  # rows of a process run different tasks, as far as there are any
            starts = [Start((row + number) % len(tasks), row % 50) for row in range(sim.rows)]
            sim.reset(list(range(sim.rows)), list(range(sim.rows)), starts)
        workers.play(5.0)
        usage = workers.usage()
        found[name] = {
            "processes": len(sizes),
            "envs": sum(sizes),
            **usage,
            "pss_mib_per_env": round(usage["pss_mib"] / sum(sizes), 1),
        }
        workers.close()
    found["ratio"] = round(found["shared"]["pss_mib_per_env"] / found["one_a_process"]["pss_mib_per_env"], 3)
    return found


def soak(suite: str, tasks: tuple[int, ...], envs: int, seconds: float, rest_s: float) -> dict[str, Any]:
    """Play for a long time; returns how memory and handles of the last quarter compare with those of the second."""
    processes = min(envs, usable_cores())
    sizes = [envs // processes + (number < envs % processes) for number in range(processes)]
    workers = Workers(LiberoConfig(suite=suite, tasks=tasks, max_episode_steps=SHORT), sizes)  # type: ignore[arg-type]
    began, samples = time.perf_counter(), []
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_S):
            samples.append({"seconds": round(time.perf_counter() - began), **workers.usage()})

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    while (left := began + seconds - time.perf_counter()) > 0:
        workers.play(min(left, 5.0))
        time.sleep(min(rest_s, max(0.0, began + seconds - time.perf_counter())))
    stop.set()
    thread.join()
    quarter = len(samples) // 4
    growth = {}
    for name in ("pss_mib", "files", "threads", "mappings", "gpu_mib"):
        second = float(np.mean([one[name] for one in samples[quarter : 2 * quarter]]))
        last = float(np.mean([one[name] for one in samples[-quarter:]]))
        growth[name] = {"second_quarter": round(second, 1), "last_quarter": round(last, 1)}
    found = {
        "suite": suite,
        "tasks": list(tasks),
        "max_episode_steps": SHORT,
        "envs": envs,
        "processes": processes,
        "seconds": round(time.perf_counter() - began),
        "env_steps": sum(workers.steps),
        "episodes": sum(workers._episodes),
        "growth": growth,
        "samples": samples[:: max(1, len(samples) // 20)],
    }
    workers.close()
    return found


def swap(suite: str, times: int) -> dict[str, Any]:
    """Return seconds of a reset to the same task, to one that is compiled then, and to one that was prepared."""
    config = LiberoConfig(suite=suite, tasks=tuple(range(2 * times + 1)), kept_tasks=1)  # type: ignore[arg-type]
    workers = Workers(config, [1])
    sim, active = workers.sims[0], np.ones(1, bool)

    def reset(task: int) -> float:
        began = time.perf_counter()
        sim.reset([0], [task], [Start(task, 0)])
        return time.perf_counter() - began

    def play() -> None:
        sim.step(np.zeros((1, CHUNK, 7), np.float32), active)

    found: dict[str, list[float]] = {"same_task": [], "compiled_then": [], "prepared": []}
    for number in range(times):
        task = 2 * number + 1
        found["compiled_then"].append(reset(task))
        found["same_task"].append(reset(task))
        sim.prepare([task + 1])
        play()  # its answer comes when the task stands
        found["prepared"].append(reset(task + 1))
        play()
    workers.close()
    return {name: [round(one, 3) for one in some] for name, some in found.items()}


def train(suite: str, tasks: tuple[int, ...] | None, envs: int, steps: int) -> dict[str, Any]:
    """Train the tiny model on all tasks; returns the metrics of each step."""
    import rlvla

    seen: list[dict[str, float]] = []

    class Listener:
        @rlvla.hookimpl
        def on_step(self, metrics: dict[str, float]) -> None:
            seen.append(
                {
                    name: metrics[name]
                    for name in ("env_steps_per_second", "time/step_s", "rollout/episodes")
                    if name in metrics
                }
            )

    began = time.perf_counter()
    with rlvla.build(
        sim={"use": "libero", "suite": suite, "tasks": tasks, "num_envs": envs, "max_episode_steps": 32},
        model="tiny",
        algo={"use": "ppo", "window": 4},
        scheduler="async-rollout",
        run={"steps": steps, "directory": tempfile.mkdtemp(), "device": "auto", "task_episodes": 4},
        listeners=[Listener()],
    ) as run:
        run.train()
    return {"suite": suite, "envs": envs, "seconds": round(time.perf_counter() - began, 1), "steps": seen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what the result says it was measured on")
    parser.add_argument("--output", type=Path, required=True, help="JSON; parts that are not measured now are kept")
    parser.add_argument("--suite", default="libero_spatial")
    parser.add_argument(
        "--tasks", type=int, nargs="+", default=[0], help="numbers in the suite, for --memory, --soak, --train"
    )
    parser.add_argument("--chunks", type=int, default=5, help="of 8 actions each, for CPU time; 0: not measured")
    parser.add_argument("--processes", type=int, nargs="+", default=[])
    parser.add_argument("--rows", type=int, nargs="+", default=[1], help="environments a process, ours")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each throughput")
    parser.add_argument("--memory", type=int, metavar="ENVS")
    parser.add_argument("--alone", type=int, default=2, help="processes of one environment, to compare memory with")
    parser.add_argument("--soak", type=float, metavar="SECONDS")
    parser.add_argument("--envs", type=int, default=8, help="of the soak")
    parser.add_argument(
        "--rest", type=float, default=0.0, help="seconds of sleep after every 5 of the soak, on a shared machine"
    )
    parser.add_argument("--swap", type=int, metavar="TIMES")
    parser.add_argument("--train", type=int, metavar="ENVS")
    parser.add_argument("--all-tasks", action="store_true", help="with --train: all tasks of the suite")
    parser.add_argument("--steps", type=int, default=3, help="training steps")
    options = parser.parse_args()
    result: dict[str, Any] = json.loads(options.output.read_text()) if options.output.is_file() else {}
    tasks = tuple(options.tasks)

    def note(part: str, found: Any) -> None:
        sys.stdout.write(f"{part}: {json.dumps(found)}\n")
        sys.stdout.flush()
        result[part] = found
        options.output.write_text(json.dumps(result, indent=1) + "\n")

    note("machine", options.machine)
    note(
        "setting",
        {
            "chunk": CHUNK,
            "pictures": "two of 256x256",
            "cores": usable_cores(),
            "MUJOCO_GL": os.environ.get("MUJOCO_GL"),
        },
    )
    if options.chunks:
        before = result.get("cpu_time", {})
        now = {f"{options.suite}/{task}": cpu_time(options.suite, task, options.chunks) for task in tasks}
        note("cpu_time", {**before, **now})
    rates = []
    for processes in options.processes:
        cases = [(1, True), *((rows, False) for rows in options.rows)]
        for rows, stock in cases:
            rates.append(throughput(options.suite, tasks[0], processes, rows, options.seconds, stock=stock))
            note("throughput", rates)
    if options.memory:
        part = "memory" if len(tasks) == 1 else "memory_of_tasks"
        note(part, memory(options.suite, tasks, options.memory, options.alone))
    if options.soak:
        note("soak", soak(options.suite, tasks, options.envs, options.soak, options.rest))
    if options.swap:
        note("swap", swap(options.suite, options.swap))
    if options.train:
        note("train", train(options.suite, None if options.all_tasks else tasks, options.train, options.steps))
    from rlvla_sim_libero import startup

    note("versions", {name: startup.version(name) for name in (*startup.PINS, "numpy")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
