"""A model on real LIBERO from a checkpoint to its export: what is the same whichever model it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import rlvla
from rlvla import cli, configs
from rlvla.policy import Policy

QUIET = {"without": ["tensorboard", "display"], "device": "cpu", "slots": 1}


def sim(limit: int) -> dict[str, Any]:
    """Return LIBERO with small pictures and episodes of so many env steps."""
    return {"use": "libero", "suite": "libero_spatial", "num_envs": 2, "image_size": 64, "max_episode_steps": limit}


def observation() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    pictures = {name: generator.integers(0, 256, (64, 64, 3), np.uint8) for name in ("agentview", "robot0_eye_in_hand")}
    return {"images": pictures, "state": np.zeros(8, np.float32), "instruction": "pick up the black bowl"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of all safetensors in a folder."""
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


@dataclass
class Round:
    """A run of one step, resumed for another one, evaluated, loaded, exported; what it left."""

    place: Path
    limit: int
    """Env steps of an episode."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Metrics of its training steps."""

    def play(self, model: dict[str, Any], algo: dict[str, Any]) -> None:
        """Train, resume, evaluate two stored states of a task; all of it has happened."""
        options = {"directory": str(self.place), "name": "run", "steps": 1, **QUIET}
        with rlvla.build(
            sim=sim(self.limit), model=model, algo=algo, train={"learning_rate": 1e-3}, run=options
        ) as run:
            run.train()
        with rlvla.resume(self.run, {"run": {"steps": 2}}) as run:
            run.train()
            results = run.evaluate(episodes=2, tasks=[0])
        found = [(one.task, one.state, one.steps) for one in results.episodes]
        assert found == [(0, 0, self.limit), (0, 1, self.limit)]
        lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        self.steps = [line for line in lines if "rollout/episodes" in line]
        assert [line["step"] for line in self.steps] == [1, 2]

    @property
    def run(self) -> Path:
        return self.place / "run"

    def saved(self) -> set[str]:
        """Return the names of what the last checkpoint holds of the model."""
        return {file.name for file in self._model.iterdir()}

    @property
    def _model(self) -> Path:
        return self.run / "checkpoints/step_000002/model"

    def learnt(self, part: str) -> float:
        """Return the largest number in weights of the last checkpoint's adapter whose names have a part that begins as 0."""
        return max(float(value.abs().max()) for name, value in weights(self._model).items() if part in name)

    def manifest(self) -> dict[str, Any]:
        """Return what the run noted of its model."""
        found: dict[str, Any] = json.loads((self.run / "manifest.json").read_text())["model"]
        return found

    def acts(self) -> np.ndarray:
        """Return the chunk of the loaded policy; its gripper is open or closed."""
        chunk = rlvla.load(self.run).act(observation())
        assert set(np.unique(chunk[:, 6])) <= {-1.0, 1.0}
        return chunk

    def export(self, capsys: Any) -> Path:
        """Export the policy, once: a folder that is there is refused."""
        whole = self.place / "whole"
        assert cli.main(["export", str(self.run), str(whole)]) == 0
        assert cli.main(["export", str(self.run), str(whole)]) == 2
        assert "already there" in capsys.readouterr().err
        return whole

    def acts_as(self, model: dict[str, Any]) -> np.ndarray:
        """Return the chunk of a model that is made anew, from files alone."""
        choice = configs.read_choice("model", model)
        spec = configs.read_choice("sim", sim(self.limit)).describe()
        policy = Policy(choice.plugin.load()(choice.config, spec, None, generator=torch.Generator()), spec)
        return policy.act(observation())
