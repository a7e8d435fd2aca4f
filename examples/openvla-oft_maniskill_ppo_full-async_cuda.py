"""OpenVLA-OFT on ManiSkill's 25 pick-and-place tasks with decoupled PPO, fully asynchronous, LoRA, on one GPU.

As ``openvla-oft_maniskill_ppo_sync_cuda.py``, but rollouts never stop: units may be one version old, the clip is centred
between the acting and the present policy, and elements with a large behaviour weight are left out. Settings follow RLinf's
asynchronous recipe at a quarter of its 128 environments.
"""

from typing import Any

from plate25 import openvla_oft, ppo

PATH = "checkpoints/openvla-oft-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    algo = ppo(
        bootstrap="truncation",
        dual_clip=3.0,
        proximal="interpolate",
        behaviour_weight_max=2.0,
        behaviour_weight_over="mask",
        max_staleness=1,
        critic_warmup=5,
    )
    return openvla_oft(
        {"path": PATH, "preset": "rlinf", "horizon": 8}, algo=algo, scheduler={"use": "full-async", "max_staleness": 1}
    )
