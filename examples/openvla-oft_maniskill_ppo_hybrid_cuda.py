"""OpenVLA (one action at a time) on ManiSkill's 25 pick-and-place tasks with PPO, LoRA, hybrid: two stages take turns.

Plain OpenVLA decodes the seven tokens of one action, one after another: ``decoding: autoregressive`` with ``horizon: 1``. While
one half of the environments is stepped, the policy acts for the other. Physics runs on the cores here (or on a GPU of its
own), which is what makes two stages overlap. Settings follow RLinf's recipe at a quarter of its 128 environments. See
``plate25.py`` for the assets and held-out tasks.
"""

from typing import Any

from plate25 import openvla_oft, ppo

PATH = "checkpoints/openvla-plate25"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return openvla_oft(
        {"path": PATH, "decoding": "autoregressive", "horizon": 1},
        sim={"backend": "cpu"},
        algo=ppo(window=160, ratio_level="action", clip_high=0.2),
        scheduler={"use": "hybrid", "stages": 2},
        train={"micro_batch": 80},
    )
