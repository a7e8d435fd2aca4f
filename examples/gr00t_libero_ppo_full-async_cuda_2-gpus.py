"""GR00T N1.5 on LIBERO spatial with PPO, rollouts never stopping, on two GPUs of one machine with 32 cores or more.

Twice the work of ``gr00t_libero_ppo_full-async_cuda.py`` a step: a generator and a trainer rank on each GPU, in one process, which
share the frozen backbone. For one GPU take that recipe.
"""

from pathlib import Path
from typing import Any

from rlvla.configs import overridden, read_file


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    one = read_file(Path(__file__).with_name("gr00t_libero_ppo_full-async_cuda.py"))
    change = {
        "sim": {"num_envs": 128},
        "algo": {"windows_per_step": 128, "minibatch_size": 2048},
        "run": {"runtime": "ray", "devices": 2, "placement": "collocated", "slots": 32},
    }
    return overridden(one, change)
