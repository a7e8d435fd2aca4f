"""OpenVLA (one action at a time) on ManiSkill's 25 pick-and-place tasks with PPO, LoRA, hybrid: two stages take turns.

Plain OpenVLA decodes the seven tokens of one action, one after another: ``decoding: autoregressive`` with ``horizon: 1``. While
one half of the environments is stepped, the policy acts for the other. Physics runs on the cores here (or on a GPU of its
own), which is what makes two stages overlap. Settings follow RLinf's recipe at a quarter of its 128 environments. See
``openvla-oft_maniskill_ppo_sync_cuda.py`` for the assets and held-out tasks.
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
            "prompt_tokens": 30,
            "recompute": True,
        },
        "algo": {
            "use": "ppo",
            "window": 160,
            "windows_per_step": 32,
            "bootstrap": "always",
            "credit_level": "action",
            "ratio_level": "action",
            "passes": 1,
            "minibatch_size": 160,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_low": 0.2,
            "clip_high": 0.2,
            "value_clip": 0.2,
            "huber_delta": 10.0,
            "value_learning_rate_scale": 30.0,
        },
        "scheduler": {"use": "hybrid", "stages": 2},
        "train": {"learning_rate": 1e-4, "weight_decay": 0.01, "max_grad_norm": 10.0, "micro_batch": 80},
        "eval": {"every": 20, "episodes": 256},
        "run": {"steps": 300, "device": "cuda"},
    }
