"""Runs under Ray, what they leave, and what ends parts of them."""

import json
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import rlvla
from rlvla import checkpoint

PPO = {"use": "ppo", "window": 3, "windows_per_step": 7, "minibatch_size": 8, "passes": 2}
GRPO = {"use": "grpo", "group_size": 3, "groups_per_step": 2}
SHARED = {"simulator": "0", "generator": "0", "trainer": "all"}
"""Two ranks, one in a process with the generator."""
WHOLE = {**PPO, "windows_per_step": 5, "minibatch_size": None}
MARKS = [
    pytest.mark.timeout(600),
    # Ray's own: it forks with threads, and leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]
"""Of every file of tests that start Ray."""


def build(
    folder, name, runtime, algo=PPO, scheduler="sync", sim=None, listeners=(), evaluation=None, train=None, **run
):
    quiet = {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "save_every": 0}
    options = {"directory": str(folder), "name": name, "steps": 3, "slots": 2, "threads": 1, "device": "cpu"}
    sim = {"use": "fake", "num_envs": 5, **(sim or {})}
    return rlvla.build(
        sim=sim,
        model="fake" if sim["use"] == "fake" else "tiny",
        algo=algo,
        scheduler=scheduler,
        train={"learning_rate": 1e-2, **(train or {})},
        eval=evaluation,
        run={**options, **quiet, "runtime": runtime, **run},
        listeners=listeners,
    )


def left(folder: Path):
    """Return weights and metrics without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train/learning_rate" in line]
    timed = ("time", "env_steps_per_second", "rollout/generator_batch", "workers", "memory", "histograms")
    numbers = [{name: value for name, value in one.items() if not name.startswith(timed)} for one in lines]
    found = load_file(checkpoint.find(folder) / "model" / "model.safetensors")
    return {name: one.tobytes() for name, one in found.items()}, numbers


class Killer:
    """Ends the Ray worker of an actor after a training step, before its checkpoint."""

    def __init__(self, whose, after=1):
        self.whose, self.after, self.run, self.metrics = whose, after, None, []

    @rlvla.hookimpl
    def on_step(self, step, metrics):
        import ray

        self.metrics.append(metrics)
        if step == self.after:
            self.killed = time.monotonic()
            ray.kill(self.whose(self.run._engine)._place.host)

    def train(self, run):
        self.run = run
        run.train()
