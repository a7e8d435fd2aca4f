"""OpenVLA-OFT on RoboTwin's place_empty_cup with PPO, LoRA, synchronous, on one GPU with 80 GiB or more.

Settings follow RLinf's recipe (windows of 200 steps that go on with the next episode, success followed by a value, a value head
with thirty times the learning rate, gradients cut at norm 10); its 128 environments are 32 here. See
``openvla-oft_robotwin_grpo_sync_cuda.py`` for the checkpoint, the assets and the seeds. Not run on the true assets.
"""

from typing import Any

PATH = "checkpoints/openvla-oft-place-empty-cup"
SEEDS = "seeds/train_seeds.json"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {
            "use": "robotwin",
            "task": "place_empty_cup",
            "seeds_path": SEEDS,
            "cameras": ["head"],
            "max_episode_steps": 200,
            "num_envs": 32,
        },
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            "unnorm_key": "place_empty_cup",
            "cameras": ["primary"],
            "gripper_range": [0.0, 1.0],
            "gripper_closes_at": "low",
            "gripper_binary": False,
            "horizon": 25,
            "temperature": 1.6,
            "prompt_tokens": 512,
            "recompute": True,
        },
        "algo": {
            "use": "ppo",
            "window": 8,
            "windows_per_step": 256,
            "bootstrap": "always",
            "ratio_level": "token",
            "passes": 1,
            "minibatch_size": 256,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_low": 0.2,
            "clip_high": 0.28,
            "value_clip": 0.2,
            "huber_delta": 10.0,
            "value_learning_rate_scale": 30.0,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 1e-4, "max_grad_norm": 10.0, "micro_batch": 16},
        "eval": {"every": 20, "episodes": 128},
        "run": {"steps": 300, "device": "cuda"},
    }
