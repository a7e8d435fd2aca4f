"""What those who share a GPU take from each other: acting, training, LIBERO's rendering, LIBERO on the GPU, alone and together.

    python benchmarks/sharing_a_gpu.py --out results --machine "one H200, 16 CPU cores"
    python benchmarks/sharing_a_gpu.py --out results --users act train simulate      # with the packages of rlvla-sim-libero-gpu
    python benchmarks/sharing_a_gpu.py --out /tmp/sharing --tiny --users act train   # small sizes, on a CPU

``act``: a full-size GR00T N1.5 with random weights chooses chunks, in batches as full-async makes them. ``train``: forward and
backward passes of 64 chunks, features kept. Both are threads of one process, as in a run. ``render``: 16 processes play LIBERO and
draw two 256-pixel pictures once a chunk through EGL. ``simulate``: LIBERO's physics and pictures of 256 worlds, a thread too.

Each is measured alone, in pairs, and all at once. A rate is told as a share of what the same does alone. The sum of shares says what
sharing is worth: 1, they take turns; more, they fill each other's gaps; less, turns cost something themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gr00t
import torch
from model_parts import DEVICE, synchronise, table

from rlvla.actors.generator import GeneratorActor
from rlvla.batch import ObservationBatch
from rlvla.turns import computing
from rlvla.weights import acting_copy, products_in

SLOT_ROWS = 4
BATCHES = (12, 44, 8, 16, 32, 4, 28, 20, 48, 8)
"""Rows of calls, one after another: what slots of four make of them where nobody waits for anybody."""
MICRO_BATCH = 64
CHUNK = 8
User = Callable[[float], float]
"""Works for so many seconds, and returns what it did in each of them."""


class Model:
    """Acting and training, on copies of one model."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        sized = argparse.Namespace(tiny=options.tiny, cameras=2)
        self.model = gr00t.make_model(folder, sized, keep_features=1 << (8 if options.tiny else 13))
        self.generator = GeneratorActor(acting_copy(self.model), precision="bf16")
        self.batches = (4, 8) if options.tiny else BATCHES
        self.micro_batch = 8 if options.tiny else MICRO_BATCH
        self._slots = [gr00t.observation(self.model, SLOT_ROWS) for _ in range(MICRO_BATCH // SLOT_ROWS)]
        self._seen = ObservationBatch.joined(self._slots[: self.micro_batch // SLOT_ROWS])
        self._calls = itertools.count()
        for rows in sorted({*self.batches, self.micro_batch}) * 4:  # kernels are compiled, graphs captured
            self._chosen(rows)
        self.renew()
        for _ in range(3):
            self._train()

    def _chosen(self, rows: int) -> list[Any]:
        call, slots = next(self._calls), rows // SLOT_ROWS
        places = [list(range(SLOT_ROWS))] * slots
        keys = [[call * MICRO_BATCH + slot * SLOT_ROWS + row for row in range(SLOT_ROWS)] for slot in range(slots)]
        return list(self.generator.act(self._slots[:slots], places, places, keys)[1:])

    def renew(self) -> None:
        """Act on what training looks at, so that the features of that are the last ones kept."""
        self._replay = torch.cat([one.replay for one in self._chosen(self.micro_batch)])

    def _train(self) -> None:
        order = torch.randperm(self.micro_batch)
        with computing(), products_in("bf16", DEVICE):
            with torch.no_grad():
                inputs = self.model.preprocess(self._seen[order])
            found = self.model.evaluate(inputs, self._replay[order].to(DEVICE))
            (found.logp.mean() + found.value.mean()).backward()  # type: ignore[no-untyped-call]
            found.logp.detach().mean().item()

    def act(self, seconds: float) -> float:
        """Return chunks a second."""
        began, rows = time.perf_counter(), 0
        for size in itertools.cycle(self.batches):
            self._chosen(size)
            rows += size
            if (taken := time.perf_counter() - began) > seconds:
                return rows / taken
        raise AssertionError

    def train(self, seconds: float) -> float:
        """Return chunks a second."""
        began, rows = time.perf_counter(), 0
        while (taken := time.perf_counter() - began) < seconds:
            self._train()
            rows += self.micro_batch
        return rows / taken


@contextlib.contextmanager
def rendering(options: argparse.Namespace) -> Iterator[User]:
    """Simulators of LIBERO with physics on cores; env steps a second."""
    from libero_sim import ENDLESS, LiberoConfig, Workers

    config = LiberoConfig(suite="libero_spatial", tasks=(0,), max_episode_steps=ENDLESS)
    workers = Workers(config, [SLOT_ROWS] * options.processes)
    try:
        workers.play(options.seconds / 2)
        yield workers.play
    finally:
        workers.close()


@contextlib.contextmanager
def simulating(options: argparse.Namespace) -> Iterator[User]:
    """LIBERO with physics and pictures on the GPU; env steps a second."""
    import libero_gpu
    import numpy as np

    task = libero_gpu.SUITES["libero_spatial"][0]
    scene = libero_gpu.Scene(libero_gpu.startup.task_file(task))
    with np.load(libero_gpu.startup.states_file(task), allow_pickle=False) as file:
        begun = libero_gpu.Starts(scene, 10, 1).get(0, 0, file["states"][0])
    worlds, look = options.worlds, libero_gpu.Look(libero_gpu.CAMERAS, 256, 512)
    batch = libero_gpu.Batch(scene, begun, worlds, limits=libero_gpu.Limits(200, 600), look=look, device=str(DEVICE))
    drawn = np.random.default_rng(0).uniform(-1, 1, (CHUNK, worlds, 7)).astype(np.float32)
    action = torch.as_tensor(drawn, device=DEVICE)
    live = torch.ones(worlds, dtype=torch.bool, device=DEVICE)

    def play(seconds: float) -> float:
        with batch.worlds.turn():
            batch.begin(list(range(worlds)), [begun] * worlds)
            began, steps = time.perf_counter(), 0
            while (taken := time.perf_counter() - began) < seconds:
                for step in range(CHUNK):
                    batch.step(action[step], live)
                batch.draw()
                if DEVICE.type == "cuda":  # of these worlds alone: others work on
                    torch.cuda.current_stream().synchronize()  # type: ignore[no-untyped-call]
                steps += CHUNK * worlds
        return steps / taken

    play(options.seconds / 2)
    yield play


def together(users: dict[str, User], seconds: float) -> dict[str, float]:
    """Let them all work at once; returns the rate of each."""
    ready = threading.Barrier(len(users))

    def work(user: User) -> float:
        ready.wait()
        return user(seconds)

    with ThreadPoolExecutor(len(users)) as threads:
        found = dict(zip(users, threads.map(work, users.values()), strict=True))
    synchronise()
    return found


def markdown(found: dict[str, Any]) -> str:
    """Return the report for people."""
    alone = table([{"alone": name, "a second": rate} for name, rate in found["alone"].items()])
    shares = table(found["together"])
    return f"# Sharing a GPU, on {found['machine']}, {found['date']}\n\n{alone}\n\nTogether, of what each does alone:\n\n{shares}\n"


def main() -> None:
    """Measure everybody alone, in pairs, and all at once; writes after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for sharing_a_gpu.json and .md (with `simulate`: sharing_a_gpu_simulated)",
    )
    parser.add_argument("--machine", default="this machine", help="what the result says it was measured on")
    parser.add_argument("--users", nargs="+", choices=["act", "train", "render", "simulate"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--processes", type=int, default=16, help="that render")
    parser.add_argument("--worlds", type=int, default=256, help="that are simulated on the GPU")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    chosen = options.users or ["act", "train", "render"]
    if DEVICE.type != "cuda" and not options.tiny:
        parser.error("no GPU here: the full size needs one; --tiny runs anywhere")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / ("sharing_a_gpu_simulated" if "simulate" in chosen else "sharing_a_gpu")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": options.machine, "date": time.strftime("%Y-%m-%d"), "alone": {}, "together": []}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        users: dict[str, User] = {}
        model = Model(Path(folder), options) if {"act", "train"} & set(chosen) else None
        for name in chosen:
            if name in ("act", "train"):
                users[name] = getattr(model, name)
            else:
                users[name] = stack.enter_context({"render": rendering, "simulate": simulating}[name](options))
        for count in range(1, len(users) + 1):
            for some in itertools.combinations(users, count):
                if model is not None:
                    model.renew()
                rates = together({name: users[name] for name in some}, options.seconds)
                if count == 1:
                    found["alone"] |= rates
                else:
                    shares = {name: rate / found["alone"][name] for name, rate in rates.items()}
                    found["together"].append({"who": " + ".join(some), **shares, "sum": sum(shares.values())})
                print(some, {name: round(rate, 1) for name, rate in rates.items()}, flush=True)
                file.with_suffix(".json").write_text(json.dumps(found, indent=1))
                file.with_suffix(".md").write_text(markdown(found))
    print(markdown(found))


if __name__ == "__main__":
    main()
