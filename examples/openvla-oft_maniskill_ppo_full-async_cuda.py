"""OpenVLA-OFT on ManiSkill's 25 pick-and-place tasks with decoupled PPO, fully asynchronous, LoRA, on one GPU.

As ``openvla-oft_maniskill_ppo_sync_cuda.py``, but rollouts never stop: units may be one version old, the clip is centred
between the acting and the present policy, and elements with a large behaviour weight are left out. Settings follow RLinf's
asynchronous recipe at a quarter of its 128 environments.
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
            "bootstrap": "truncation",
            "credit_level": "action",
            "ratio_level": "token",
            "passes": 1,
            "minibatch_size": 160,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_low": 0.2,
            "clip_high": 0.28,
            "dual_clip": 3.0,
            "proximal": "interpolate",
            "behaviour_weight_max": 2.0,
            "behaviour_weight_over": "mask",
            "max_staleness": 1,
            "critic_warmup": 5,
            "value_clip": 0.2,
            "huber_delta": 10.0,
            "value_learning_rate_scale": 30.0,
        },
        "scheduler": {"use": "full-async", "max_staleness": 1},
        "train": {"learning_rate": 1e-4, "weight_decay": 0.01, "max_grad_norm": 10.0, "micro_batch": 40},
        "eval": {"every": 20, "episodes": 256},
        "run": {"steps": 300, "device": "cuda"},
    }
