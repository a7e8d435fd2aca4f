"""A batched environment with the parts of ManiSkill's that :class:`rlvla_sim_maniskill.instance.Instance` uses.

PhysX steps more than one row on a GPU only; this steps any number on the CPU, all of them at each action as PhysX does, so
what keeps rows apart can be tested without one. A row is a point on a line with a goal; it drifts when it is stepped without
being asked, and so does the target that its controller remembers; how far it came is counted as some of ManiSkill's tasks count such
things.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch

SIZE = 16
DRIFT = 0.01
TOLERANCE = 0.05
HELD = 1.0
"""A place beyond it counts as holding something."""


def header(folder: Path) -> str:
    """Write the header of the line; returns its path."""
    camera = {"name": "front", "height": SIZE, "width": SIZE, "mounted": False}
    part = {
        "name": "move",
        "size": 1,
        "kind": "delta",
        "low": -1.0,
        "high": 1.0,
        "unit": "normalised",
        "frame": "world",
    }
    state = [{"name": "place", "size": 1}, {"name": "goal", "size": 1}]
    task = {
        "max_episode_steps": 30,
        "control_hz": 20.0,
        "rewards": ["normalized_dense", "grasp_and_place", "sparse"],
        "cameras": [camera],
        "proprioception": state,
        "state": state,
        "control_modes": {"pd": "line/pd"},
    }
    actions = {"line/pd": {"parts": [part], "state": [{"name": "controller/target", "size": 1}]}}
    file = folder / "line.json"
    file.write_text(json.dumps({"format": 1, "tasks": {"Line-v1": task}, "actions": actions}))
    return str(file)


class LineEnv:
    """See the module's docstring."""

    gpu_sim_enabled = False
    _hidden_objects: tuple[Any, ...] = ()
    _obs_mode = "none"

    def __init__(self, rows: int) -> None:
        self.num_envs = rows
        self.device = torch.device("cpu")
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.place, self.goal, self.target = (torch.zeros(rows, 1) for _ in range(3))
        self.travelled = torch.zeros(rows)
        self.ever = {"right": torch.zeros(rows, dtype=torch.bool)}
        self._elapsed_steps = torch.zeros(rows, dtype=torch.int32)
        self.agent = SimpleNamespace(
            get_controller_state=lambda: {"target": self.target}, set_controller_state=self._set_controller_state
        )
        sensor = SimpleNamespace(capture=lambda: None, get_obs=lambda **which: {"rgb": self._pictures()})
        self.scene = SimpleNamespace(sensors={"front": sensor}, update_render=lambda **which: None)

    def _set_controller_state(self, state: dict[str, torch.Tensor]) -> None:
        self.target = state["target"].clone()

    def reset(self, seed: list[int], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        assert len(seed) == self.num_envs
        rows = options.get("env_idx", torch.arange(self.num_envs))
        generator = torch.Generator().manual_seed(seed[0])
        for row in rows.tolist():
            self.place[row], self.goal[row] = torch.rand(2, 1, generator=generator) - 0.5
        self._elapsed_steps[rows] = 0
        self.target = self.place.clone()  # of all rows, as ManiSkill does
        return {}, self.get_info()

    def _step_action(self, action: torch.Tensor) -> torch.Tensor:
        assert action.shape == (self.num_envs, 1)
        self.target = self.target + 0.1 * action + DRIFT
        before = self.place
        self.place = self.place + 0.5 * (self.target - self.place) + DRIFT
        self.travelled = self.travelled + (self.place - before).abs().squeeze(1)
        self.ever["right"] = self.ever["right"] | (self.place > before).squeeze(1)
        return action

    def get_info(self) -> dict[str, torch.Tensor]:
        held = (self.place > HELD).squeeze(1)
        success = ((self.place - self.goal).abs() < TOLERANCE).squeeze(1)
        return {"is_src_obj_grasped": held, "consecutive_grasp": held, "success": success}

    def get_reward(self, obs: Any, action: torch.Tensor, info: dict[str, torch.Tensor]) -> torch.Tensor:
        return 1 - (obs["place"] - obs["goal"]).abs().squeeze(1)

    def _get_obs_state_dict(self, info: Any) -> dict[str, Any]:
        return {"controller": {"target": self.target}, "place": self.place, "goal": self.goal}

    def get_state_dict(self) -> dict[str, Any]:
        return {"actors": {"place": self.place, "goal": self.goal}, "controller": {"target": self.target}}

    def set_state_dict(self, state: dict[str, Any], env_idx: torch.Tensor) -> None:
        """Set bodies of some rows; ManiSkill leaves controllers alone."""
        self.place[env_idx], self.goal[env_idx] = state["actors"]["place"], state["actors"]["goal"]

    def _pictures(self) -> torch.Tensor:
        pictures = torch.zeros(self.num_envs, SIZE, SIZE, 3, dtype=torch.uint8)
        pictures[:, 0, 0, 0] = ((self.place.squeeze(1) + 2) * 60).clamp(0, 255).to(torch.uint8)
        pictures[:, 0, 0, 1] = ((self.goal.squeeze(1) + 2) * 60).to(torch.uint8)
        return pictures

    def close(self) -> None:
        pass
