"""Does anything grow while a run goes on under Ray? Bytes in the object store and memory of every process, each 10 s.

    python benchmarks/ray_object_store.py [--minutes 20] [--output benchmarks/results/ray_object_store.json]

``tiny`` learns tabletop with PPO under full-async, two trainer ranks and two generators on two parts of this machine's cores, 8
environments with 128-pixel pictures in 2 slots, so that chunk steps (0.2 MB of pictures each) go through the object store; Ray
keeps smaller ones in the driver's memory. The store's bytes are the raylet's own count; memory is what /proc says is resident,
pages of the store that a process has mapped left out. Also what the controller takes: CPU seconds of its thread over wall seconds.

Flat means: after a quarter of the time, in which processes fill their buffers, the median of the last quarter is at most 5 % (or 8 MiB)
above that of the quarter after the first. The run ends with an error if anything grows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import rlvla

EVERY_S = 10.0
MIB = 2.0**20
GROWTH, LEAST_MIB = 1.05, 8.0
ENVS, SLOTS, WINDOW = 8, 2, 8
SLOT_CHUNK_STEPS = SLOTS * WINDOW
"""Of a training step, which takes a window of every environment."""


def recipe(folder: str) -> dict[str, Any]:
    """Return the mapping of the run, which ends when it is told to."""
    run = {"runtime": "ray", "device": "cpu", "devices": 2, "placement": "collocated", "slots": SLOTS, "threads": 1}
    quiet = {"steps": 1_000_000, "directory": folder, "name": "run", "without": ["display", "tensorboard", "report"]}
    return {
        "sim": {"use": "tabletop", "num_envs": ENVS, "image_size": 128},
        "model": {"use": "tiny", "image_size": 64},
        "algo": {"use": "ppo", "window": WINDOW, "windows_per_step": ENVS, "minibatch_size": 32},
        "scheduler": {"use": "full-async", "max_staleness": 1},
        "run": {**run, **quiet},
    }


def store() -> tuple[float, int]:
    """Return MiB and objects in the object store of this machine."""
    import ray
    from ray._private.internal_api import node_stats

    (node,) = [one for one in ray.nodes() if one["Alive"]]
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False).store_stats
    return stats.object_store_bytes_used / MIB, stats.num_local_objects


def processes() -> dict[str, float]:
    """Return MiB of memory of the driver, of Ray's workers and simulators' workers with actors in them, and of Ray itself."""
    me = psutil.Process()
    found = {"driver": _own(me)}
    rest = 0.0
    for child in me.children(recursive=True):
        try:
            words, mib = child.cmdline(), _own(child)
        except psutil.Error:
            continue
        if words and words[0].startswith("ray::Host"):
            found[f"actors {child.pid}"] = mib
        elif "rlvla.worker" in words:
            found[f"simulator {child.pid}"] = mib
        elif words and Path(words[0]).name in ("gcs_server", "raylet"):
            found[Path(words[0]).name] = mib
        else:
            rest += mib
    return {**found, "others of Ray": rest}


def _own(process: psutil.Process) -> float:
    memory = process.memory_info()
    return float(memory.rss - memory.shared) / MIB


class Sampler:
    """Looks at everything each 10 s, in a thread of its own, and ends the run when the time is up."""

    def __init__(self, seconds: float) -> None:
        self.run: rlvla.run.Run | None = None
        self._seconds = seconds
        self.samples: list[dict[str, Any]] = []
        self.failed: Exception | None = None
        self.step = 0
        self.env_steps = 0.0
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @rlvla.hookimpl
    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.step, self.env_steps = step, metrics["env_steps"]
        if not self._thread.is_alive() and not self.samples:
            self._thread.start()

    def _sample(self) -> None:
        (controller,) = [one for one in threading.enumerate() if one.name == "controller"]
        assert controller.ident is not None, "it runs"
        clock = time.pthread_getcpuclockid(controller.ident)
        began = time.monotonic()
        try:
            while (now := time.monotonic() - began) < self._seconds:
                mib, objects = store()
                sample = {"seconds": round(now, 1), "step": self.step, "env_steps": self.env_steps}
                sample |= {"controller_cpu_s": time.clock_gettime(clock), "store_mib": mib, "store_objects": objects}
                self.samples.append({**sample, "memory_mib": processes()})
                time.sleep(min(EVERY_S, self._seconds / 8))
        except Exception as error:
            self.failed = error
        finally:
            assert self.run is not None, "it tells of its steps"
            self.run.stop()


def quarters(values: list[float]) -> tuple[float, float]:
    """Return the medians of the second and the last quarter."""
    part = len(values) // 4
    return median(values[part : 2 * part]), median(values[-part:])


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what grew, what the controller took, and how far the run came."""
    first, last = samples[0], samples[-1]
    seconds = last["seconds"] - first["seconds"]
    series = {"object store": [one["store_mib"] for one in samples]}
    for name in first["memory_mib"]:
        series[name] = [one["memory_mib"].get(name, 0.0) for one in samples]
    middle = {name: quarters(values) for name, values in series.items()}
    return {
        "seconds": seconds,
        "training_steps": last["step"] - first["step"],
        "env_steps_per_second": (last["env_steps"] - first["env_steps"]) / seconds,
        "controller_share": (last["controller_cpu_s"] - first["controller_cpu_s"]) / seconds,
        "controller_ms_a_slot_chunk_step": 1000
        * (last["controller_cpu_s"] - first["controller_cpu_s"])
        / (last["step"] - first["step"])
        / SLOT_CHUNK_STEPS,
        "store_mib_peak": max(series["object store"]),
        "mib": {name: {"second quarter": one, "last quarter": other} for name, (one, other) in middle.items()},
        "grew": [name for name, (one, other) in middle.items() if other > max(GROWTH * one, one + LEAST_MIB)],
    }


def markdown(result: dict[str, Any], picture: str) -> str:
    """Return the result as a page."""
    found = result["summary"]
    grew = ", ".join(found["grew"]) or "nothing"
    lines = [
        f"# {found['seconds'] / 60:.0f} minutes under Ray: what grows",
        "",
        f"{result['machine']}, shared with other work, {result['date']}. {found['training_steps']} training steps, "
        f"{found['env_steps_per_second']:.0f} env steps/s, full-async, two trainer ranks and two generators; how: "
        "`benchmarks/ray_object_store.py`. "
        f"What grew: {grew}. Most in the object store: {found['store_mib_peak']:.1f} MiB.",
        "",
        f"The controller's thread was busy for {100 * found['controller_share']:.1f} % of the time, "
        f"{found['controller_ms_a_slot_chunk_step']:.2f} ms of CPU for each chunk step of a slot; what it takes on 256 GPUs is in "
        "`virtual_scaling.md`.",
        "",
        "Before workers told Ray to keep no history of calls (`enable_task_events`), its own processes grew from 277 to 530 MiB in "
        "20 minutes of the same run.",
        "",
        "| MiB, median of | second quarter | last quarter |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {one['second quarter']:.1f} | {one['last quarter']:.1f} |" for name, one in found["mib"].items()
    ]
    return "\n".join([*lines, "", f"![Object store and memory over time]({picture})", ""])


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the store and every process over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    samples = result["samples"]
    minutes = [one["seconds"] / 60 for one in samples]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    axes[0].plot(minutes, [one["store_mib"] for one in samples])
    axes[0].set_ylabel("object store, MiB")
    for name in samples[0]["memory_mib"]:
        axes[1].plot(minutes, [one["memory_mib"].get(name, 0.0) for one in samples], label=name)
    axes[1].set_ylabel("memory of a process, MiB")
    axes[1].legend(fontsize=7)
    for axis in axes:
        axis.set_xlabel("minutes")
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def measured(seconds: float) -> list[dict[str, Any]]:
    """Return samples of a run of so many seconds."""
    sampler = Sampler(seconds)
    with tempfile.TemporaryDirectory() as folder, rlvla.build(**recipe(folder), listeners=[sampler]) as run:
        sampler.run = run
        run.train()
    if sampler.failed is not None:
        raise sampler.failed
    return sampler.samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--output", type=Path, help="a JSON file; a page and a picture are written beside it")
    options = parser.parse_args()
    samples = measured(60 * options.minutes)
    result = {
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "date": time.strftime("%Y-%m-%d"),
        "summary": summary(samples),
        "samples": samples,
    }
    picture = options.output.with_suffix(".png").name if options.output else ""
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
        options.output.with_suffix(".md").write_text(markdown(result, picture))
        draw(result, options.output.with_suffix(".png"))
    print(markdown(result, picture))
    if grew := result["summary"]["grew"]:
        raise SystemExit(f"grew: {', '.join(grew)}")


if __name__ == "__main__":
    main()
