"""GR00T N1.5 on LIBERO spatial with PPO, physics and pictures on the GPU beside the model: one GPU with 80 GiB or more.

The same training as ``gr00t_libero_ppo_full-async_cuda.py`` with 256 environments as one batch a task. It is trained on MuJoCo
Warp; success is measured on ``libero`` (MuJoCo 3.3.7 on the CPU) by itself: ``rlvla eval runs/NAME``.
Needs the packages of ``rlvla-sim-libero-gpu[gpu]``, or ``rlvla simulators install libero-gpu``.
"""

import runpy
from pathlib import Path
from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    beside = runpy.run_path(str(Path(__file__).with_name("gr00t_libero_ppo_full-async_cuda.py")))["recipe"]()
    sim = {"use": "libero-gpu", "suite": "libero_spatial", "num_envs": 256, "max_episode_steps": 240}
    return {**beside, "sim": sim, "eval": {}}
