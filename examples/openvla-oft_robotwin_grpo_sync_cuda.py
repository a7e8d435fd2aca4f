"""OpenVLA-OFT on RoboTwin's place_empty_cup with GRPO, LoRA, synchronous, on one GPU with 80 GiB or more.

``PATH`` is a checkpoint with discrete action tokens, supervised on this one task (chunks of 25 x 14: six joints and a gripper of
the left arm, then of the right one). Settings follow RLinf's recipe (episodes of 200 steps, groups of 8, a success is worth 5,
groups with a success rate in [0.1, 0.9], clips 0.2 and 0.28, temperature 1.6, eight optimizer steps); its 1024 rollouts a
step are 256 here, of 32 environments, which take 0.6 GiB of the host's memory each with one camera and light scenes.

``rlvla simulators install robotwin`` brings the runtime and ``robotwin-download-assets`` the assets. ``SEEDS`` is RLinf's
``train_seeds.json``, seeds that the task can be solved for: each is a start of a group. Measure on the held-out ones:
``rlvla eval RUN --sim.seeds-path eval_seeds.json --eval.episodes 128``. Not run on the true assets.
"""

from typing import Any

from pairs import openvla_oft_robotwin

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
            "reward_coefficient": 5.0,
            "num_envs": 32,
        },
        "model": {
            "use": "openvla-oft",
            "path": PATH,
            **openvla_oft_robotwin("place_empty_cup"),
            "horizon": 25,
            "temperature": 1.6,
            "prompt_tokens": 512,
            "recompute": True,
        },
        "algo": {
            "use": "grpo",
            "group_size": 8,
            "groups_per_step": 32,
            "ratio_level": "token",
            "advantage": "std",
            "clip_low": 0.2,
            "clip_high": 0.28,
            "success_low": 0.1,
            "success_high": 0.9,
            "minibatch_size": 256,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 1e-4, "max_grad_norm": 1.0, "micro_batch": 16},
        "eval": {"every": 20, "episodes": 128},
        "run": {"steps": 300, "device": "cuda"},
    }
