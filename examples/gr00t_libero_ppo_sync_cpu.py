"""A tiny GR00T on LIBERO with PPO, on a CPU: how a run goes, not a policy that learns. First write the checkpoint::

    python -m rlvla_model_gr00t tiny checkpoints/tiny-gr00t
    rlvla train examples/gr00t_libero_ppo_sync_cpu.py

Its weights are random and its layout is the public one, so everything but ``path``, the tag and the sizes is as at full
size.
"""

from typing import Any

PATH = "checkpoints/tiny-gr00t"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "libero", "suite": "libero_spatial", "num_envs": 2, "image_size": 64, "max_episode_steps": 40},
        "model": {
            "use": "gr00t",
            "path": PATH,
            "embodiment_tag": "new_embodiment",
            "embodiment_table": "nvidia",
            "cameras": ["primary", "wrist"],
            "mirrored": True,
            "pad_to": 128,
            "horizon": 10,
            "dtype": "fp32",
        },
        "algo": {
            "use": "ppo",
            "window": 4,
            "credit_level": "chunk",
            "ratio_level": "chunk",
            "passes": 1,
            "minibatch_size": 8,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 1e-4},
        "eval": {"episodes": 2},
        "run": {"steps": 2, "device": "cpu"},
    }
