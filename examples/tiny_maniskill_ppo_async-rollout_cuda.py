"""tiny on ManiSkill's PushCube with PPO from pictures, on one GPU and 16 cores: physics on the cores, drawing on the GPU.

The policy sees the task's camera and what the robot feels, not where the cube is. Each slot plays at its own pace, so the
policy is asked by whoever waits.
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {
            "use": "maniskill",
            "task": "PushCube-v1",
            "observation": "rgb",
            "image_size": 64,
            "control_mode": "pd_ee_delta_pos",
            "backend": "cpu",
            "fresh_scenes": False,  # episodes are short, and need not be equal in their last digits
            "renderer": "gpu",
            "num_envs": 128,
        },
        "model": {"use": "tiny", "horizon": 2, "hidden": 256},
        "algo": {
            "use": "ppo",
            "window": 10,
            "passes": 6,
            "minibatch_size": 320,
            "gamma": 0.85,
            "gae_lambda": 0.9,
            "bootstrap": "always",
            "target_kl": 0.25,
        },
        "scheduler": {"use": "async-rollout"},
        "train": {"learning_rate": 1e-3, "final_learning_rate": 0.1},
        "eval": {"every": 60, "episodes": 128, "pause": True},
        "run": {"steps": 1200, "device": "cuda"},
    }
