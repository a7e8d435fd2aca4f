"""How fast LIBERO runs on a GPU: env steps a second of one task's worlds, what they are made of, and the CPU backend beside.

    python benchmarks/libero_gpu.py                                          # on a GPU: 256, 64 and 1024 worlds
    python benchmarks/libero_gpu.py --device cpu --worlds 2 --chunks 1       # shows that it works; its figures mean nothing, and
                                                                             # go to a file of their own (results/libero_gpu_cpu.json)

Chunks of 8 random actions, two pictures once a chunk, controller and success included, each figure from the same state (after a reset
and a chunk); then ``libero`` with a process a core
(under the mujoco that is here), and how many times as fast each number of worlds is. Every result is printed as soon as it stands
and the file is written again after each, so a run that is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libero_sim
import model_parts
import numpy as np
import torch

from rlvla.devices import usable_cores
from rlvla.specs import Start
from rlvla_sim_libero import startup
from rlvla_sim_libero.tasks import SUITES

startup.import_libero()

from rlvla.mujoco_warp.start import mjw  # noqa: E402
from rlvla.mujoco_warp.worlds import Limits  # noqa: E402
from rlvla_sim_libero.scene import Scene  # noqa: E402
from rlvla_sim_libero_gpu import LiberoGpuConfig  # noqa: E402
from rlvla_sim_libero_gpu.batch import SUBSTEPS, Batch, Look  # noqa: E402
from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator  # noqa: E402
from rlvla_sim_libero_gpu.starts import Starts  # noqa: E402

CHUNK = 8
CAMERAS = ("agentview", "robot0_eye_in_hand")
RESULT = Path(__file__).parent / "results" / "libero_gpu.json"
_BEGAN = time.monotonic()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--suite", default="libero_spatial")
    made.add_argument("--task", type=int, default=0)
    made.add_argument("--worlds", type=int, nargs="+", default=[256, 64, 1024])
    made.add_argument(
        "--tasks", type=int, default=0, help="of the suite, for which the first number of worlds is shared out too"
    )
    made.add_argument(
        "--deterministic", action="store_true", help="the first number of worlds so too, and what that costs"
    )
    made.add_argument("--size", type=int, default=256, help="of pictures, in pixels")
    made.add_argument("--texture-size", type=int, default=512)
    made.add_argument("--chunks", type=int, default=10, help="timed chunks of each number of worlds")
    made.add_argument("--starts", type=int, default=4, help="different starts, drawn on the CPU")
    made.add_argument("--contacts", type=int, default=200, help="room for contacts of a world on average")
    made.add_argument("--constraints", type=int, default=600, help="room for constraint rows of a world")
    made.add_argument("--cpu-seconds", type=float, default=8.0, help="of the CPU backend; 0: not measured")
    made.add_argument(
        "--kernels", type=int, default=0, help="of an env step that are listed with their times; on a GPU"
    )
    made.add_argument("--device", default="cuda")
    made.add_argument("--output", type=Path, help="default: results/libero_gpu.json on a GPU, else named by the device")
    return made


def say(**what: Any) -> None:
    print(json.dumps({"at_s": round(time.monotonic() - _BEGAN, 1), **what}), flush=True)


def main() -> None:
    args = parser().parse_args()
    args.output = args.output or output(args.device)
    task = SUITES[args.suite][args.task]
    result: dict[str, Any] = {
        "machine": machine(args.device),
        "settings": {**vars(args), "output": None, "chunk": CHUNK},
    }
    say(**result["machine"])
    scene = Scene(startup.task_file(task))
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        states = file["states"]
    starts, began = Starts(scene, 10, args.starts), time.monotonic()
    begun = [starts.get(seed, seed, states[seed]) for seed in range(args.starts)]
    result["start_ms"] = round(1e3 * (time.monotonic() - began) / args.starts, 1)
    say(start_ms=result["start_ms"])
    for count in args.worlds:
        result[f"{count} worlds"] = measured(args, scene, begun, count)
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    for count in args.worlds[:1] if args.deterministic else ():
        result[f"{count} worlds, deterministic"] = told = measured(args, scene, begun, count, deterministic=True)
        told["share_of_the_rate"] = round(told["env_steps_per_s"] / result[f"{count} worlds"]["env_steps_per_s"], 3)
        say(worlds=count, share_of_the_rate=told["share_of_the_rate"])
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    for count in args.worlds[:1] if args.tasks else ():
        result[f"{count} worlds of {args.tasks} tasks"] = of_many_tasks(args, count)
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    if args.cpu_seconds:
        cpu = libero_sim.throughput(args.suite, args.task, usable_cores(), 1, args.cpu_seconds, stock=False)
        result["cpu backend"] = cpu
        for count in args.worlds:
            one = result[f"{count} worlds"]
            one["times_the_cpu_backend"] = round(one["env_steps_per_s"] / cpu["env_steps_per_second"], 2)
            say(worlds=count, times_the_cpu_backend=one["times_the_cpu_backend"])
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    say(written=str(args.output))


def output(device: str) -> Path:
    """Return where results go: those of a GPU are the ones that are kept."""
    return RESULT if device.startswith("cuda") else RESULT.with_stem(f"{RESULT.stem}_{device}")


def machine(device: str) -> dict[str, str]:
    versions = {name: startup.version(name) for name in ("mujoco", "mujoco-warp", "warp-lang", "torch")}
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()} CPU"
    return {"device": name, "python": platform.python_version(), **versions}


def measured(
    args: argparse.Namespace, scene: Scene, begun: list[Any], count: int, deterministic: bool = False
) -> dict[str, Any]:
    """Return what a number of worlds takes."""
    began = time.monotonic()
    batch = Batch(
        scene,
        begun[0],
        count,
        limits=Limits(args.contacts, args.constraints),
        look=Look(CAMERAS, args.size, args.texture_size),
        device=args.device,
        deterministic=deterministic,
    )
    told: dict[str, Any] = {"made_s": round(time.monotonic() - began, 1)}
    say(worlds=count, **told)
    rows = list(range(count))
    with batch.worlds.turn():

        def reset() -> None:
            batch.begin(rows, [begun[row % len(begun)] for row in rows])

        reset()
        action = torch.as_tensor(
            np.random.default_rng(0).uniform(-1, 1, (args.chunks, CHUNK, count, 7)).astype(np.float32),
            device=batch.worlds.device,
        )
        live = torch.ones(count, dtype=torch.bool, device=batch.worlds.device)

        def chunk(number: int, pictures: bool) -> None:
            for step in range(CHUNK):
                batch.step(action[number, step], live)
            if pictures:
                batch.draw()
                batch.state()

        def fresh(call: Callable[[int], Any]) -> float:
            """Time a call from where all figures are taken: after a reset and a chunk."""
            reset()
            chunk(0, True)
            return timed(args, call)

        whole = fresh(lambda number: chunk(number, True))
        told["env_steps_per_s"] = round(count * CHUNK / whole)
        say(worlds=count, env_steps_per_s=told["env_steps_per_s"])
        told["ms"] = {"chunk": ms(whole)}
        told["ms"]["env step without pictures"] = ms(fresh(lambda number: chunk(number, False)) / CHUNK)
        told["ms"]["pictures"] = ms(fresh(lambda number: batch.draw()))
        told["ms"]["reset of all worlds"] = ms(fresh(lambda number: reset()))
        told["ms"]["reset of one world"] = ms(fresh(lambda number: batch.begin([0], begun[:1])))
        say(worlds=count, ms=told["ms"])
        data = batch.worlds.data
        parts: dict[str, Callable[[], Any]] = {
            "physics": lambda: [mjw.step(batch.worlds.model, data) for _ in range(SUBSTEPS)],
            "controller": lambda: [batch.controller.launch(data, number) for number in range(SUBSTEPS)],
            "success": batch._judge,
        }
        for name, play in parts.items():
            told["ms"][f"{name} of an env step"] = ms(fresh(program_of(batch, play)))
        if args.kernels:
            told["kernels"] = model_parts.profiled(lambda: batch.step(action[0, 0], live), args.kernels)
            for one in told["kernels"]:
                say(worlds=count, **one)
    seen = batch.worlds.seen()
    told |= {
        "contacts_seen": seen.contacts,
        "constraints_seen": seen.constraints,
        "overflowed_worlds": int(batch.worlds.overflowed().sum()),
        "finite": bool(torch.isfinite(batch.worlds["qpos"]).all()),
        "gib_estimated": round(batch.worlds.room.needed / 2**30, 2),
    }
    if args.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        told["gib_used_on_device"] = round((total - free) / 2**30, 2)
    say(worlds=count, **told)
    return told


def of_many_tasks(args: argparse.Namespace, count: int) -> dict[str, Any]:
    """Return what the simulator takes for worlds of many tasks: all tasks at once, and one after another."""
    sizes = {"image_size": args.size, "texture_size": args.texture_size, "layouts": 1, "num_envs": count}
    limits = {"contacts": args.contacts, "constraints": args.constraints, "device": args.device}
    config = LiberoGpuConfig(suite=args.suite, tasks=tuple(range(args.tasks)), **sizes, **limits)  # type: ignore[arg-type]
    simulator = LiberoGpuSimulator(config, count)
    tasks = np.arange(count) % args.tasks
    simulator.reset(range(count), range(count), [Start(int(task), 0) for task in tasks])
    random = np.random.default_rng(0)
    whole = np.ones(count, bool)

    def chunk(actives: list[Any]) -> None:
        actions = torch.as_tensor(random.uniform(-1, 1, (count, CHUNK, 7)).astype(np.float32), device=args.device)
        for active in actives:
            simulator.step(actions, active)

    chunk([whole])  # whatever is made at the first call
    told = {}
    for name, actives in (("at once", [whole]), ("in turn", [tasks == task for task in range(args.tasks)])):
        seconds = timed(args, lambda number, actives=actives: chunk(actives))  # type: ignore[misc]
        told[name] = {"chunk_ms": ms(seconds), "env_steps_per_s": round(count * CHUNK / seconds)}
        say(worlds=count, tasks=args.tasks, **{name: told[name]})
    simulator.close()
    return told


def program_of(batch: Batch, play: Callable[[], Any]) -> Callable[[int], Any]:
    """Return launches by themselves, under the controls that are there."""
    program = batch.worlds.program(play)
    return lambda number: program()


def timed(args: argparse.Namespace, call: Callable[[int], Any]) -> float:
    """Return the mean seconds of a call over all chunks, the device's work included."""
    wait(args.device)
    began = time.perf_counter()
    for number in range(args.chunks):
        call(number)
    wait(args.device)
    return (time.perf_counter() - began) / args.chunks


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


if __name__ == "__main__":
    main()
