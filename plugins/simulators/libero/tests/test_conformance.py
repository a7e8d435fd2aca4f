"""The contract that every rlvla simulator keeps."""

from __future__ import annotations

from rlvla.testing import SimulatorConformance


class TestLibero(SimulatorConformance):
    name = "libero"
    config = {"suite": "libero_goal", "tasks": (7, 8), "image_size": 64, "settle_steps": 2, "max_episode_steps": 20}
