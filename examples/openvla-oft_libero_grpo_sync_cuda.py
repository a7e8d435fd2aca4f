"""OpenVLA-OFT on LIBERO spatial with GRPO at token level, LoRA, synchronous, on one GPU with 80 GiB or more.

``PATH`` is a checkpoint with discrete action tokens in the public layout (a folder, or ``org/name@revision``), supervised
on LIBERO spatial: RL needs a start that sometimes succeeds. Settings follow RLinf's LIBERO recipe (temperature 1.6, group
size 8, clips 0.2 and 0.28, groups with a success rate in [0.1, 0.9], AdamW at 2e-5 with eps 1e-8 and decay 0.01, four
optimizer steps). What differs: of its 1024 rollouts a step a quarter is kept, of at most 240 env steps instead of 512; and
LoRA takes the place of full tuning, for which one GPU is too small. The learning rate is the one published for full tuning;
adapters usually bear a larger one, which was not tried here.
"""

from typing import Any

PATH = "checkpoints/openvla-oft-libero-spatial"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "libero", "suite": "libero_spatial", "num_envs": 32, "max_episode_steps": 240},
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            "preset": "rlinf",
            # What belongs to this pair of model and simulator: the statistics' name, the primary camera alone, pictures
            # with left and right exchanged, normalised deltas with rotation as axis times angle, 1 opens the gripper.
            "unnorm_key": "libero_spatial",
            "cameras": ["primary"],
            "mirrored": True,
            "action_unit": "normalised",
            "rotation": "axis_angle",
            "gripper_range": [0.0, 1.0],
            "gripper_closes_at": "low",
            "horizon": 8,
        },
        "algo": {
            "use": "grpo",
            "ratio_level": "token",
            "group_size": 8,
            "groups_per_step": 32,
            "minibatch_size": 2048,
            "success_low": 0.1,
            "success_high": 0.9,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 2e-5, "adam_eps": 1e-8, "weight_decay": 0.01, "micro_batch": 32},
        "eval": {"every": 10, "episodes": 500},
        "run": {"steps": 100, "device": "cuda"},
    }
