"""A tiny OpenVLA-OFT on LIBERO with GRPO, on a CPU: how a run goes, not a policy that learns. First write the checkpoint::

    python -m rlvla_model_openvla_oft tiny checkpoints/tiny-oft
    rlvla train examples/openvla-oft_libero_grpo_sync_cpu.py

Its weights are random and its layout is the public one, so everything but ``path``, ``unnorm_key`` and the sizes is as at
full size. It solves nothing, so all rewards are equal and only the entropy's weight changes it.
"""

from typing import Any

PATH = "checkpoints/tiny-oft"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "libero", "suite": "libero_spatial", "num_envs": 2, "image_size": 64, "max_episode_steps": 16},
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            "preset": "rlinf",
            "unnorm_key": "tiny",
            "cameras": ["primary", "wrist"],
            "mirrored": True,
            "horizon": 8,
            "lora_rank": 4,
            "dtype": "fp32",
        },
        "algo": {"use": "grpo", "ratio_level": "token", "group_size": 2, "groups_per_step": 2, "entropy_weight": 0.01},
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 1e-4},
        "eval": {"episodes": 2},
        "run": {"steps": 2, "device": "cpu"},
    }
