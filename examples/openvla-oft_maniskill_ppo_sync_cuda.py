"""OpenVLA-OFT on ManiSkill's 25 pick-and-place tasks with PPO, LoRA, synchronous, on one GPU with 80 GiB or more.

``PATH`` is a checkpoint with discrete action tokens, supervised on these tasks. Settings follow RLinf's recipe (partial
resets, success followed by a value, values for each action, ratios of tokens); its 128 environments on eight GPUs are 32 here.
The tasks need public assets, which an error names with the commands that bring them. Measure on what was never trained on
with another task or set, for instance ``--sim.objects test`` or ``--sim.task PutOnPlateInScene25VisionWhole05-v1``.
"""

from typing import Any

PATH = "checkpoints/openvla-oft-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "maniskill", "task": "PutOnPlateInScene25Main-v3", "objects": "train", "num_envs": 32},
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            "preset": "rlinf",
            # What belongs to this pair of model and simulator: Bridge's statistics and camera, deltas in metres and radians,
            # a gripper that 1 opens.
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
            "use": "ppo",
            "window": 20,
            "windows_per_step": 32,
            "bootstrap": "always",
            "credit_level": "action",
            "ratio_level": "token",
            "passes": 1,
            "minibatch_size": 160,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_low": 0.2,
            "clip_high": 0.28,
            "value_clip": 0.2,
            "huber_delta": 10.0,
            "value_learning_rate_scale": 30.0,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 1e-4, "weight_decay": 0.01, "max_grad_norm": 10.0, "micro_batch": 40},
        "eval": {"every": 20, "episodes": 256},
        "run": {"steps": 300, "device": "cuda"},
    }
