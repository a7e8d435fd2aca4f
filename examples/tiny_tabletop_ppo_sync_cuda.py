"""tiny on tabletop with PPO, synchronous, on one GPU: the quickstart's settings with four times the tables, stepped as one batch.

Physics, pictures, policy and training share the GPU; nothing but actions and instructions passes through the host. Needs
``rlvla-sim-tabletop[gpu]``, or ``rlvla simulators install tabletop``.
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "tabletop", "backend": "gpu", "num_envs": 256},
        "model": {"use": "tiny"},
        "algo": {
            "use": "ppo",
            "window": 10,
            "passes": 3,
            "minibatch_size": 1280,
            "gamma": 0.8,
            "gae_lambda": 0.6,
            "entropy_weight": 0.001,
            "target_kl": 0.25,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 3e-3, "final_learning_rate": 0.05},
        "eval": {"episodes": 256},
        "run": {"steps": 140, "device": "cuda"},
    }
