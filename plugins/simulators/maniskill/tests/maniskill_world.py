"""Small ManiSkill worlds of these tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlvla.simulator import Observation
from rlvla_sim_maniskill import ManiSkillConfig

STATE = ManiSkillConfig(task="PushCube-v1", observation="state", backend="cpu", max_episode_steps=20)
BOTH = np.array([True, True])


def copied(observation: Any) -> Observation:
    pictures = {name: np.array(value) for name, value in observation.images.items()}
    return Observation(pictures, np.array(observation.state), list(observation.instruction))


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    pictures = all(np.array_equal(one.images[name], other.images[name]) for name in one.images)
    return pictures and np.array_equal(one.state, other.state) and list(one.instruction) == list(other.instruction)
