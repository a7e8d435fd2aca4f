"""The contract that every rlvla simulator keeps.

A picture takes a tenth of a second in software, so there are two rows and short episodes, which end inside their third chunk.
"""

from __future__ import annotations

from rlvla.testing import SimulatorConformance


class TestLibero(SimulatorConformance):
    name = "libero"
    rows = 2
    config = {"suite": "libero_goal", "tasks": (7, 8), "image_size": 64, "settle_steps": 2, "max_episode_steps": 8}
