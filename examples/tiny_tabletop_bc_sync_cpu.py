"""tiny on tabletop by behaviour cloning, on a CPU core, in under a minute: a start for GRPO. First record::

rlvla record --sim tabletop --episodes 128 --noise 0.2 --path demos/tabletop
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "tabletop", "num_envs": 64},
        "model": {"use": "tiny"},
        "algo": {"use": "bc", "path": "demos/tabletop", "minibatch_size": 256, "minibatches_per_step": 10},
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 3e-3, "final_learning_rate": 0.05},
        "eval": {"episodes": 256},
        "run": {"steps": 60, "device": "cpu", "name": "tabletop-bc"},
    }
