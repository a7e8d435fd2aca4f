"""OpenVLA (one action at a time) on ManiSkill's 25 pick-and-place tasks with GRPO, hybrid: two stages take turns.

As ``openvla-oft_maniskill_ppo_hybrid_cuda.py``, with groups of eight rollouts of one scene. RLinf's recipe changes all weights
with 32 groups on eight GPUs; here LoRA takes the place of full tuning, for which one GPU is too small, with 4 groups and
the learning rate of its LoRA recipes.
"""

from typing import Any

PATH = "checkpoints/openvla-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {
            "use": "maniskill",
            "task": "PutOnPlateInScene25Main-v3",
            "objects": "train",
            "backend": "cpu",
            "num_envs": 32,
        },
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            "decoding": "autoregressive",
            "horizon": 1,
            "unnorm_key": "bridge_orig",
            "cameras": ["primary"],
            "action_unit": "si",
            "rotation": "euler_xyz",
            "gripper_range": [0.0, 1.0],
            "gripper_closes_at": "low",
            "temperature": 1.0,
            "top_k": 50,
            "prompt_tokens": 30,
            "recompute": True,
        },
        "algo": {
            "use": "grpo",
            "group_size": 8,
            "groups_per_step": 4,
            "ratio_level": "token",
            "advantage": "std",
            "clip_low": 0.2,
            "clip_high": 0.28,
            "minibatch_size": 160,
        },
        "scheduler": {"use": "hybrid", "stages": 2},
        "train": {"learning_rate": 1e-4, "weight_decay": 0.01, "max_grad_norm": 1.0, "micro_batch": 40},
        "eval": {"every": 20, "episodes": 256},
        "run": {"steps": 300, "device": "cuda"},
    }
