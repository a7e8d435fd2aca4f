"""What RoboTwin costs here: env steps a second, where the time goes, memory of each environment.

    python benchmarks/robotwin_sim.py --assets DIR --machine "2-core x86-64 CPU" --output benchmarks/results/robotwin_sim.json
    python benchmarks/robotwin_sim.py --assets DIR --machine M --output F --processes 1 2 4 8 16 --shader ray-tracing

Each environment is a worker process, as in a run; all are stepped side by side. Chunks go from the last targets on by at most
``--reach`` radians an action, since the cost of a chunk follows its way (at most 1 rad/s), not its number of actions.
Resets are in env steps a second and in CPU time, which is summed over all threads and which a busy machine changes little; starting and the first picture (shaders) are told apart. The runtime's environment has to be
installed (``rlvla simulators install robotwin``); without RoboTwin's assets, ``rlvla_sim_robotwin.toy_assets`` makes small ones,
whose scenes are lighter than the true ones.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.configs import Choice, read_choice
from rlvla.devices import machine, usable_cores
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator

TASK = "click_bell"
LIMIT = 200


class Environment:
    """A worker with one environment, and what its calls took."""

    def __init__(self, choice: Choice, number: int, horizon: int) -> None:
        began = time.perf_counter()
        self.sim = SubprocessSimulator(choice, 1, horizon, name=f"sim-{number}").wait_ready()
        self.start_s = time.perf_counter() - began
        self.horizon = horizon
        self.seed = 1000 * number
        self.steps = 0
        self.chunk_s: list[float] = []
        self.reset_s: list[float] = []
        self.cpu_s = 0.0
        self.random = np.random.default_rng(number)
        began = time.perf_counter()
        self.reset()
        self.first_picture_s = time.perf_counter() - began
        self.reset_s.clear()
        self.cpu_s = 0.0

    def reset(self) -> None:
        self.state = self.sim.reset([0], [self.seed], [Start(0)]).state[0].copy()
        self.seed += 1
        self.reset_s.append(self.sim.seconds)
        self.cpu_s += self.sim.cpu_seconds

    def play(self, until: float, reach: float) -> None:
        """Step random ways until a time."""
        while time.perf_counter() < until:
            way = self.random.uniform(-reach, reach, (self.horizon, 14)).cumsum(0)
            result = self.sim.step((self.state + way)[None].astype(np.float32), np.ones(1, bool))
            self.chunk_s.append(self.sim.seconds)
            self.cpu_s += self.sim.cpu_seconds
            self.steps += int(result.valid.sum())
            self.state = result.observation.state[0].copy()
            if result.terminated.any() or result.truncated.any():
                self.reset()


def measure(choice: Choice, processes: int, horizon: int, seconds: float, reach: float) -> dict[str, Any]:
    """Step a number of environments side by side."""
    with ThreadPoolExecutor(processes) as pool:
        made = list(pool.map(lambda number: Environment(choice, number, horizon), range(processes)))
        began = time.perf_counter()
        list(pool.map(lambda one: one.play(began + seconds, reach), made))
        took = time.perf_counter() - began
        versions = made[0].sim.versions()
        found = {
            "processes": processes,
            "cameras": [camera.name for camera in made[0].sim.spec.cameras],
            "horizon": horizon,
            "env_steps_per_second": round(sum(one.steps for one in made) / took, 1),
            "step_cpu_ms": round(1e3 * sum(one.cpu_s for one in made) / sum(one.steps for one in made), 1),
            "chunk_ms": _mean_ms([one for each in made for one in each.chunk_s]),
            "reset_ms": _mean_ms([one for each in made for one in each.reset_s]),
            "start_s": round(max(one.start_s for one in made), 1),
            "first_picture_s": round(max(one.first_picture_s for one in made), 1),
            "resident_peak_mib_a_process": round(max(one.sim.peak_bytes for one in made) / 2**20),
            "versions": versions,
        }
        list(pool.map(lambda one: one.sim.close(), made))
    return found


def _mean_ms(seconds: list[float]) -> float | None:
    """Return a mean; None of nothing: no episode ended."""
    return round(1e3 * sum(seconds) / len(seconds), 1) if seconds else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", required=True, help="asset root")
    parser.add_argument("--machine", required=True, help="what this runs on")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--task", default=TASK)
    parser.add_argument("--shader", choices=("default", "ray-tracing"), default="default")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--horizons", type=int, nargs="+", default=[10, 25])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--reach", type=float, default=0.02, help="radians an action at most")
    options = parser.parse_args()
    results = []
    for processes in options.processes:
        for horizon in options.horizons:
            for cameras in (["head"], ["head", "left_wrist", "right_wrist"]):
                shown = {"task": options.task, "assets": options.assets, "shader": options.shader, "cameras": cameras}
                choice = read_choice("sim", {"use": "robotwin", "max_episode_steps": LIMIT, **shown})
                results.append(measure(choice, processes, horizon, options.seconds, options.reach))
                print(
                    json.dumps({name: value for name, value in results[-1].items() if name != "versions"}), flush=True
                )
    settings = {
        "task": options.task,
        "reach": options.reach,
        "limit": LIMIT,
        "cores": usable_cores(),
        "seen": machine(),
    }
    told = {"machine": options.machine, "setting": settings, "results": results}
    options.output.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
