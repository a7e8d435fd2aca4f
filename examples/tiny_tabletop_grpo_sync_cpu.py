"""tiny on tabletop with GRPO at token level and a sparse reward (1 at success, else 0), on two CPU cores.

From scratch such a reward teaches nothing here, so it starts from weights that were cloned from 128 demonstrations::

    rlvla record --sim tabletop --episodes 128 --noise 0.2 --path demos/tabletop
    rlvla train examples/tiny_tabletop_bc_sync_cpu.py
    rlvla train examples/tiny_tabletop_grpo_sync_cpu.py
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "tabletop", "num_envs": 64, "shaped_reward": False},
        "model": {"use": "tiny", "path": "runs/tabletop-bc/checkpoints/step_000060/model"},
        "algo": {
            "use": "grpo",
            "ratio_level": "token",
            "group_size": 8,
            "groups_per_step": 16,
            "passes": 2,
            "minibatch_size": 320,
            "clip_low": 0.1,
            "clip_high": 0.1,
            "success_low": 0.1,
            "success_high": 0.9,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 2e-3, "final_learning_rate": 0.05},
        "eval": {"episodes": 256},
        "run": {"steps": 80, "device": "cpu"},
    }
