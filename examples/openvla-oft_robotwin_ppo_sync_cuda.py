"""OpenVLA-OFT on RoboTwin's place_empty_cup with PPO, LoRA, synchronous, on one GPU with 80 GiB or more.

Settings follow RLinf's recipe (windows of 200 steps that go on with the next episode, success followed by a value, a value head
with thirty times the learning rate, gradients cut at norm 10); its 128 environments are 32 here. Checkpoint, assets, seeds
and all else are those of ``openvla-oft_robotwin_grpo_sync_cuda.py``. Not run on the true assets.
"""

from pathlib import Path
from typing import Any

from rlvla.configs import read_file


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    one = read_file(Path(__file__).with_name("openvla-oft_robotwin_grpo_sync_cuda.py"))
    return {
        **one,
        "sim": {**one["sim"], "reward_coefficient": 1.0},
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
        "train": {**one["train"], "max_grad_norm": 10.0},
    }
