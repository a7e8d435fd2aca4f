"""What the recipes on ManiSkill's 25 pick-and-place tasks share.

The tasks need public assets, which an error names with the commands that bring them. Measure on what was never trained on
with another task or set, for instance ``--sim.objects test`` or ``--sim.task PutOnPlateInScene25VisionWhole05-v1``.
"""

from typing import Any

from pairs import openvla_oft_maniskill

from rlvla.configs import overridden

SIM = {"use": "maniskill", "task": "PutOnPlateInScene25Main-v3", "objects": "train"}
EVAL = {"every": 20, "episodes": 256}
RUN = {"steps": 300, "device": "cuda"}


def openvla_oft(model: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a run of OpenVLA or OpenVLA-OFT with LoRA: RLinf's settings, which ``changes`` replace by section."""
    shared = {
        "sim": {**SIM, "num_envs": 32},
        "model": {
            "use": "openvla-oft",
            **openvla_oft_maniskill(),
            "temperature": 1.0,
            "prompt_tokens": 30,
            "recompute": True,
            **model,
        },
        "train": {"learning_rate": 1e-4, "weight_decay": 0.01, "max_grad_norm": 10.0, "micro_batch": 40},
        "eval": EVAL,
        "run": RUN,
    }
    return overridden(shared, changes)


def ppo(**changes: Any) -> dict[str, Any]:
    """Return PPO with values of actions."""
    shared = {
        "use": "ppo",
        "window": 20,
        "windows_per_step": 32,
        "bootstrap": "always",
        "credit_level": "action",
        "ratio_level": "token",
        "passes": 1,
        "minibatch_size": 160,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "value_clip": 0.2,
        "huber_delta": 10.0,
        "value_learning_rate_scale": 30.0,
    }
    return {**shared, **changes}


def grpo(**changes: Any) -> dict[str, Any]:
    """Return GRPO with groups of eight rollouts of one scene."""
    shared = {
        "use": "grpo",
        "group_size": 8,
        "ratio_level": "token",
        "advantage": "std",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "minibatch_size": 160,
    }
    return {**shared, **changes}
