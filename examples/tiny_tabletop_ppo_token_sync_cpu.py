"""tiny on tabletop with PPO at ratio level token, synchronous, on two CPU cores. Success 0.9 and more.

What the finer level changes against ``tiny_tabletop_ppo_sync_cpu.py``: a smaller clip, since the ratios of a chunk's 12
tokens multiply; a smaller value weight, since a token's policy term is a twelfth of its chunk's; and more steps.
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "tabletop", "num_envs": 64},
        "model": {"use": "tiny"},
        "algo": {
            "use": "ppo",
            "credit_level": "chunk",
            "ratio_level": "token",
            "window": 10,
            "passes": 3,
            "minibatch_size": 320,
            "gamma": 0.8,
            "gae_lambda": 0.6,
            "clip_low": 0.1,
            "clip_high": 0.1,
            "value_weight": 0.04,
            "entropy_weight": 0.001,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 3e-3, "final_learning_rate": 0.05},
        "eval": {"episodes": 256},
        "run": {"steps": 160, "device": "cpu"},
    }
