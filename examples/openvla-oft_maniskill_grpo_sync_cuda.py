"""OpenVLA-OFT on ManiSkill's 25 pick-and-place tasks with GRPO, LoRA, synchronous, on one GPU with 80 GiB or more.

Eight rollouts of one scene make a group (equal seeds start from equal scenes); an episode ends at success and is not followed
by another within its group. Settings follow RLinf's recipe; its 32 groups a step on eight GPUs are 8 here. See
``openvla-oft_maniskill_ppo_sync_cuda.py`` for the checkpoint, ``plate25.py`` for the assets and held-out tasks.
"""

from typing import Any

from plate25 import grpo, openvla_oft

PATH = "checkpoints/openvla-oft-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return openvla_oft(
        {"path": PATH, "preset": "rlinf", "horizon": 8},
        sim={"num_envs": 64},
        algo=grpo(groups_per_step=8),
        scheduler={"use": "sync"},
    )
