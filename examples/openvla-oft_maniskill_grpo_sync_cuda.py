"""OpenVLA-OFT on ManiSkill's 25 pick-and-place tasks with GRPO, LoRA, synchronous, on one GPU with 80 GiB or more.

Eight rollouts of one scene make a group (equal seeds start from equal scenes); an episode ends at success and is not followed
by another within its group. Settings follow RLinf's recipe; its 32 groups a step on eight GPUs are 8 here. See
``openvla-oft_maniskill_ppo_sync_cuda.py`` for the checkpoint, the assets and held-out tasks.
"""

from typing import Any

PATH = "checkpoints/openvla-oft-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "maniskill", "task": "PutOnPlateInScene25Main-v3", "objects": "train", "num_envs": 64},
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            "preset": "rlinf",
            "unnorm_key": "bridge_orig",
            "cameras": ["primary"],
            "action_unit": "si",
            "rotation": "euler_xyz",
            "gripper_range": [0.0, 1.0],
            "gripper_closes_at": "low",
            "horizon": 8,
            "temperature": 1.0,
            "prompt_tokens": 30,
            "recompute": True,
        },
        "algo": {
            "use": "grpo",
            "group_size": 8,
            "groups_per_step": 8,
            "ratio_level": "token",
            "advantage": "std",
            "clip_low": 0.2,
            "clip_high": 0.28,
            "minibatch_size": 160,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 1e-4, "weight_decay": 0.01, "max_grad_norm": 10.0, "micro_batch": 40},
        "eval": {"every": 20, "episodes": 256},
        "run": {"steps": 300, "device": "cuda"},
    }
