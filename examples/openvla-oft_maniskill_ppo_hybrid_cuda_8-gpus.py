"""OpenVLA on ManiSkill's 25 pick-and-place tasks with PPO, hybrid, on 8 GPUs: simulators on four, generators on four, training on all.

RLinf's 128 environments, in batches on the simulators' GPUs where PhysX finds its library for them, else on cores. In each of two
stages simulators and generators work in turn. For one GPU: ``openvla-oft_maniskill_ppo_hybrid_cuda.py``.
"""

from pathlib import Path
from typing import Any

from rlvla.configs import overridden, read_file


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    one = read_file(Path(__file__).with_name("openvla-oft_maniskill_ppo_hybrid_cuda.py"))
    change = {
        "sim": {"num_envs": 128, "backend": "auto"},
        "algo": {"windows_per_step": 128, "minibatch_size": 640},
        "run": {
            "runtime": "ray",
            "devices": 8,
            "placement": {"simulator": "0-3", "generator": "4-7", "trainer": "all"},
            "slots": 8,
        },
    }
    return overridden(one, change)
