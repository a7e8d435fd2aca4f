"""OpenVLA-OFT on ManiSkill's 25 pick-and-place tasks with PPO, LoRA, synchronous, on one GPU with 80 GiB or more.

``PATH`` is a checkpoint with discrete action tokens, supervised on these tasks. Settings follow RLinf's recipe (partial
resets, success followed by a value, values for each action, ratios of tokens); its 128 environments on eight GPUs are 32 here.
See ``plate25.py`` for the assets and held-out tasks.
"""

from typing import Any

from plate25 import openvla_oft, ppo

PATH = "checkpoints/openvla-oft-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return openvla_oft({"path": PATH, "preset": "rlinf", "horizon": 8}, algo=ppo(), scheduler={"use": "sync"})
