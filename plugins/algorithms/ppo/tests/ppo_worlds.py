"""An algorithm that is under way, and small random trajectories."""

from __future__ import annotations

from rlvla.testing import random_trajectories
from rlvla_algo_ppo import PpoConfig
from rlvla_algo_ppo.algorithm import Ppo


def made(step: int = 3, **options) -> Ppo:
    """Return PPO with these options, at a step of ten."""
    algorithm = Ppo(PpoConfig(**options))
    algorithm.progress(step, 10)
    return algorithm


def world(seed: int = 0, H: int = 3, K: int = 2, credit: str = "chunk", **kwargs):
    """Return four windows of four chunks."""
    return random_trajectories(seed, U=4, T=4, H=H, K=K, V=H if credit == "action" else 1, **kwargs)
