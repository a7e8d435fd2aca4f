"""The contract that every rlvla simulator keeps, by the batched physics on warp's CPU device."""

import pytest
from tabletop_world import GPU, needs_warp

from rlvla.testing import SimulatorConformance

pytestmark = [needs_warp, pytest.mark.timeout(400)]


class TestBatched(SimulatorConformance):
    name = "tabletop"
    config = {"num_envs": 3, **GPU}
    variations = ({"shaped_reward": False, "image_size": 32, "max_episode_steps": 8, "deterministic": True, **GPU},)
