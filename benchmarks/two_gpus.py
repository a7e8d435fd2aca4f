"""One run on two GPUs of a machine: every placement, sharded training, weights by NCCL; how it scales, and what holds it back.

    python benchmarks/two_gpus.py --out results --machine "two H200, 32 CPU cores"
    python benchmarks/two_gpus.py --out results --parts scaling --seconds 540      # then sharded, then hybrid
    python benchmarks/two_gpus.py --out /tmp/two --tiny                # small sizes on the fake simulator, two parts of a CPU

It needs Ray (``rlvla[ray]``; the wheel of 2.60 for Python 3.12 has 79 MB), GR00T and LIBERO, and no network. Parts may be run
one by one, for instance where a machine can be had for minutes only: a result stands in ``--out`` as soon as its cell has
ended, cells of other parts stay, ``--seconds`` is shared by the cells at hand, and kernels that were compiled are kept in
``--out`` too.

The work of a step is fixed for each GPU: 64 environments (4 in each of 16 processes) x 80 env steps of one task of LIBERO
spatial, two 256-pixel cameras rendered through EGL on the GPU that the placement says, chunks of 10, one pass over 512 chunks
in optimizer steps of 256. The model is a full-size GR00T N1.5 with random weights: backbone frozen, its features kept, head
trained.

Cells: ``one-local`` and ``one`` (what Ray costs), both on one GPU and half of the cores, as its share of the machine is
(``one-all`` has all of them); ``pair``, two runs like ``one`` at once, a GPU and half of the cores each, which share nothing
but the machine (rates are their sum, all else is the first one's); on two GPUs ``collocated`` (a generator and a trainer rank
in one process on each, gradients added up), ``fsdp`` (the same, parameters and optimizer cut among ranks), ``disaggregated`` (a
generator on the first, the trainer on the second, weights broadcast by NCCL), ``apart`` (rendering on the first, the model on
the second), ``hybrid`` (rendering on the first, generator on the second, the trainer on both). ``batched`` and
``batched-hybrid``: LIBERO's physics and pictures on the first as two batches of 128 environments (``rlvla-sim-libero-gpu`` with
its packages in the same interpreter), generator and trainer on the second, 256 x 40 env steps a step.

Rates are those of ``scheduler_runs``; what counts are steps from the fifth on, but full-async's last: until then batches come
in sizes that were not met before, for which a graph is captured. ``scaling`` is a cell's rate over ``one``'s,
``scaling_by_pair`` over half of ``pair``'s: what is lost by working together, apart from what two runs take from each other.
``publication_share`` is what new weights take from whoever waits for them most: the larger of the trainer's copying and the
slowest generator's taking over, as a share of all seconds that count. ``controller_share`` is the CPU time of the controller's
thread. Each cell runs in a process of its own; an existing result of another cell stays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import scheduler_runs

import rlvla

RECIPE = Path(__file__).parent.parent / "examples" / "gr00t_libero_ppo_full-async_cuda.py"
_BATCHED = {
    "sim": {"use": "libero-gpu", "suite": "libero_spatial", "num_envs": 256},
    "algo": {"window": 4, "windows_per_step": 256, "minibatch_size": 256},
    "run": {"devices": 2, "placement": {"simulator": "0", "generator": "1", "trainer": "1"}, "slots": 2},
}
CELLS: dict[str, dict[str, Any]] = {
    "one-local": {"run": {"runtime": "local"}},
    "one": {"run": {"devices": 1}},
    "one-all": {"run": {"devices": 1}},
    "pair": {"run": {"devices": 1}},
    "collocated": {"run": {"devices": 2, "placement": "collocated"}},
    "fsdp": {"run": {"devices": 2, "placement": "collocated"}, "train": {"shard": "fsdp"}},
    "disaggregated": {"run": {"devices": 2, "placement": "disaggregated", "transport": "broadcast"}},
    "apart": {"run": {"devices": 2, "placement": {"simulator": "0", "generator": "1", "trainer": "1"}}},
    "hybrid": {"run": {"devices": 2, "placement": "hybrid"}, "scheduler": {"use": "hybrid"}},
    "batched": _BATCHED,
    "batched-hybrid": {**_BATCHED, "scheduler": {"use": "hybrid", "stages": 2}},
}
PARTS = {
    "scaling": ("one", "pair", "collocated"),
    "sharded": ("fsdp", "disaggregated"),
    "hybrid": ("apart", "hybrid", "one-local", "one-all"),
    "batched": ("batched", "batched-hybrid"),
}
"""By what a reader wants to know first: 1 to 2 GPUs; FSDP2 and NCCL; the rest; LIBERO as a batch on a GPU."""
_HALVES = ("one", "one-local", "pair")
"""Cells whose runs have half of the cores."""
_SUMS = ("env_steps_per_second", "env_steps_per_second_device_bound", "env_steps_per_second_schedule_bound")
_WARM = 4
"""Steps that do not count."""
SAVING_S = 60.0
"""That a cell which is told to end may take to save."""


def recipe(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden, read_file
    from rlvla_model_gr00t import tiny
    from rlvla_model_gr00t.header import HeadShape, QwenShape, SiglipShape

    made = read_file(RECIPE)
    place.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, Any] = {"siglip": SiglipShape(), "qwen": QwenShape(), "head": HeadShape()}
    if options.tiny:
        sizes = {"action_dim": 2, "state_dim": 2}
    tiny.write(place / "checkpoint", weights=False, tags=("libero_franka",), **sizes)
    cell = CELLS[name]
    devices = cell["run"].get("devices", 1)
    envs = devices * options.envs
    change: dict[str, Any] = {
        "sim": {"num_envs": envs, "max_episode_steps": 240, "tasks": [0]},
        "model": {"path": str(place / "checkpoint"), "tokenizer_path": None, "horizon": 10, "keep_features": 4096},
        "algo": {"window": 8, "windows_per_step": envs, "passes": 1, "minibatch_size": devices * 256},
        "scheduler": {"use": "full-async", "max_staleness": 1},
        "train": {"micro_batch": options.micro_batch},
        "eval": {"every": 0},
        "run": {
            "runtime": "ray",
            "steps": options.steps,
            "slots": devices * options.slots,
            "directory": str(place),
            "name": name,
            "save_every": 0,
            "without": ["display", "tensorboard"],
        },
    }
    if options.tiny:
        change["sim"] = {"use": "fake", "num_envs": 4 * devices, "max_episode_steps": 40}
        change["algo"] |= {"window": 2, "windows_per_step": 4 * devices, "minibatch_size": 8 * devices}
        change["run"] |= {"device": "cpu", "sim_in_process": True, "slots": 2 * devices, "threads": 1}
        change["model"] |= {"dtype": "fp32", "pad_to": 128, "state_keys": None, "action_keys": None}
    for section, more in cell.items():
        if options.tiny and section in ("sim", "algo"):
            continue
        change[section] = {**change[section], **more} if section != "scheduler" else more
    return overridden(made, change)


class Clock:
    """Notes at each step what the controller's thread has taken."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @rlvla.hookimpl
    def on_step(self, step: int) -> None:
        """Append a line; called in the controller's thread."""
        assert threading.current_thread().name == "controller", "listeners are called elsewhere"
        with self._file.open("a") as file:
            print(json.dumps([step, time.monotonic(), time.thread_time()]), file=file)


def train(name: str, options: argparse.Namespace) -> None:
    """Train in one cell, in a folder below ``--out``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    if name in _HALVES:
        cores = sorted(os.sched_getaffinity(0))
        half = max(1, len(cores) // 2)
        os.sched_setaffinity(0, cores[options.copy * half :][:half])
    place = options.out / "runs" / str(options.copy)
    with rlvla.build(**recipe(name, place, options), listeners=[Clock(place / "controller.jsonl")]) as run:
        print(run.specs.placement, run.specs.transport, flush=True)
        run.train()


def summary(name: str, folder: Path, warm: int) -> dict[str, Any]:
    """Return what the steps that count were, and what publications took in them."""
    scheduler = CELLS[name].get("scheduler", {"use": "full-async"})["use"]
    found = {**scheduler_runs.summary(scheduler, folder / "metrics.jsonl", warm), "scheduler": name}
    if "counted_steps" in found:
        steps = found["counted_steps"]
        found |= publications(folder, len(steps) * found["time/step_s"] * 1e9, steps[0] - 1, steps[-1])
        marks = {step: clocks for step, *clocks in map(json.loads, (folder.parent / "controller.jsonl").open())}
        (began, cpu), (ended, cpu_after) = marks[steps[0] - 1], marks[steps[-1]]
        found["controller_share"] = (cpu_after - cpu) / (ended - began)
    return found


def publications(folder: Path, nanoseconds: float, first: int, last: int) -> dict[str, Any]:
    """Return what publications of versions ``first`` to ``last`` took from trainer and generators."""
    from rlvla.tracing import read

    taken: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for span in read(folder):
        if span.phase in ("publish", "offer") and first <= span.version <= last:
            taken[span.actor, span.phase].append(span.ended_ns - span.began_ns)
    sums = {f"{phase} of {actor}": sum(some) / nanoseconds for (actor, phase), some in taken.items()}
    return {
        "publication_share": max(sums.values(), default=0.0),
        "publications": {who: round(share, 5) for who, share in sorted(sums.items())},
    }


def scaling(runs: list[dict[str, Any]]) -> None:
    """Add each cell's rate over that of one GPU, alone and beside another."""
    rates = {row["scheduler"]: row["env_steps_per_second"] for row in runs if "env_steps_per_second" in row}
    for row in runs:
        for key, one in (("scaling", rates.get("one")), ("scaling_by_pair", rates.get("pair", 0.0) / 2)):
            if one and "env_steps_per_second" in row:
                row[key] = row["env_steps_per_second"] / one


def environment(out: Path, copy: int, copies: int) -> dict[str, str]:
    """Return the variables of a cell: its kernels are found again by the next one, and no host's memory is guessed at."""
    kernels = {"TORCHINDUCTOR_CACHE_DIR": str(out / "kernels"), "TRITON_CACHE_DIR": str(out / "kernels" / "triton")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    gpu = {"CUDA_VISIBLE_DEVICES": visible[copy]} if 1 < copies <= len(visible) else {}
    # Ray ends workers where memory seems short, which virtual machines that grow as they are used always report.
    return {**os.environ, **kernels, **gpu, "RAY_memory_monitor_refresh_ms": "0"}


def played(name: str, options: argparse.Namespace, seconds: float | None) -> dict[str, Any]:
    """Run a cell, each of its runs in a process of its own, for at most so long; returns what it found."""
    runs = options.out / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    began = time.perf_counter()
    copies = 2 if name == "pair" else 1
    command = [sys.executable, *sys.argv, "--one", name, "--copy"]
    children = [
        subprocess.Popen([*command, str(copy)], env=environment(options.out, copy, copies), start_new_session=True)
        for copy in range(copies)
    ]
    try:
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(None if seconds is None else max(0.0, began + seconds - time.perf_counter()))
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            end(child)
    results = [summary(name, runs / str(copy) / name, 2 if options.tiny else _WARM) for copy in range(copies)]
    result = {**results[0], "seconds": time.perf_counter() - began}
    for key in _SUMS:
        if all(key in one for one in results):
            result[key] = sum(one[key] for one in results)
    if codes := [child.returncode for child in children if child.returncode]:
        result["ended_by"] = f"exit code {codes[0]}"
    if any("failed" in one for one in results):
        result = {key: one for key, one in result.items() if key not in _SUMS} | {"failed": "no step to count"}
    if options.keep:
        for copy in range(copies):
            for file in ("metrics.jsonl", "timeline.jsonl"):
                with contextlib.suppress(OSError):
                    shutil.copy(runs / str(copy) / name / file, options.out / f"{name}-{copy}.{file}")
    shutil.rmtree(runs, ignore_errors=True)
    return result


def end(child: subprocess.Popen[bytes]) -> None:
    """Wait until a run that was told to end has saved and taken its workers with it, or end it."""
    try:
        child.wait(SAVING_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)


def share(deadline: float | None, left: int) -> float | None:
    """Return the seconds that a cell gets of those until a deadline, with so many cells left; saving counts."""
    if deadline is None:
        return None
    return max(1.0, (deadline - time.perf_counter()) / left - SAVING_S)


def main() -> None:
    """Run each cell of the chosen parts, and write what it says before the next."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for two_gpus.json and .md, and for kernels")
    parser.add_argument("--machine", default="this machine", help="what the result says it was measured on")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS)[:3])
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), help="instead of parts")
    parser.add_argument("--steps", type=int, default=10, help="training steps")
    parser.add_argument("--seconds", type=float, help="of all chosen cells together; one that takes longer is ended")
    parser.add_argument("--envs", type=int, default=64, help="for each GPU")
    parser.add_argument("--slots", type=int, default=16, help="parts of a GPU's environments, a process each")
    parser.add_argument("--micro-batch", type=int, default=64, help="chunks in one forward and backward pass")
    parser.add_argument("--keep", action="store_true", help="keep each run's metrics and timeline, beside the results")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", choices=list(CELLS), help=argparse.SUPPRESS)
    parser.add_argument("--copy", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.absolute()
    if options.one:
        train(options.one, options)
        return
    deadline = None if options.seconds is None else time.perf_counter() + options.seconds
    cells = options.cells or [name for part in options.parts for name in PARTS[part]]
    place = options.out / "two_gpus.json"
    before = json.loads(place.read_text())["runs"] if place.is_file() else []
    found: dict[str, Any] = {"title": "GR00T N1.5 with PPO, one run on two GPUs,", "machine": options.machine}
    found |= {"date": time.strftime("%Y-%m-%d"), "runs": before}
    failed = False
    for number, name in enumerate(cells):
        result = played(name, options, share(deadline, len(cells) - number))
        failed |= "failed" in result
        rows = [*(row for row in found["runs"] if row["scheduler"] != name), result]
        found["runs"] = sorted(rows, key=lambda row: list(CELLS).index(row["scheduler"]))
        scaling(found["runs"])
        place.write_text(json.dumps(found, indent=1))
        place.with_suffix(".md").write_text(scheduler_runs.markdown(found))
    print(scheduler_runs.markdown(found))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
