"""What a slot's chunk step costs the controller under Ray: calls of actors by method, and CPU.

    python benchmarks/ray_calls.py [--ranks 2] [--slots 2] [--rows 4] [--window 8] [--steps 20] [--profile]

``tiny`` learns tabletop with PPO under full-async, as in ``ray_object_store.py``, with so many trainer ranks on this machine's cores
and two generators. A call is one task of Ray's, counted where it is submitted. CPU is that of the controller's thread, which
is the serial server of ``virtual_scaling.py``, and of the whole process, in whose other threads Ray sends and receives. The first
steps, in which processes start, are not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import threading
import time
from collections import Counter
from typing import Any

import rlvla

WARM_UP, EPISODE = 3, 10_000
"""Training steps that are not counted; env steps of an episode that does not succeed: a reset is one more call, counted apart."""


def recipe(folder: str, ranks: int, slots: int, rows: int, window: int, steps: int) -> dict[str, Any]:
    """Return the mapping of the run: simulators and two generators on the first two of as many devices as ranks."""
    few = f"0-{min(ranks, 2) - 1}"
    placement = {"simulator": few, "generator": few, "trainer": "all"}
    run = {"runtime": "ray", "device": "cpu", "devices": ranks, "placement": placement, "slots": slots, "threads": 1}
    quiet = {"steps": steps, "directory": folder, "name": "run", "without": ["display", "tensorboard", "report"]}
    return {
        "sim": {"use": "tabletop", "num_envs": slots * rows, "image_size": 128, "max_episode_steps": EPISODE},
        "model": {"use": "tiny", "image_size": 64},
        "algo": {"use": "ppo", "window": window, "windows_per_step": slots * rows, "minibatch_size": None},
        "scheduler": {"use": "full-async", "max_staleness": 1},
        "run": {**run, **quiet},
    }


class Count:
    """Counts calls where they are submitted, and what they cost, from one training step to another."""

    def __init__(self, last: int, profile: bool) -> None:
        self.calls: Counter[str] = Counter()
        self._last = last
        self._profile = cProfile.Profile(time.thread_time) if profile else None
        self._marks: list[tuple[float, float, float, Counter[str]]] = []

    def submitted(self, method: str) -> None:
        self.calls[method] += 1

    @rlvla.hookimpl
    def on_step(self, step: int) -> None:
        """Note how far everything is; called in the controller's thread."""
        if step not in (WARM_UP, self._last):
            return
        if self._profile is not None:
            (self._profile.enable if step == WARM_UP else self._profile.disable)()
        thread = threading.current_thread()
        assert thread.name == "controller", f"listeners are called in {thread.name}"
        self._marks.append((time.monotonic(), time.thread_time(), time.process_time(), self.calls.copy()))

    def found(self) -> dict[str, Any]:
        """Return everything for each slot chunk step."""
        (began, thread, process, before), (ended, thread_after, process_after, after) = self._marks
        slot_chunk_steps = after["step"] - before["step"]
        calls = {name: round((after[name] - before[name]) / slot_chunk_steps, 3) for name in sorted(after)}
        return {
            "slot_chunk_steps": slot_chunk_steps,
            "seconds": round(ended - began, 1),
            "controller_ms": round(1000 * (thread_after - thread) / slot_chunk_steps, 3),
            "process_ms": round(1000 * (process_after - process) / slot_chunk_steps, 3),
            "calls": round(sum(calls.values()), 2),
            "by_method": calls,
        }

    def print_profile(self) -> None:
        if self._profile is not None:
            pstats.Stats(self._profile).sort_stats("tottime").print_stats(45)


def measured(ranks: int, slots: int, rows: int, window: int, steps: int, profile: bool = False) -> dict[str, Any]:
    """Return calls and CPU of a run, for each slot chunk step."""
    from rlvla.runtimes.ray import RayHandle, _Place

    counted = Count(steps, profile)
    call, submit = RayHandle.call, _Place.submit

    async def called(handle: Any, method: str, *arguments: Any, returns: int = 0) -> Any:
        counted.submitted(method)
        return await call(handle, method, *arguments, returns=returns)

    def submitted(place: Any, parts: int, arguments: Any) -> Any:
        if not parts:  # whatever it holds
            counted.submitted("send")
        return submit(place, parts, arguments)

    RayHandle.call, _Place.submit = called, submitted  # type: ignore[method-assign,assignment]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            rlvla.build(**recipe(folder, ranks, slots, rows, window, steps), listeners=[counted]) as run,
        ):
            run.train()
    finally:
        RayHandle.call, _Place.submit = call, submit  # type: ignore[method-assign]
    counted.print_profile()
    return {"ranks": ranks, "slots": slots, "rows": rows, **counted.found()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("ranks", 2), ("slots", 2), ("rows", 4), ("window", 8), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--profile", action="store_true", help="print where the controller's thread spends its time")
    print(json.dumps(measured(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
