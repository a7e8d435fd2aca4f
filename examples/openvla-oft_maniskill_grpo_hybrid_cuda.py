"""OpenVLA (one action at a time) on ManiSkill's 25 pick-and-place tasks with GRPO, hybrid: two stages take turns.

As ``openvla-oft_maniskill_ppo_hybrid_cuda.py``, with groups of eight rollouts of one scene. RLinf's recipe changes all weights
with 32 groups on eight GPUs; here LoRA takes the place of full tuning, for which one GPU is too small, with 4 groups and
the learning rate of its LoRA recipes.
"""

from typing import Any

from plate25 import grpo, openvla_oft

PATH = "checkpoints/openvla-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return openvla_oft(
        {"path": PATH, "decoding": "autoregressive", "horizon": 1, "top_k": 50},
        sim={"backend": "cpu"},
        algo=grpo(groups_per_step=4),
        scheduler={"use": "hybrid", "stages": 2},
        train={"max_grad_norm": 1.0},
    )
