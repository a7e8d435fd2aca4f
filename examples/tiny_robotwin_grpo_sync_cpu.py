"""tiny on RoboTwin's click_bell with GRPO, synchronous, on two CPU cores: a run that shows an installation works.

It needs ``rlvla simulators install robotwin`` and an asset root in ``ROBOTWIN_ASSETS_ROOT``, for instance the toy one:
``INTERPRETER -m rlvla_sim_robotwin.toy_assets DIR`` with the interpreter that ``rlvla simulators list`` names. The rasteriser
draws, so nothing here is comparable with the benchmark. On the toy assets the sweeping arms of a fresh policy hit the bell in a
third of the episodes (3 of 8), so groups differ and there is something to learn.
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {
            "use": "robotwin",
            "task": "click_bell",
            "shader": "default",
            "cameras": ["head"],
            "head_camera": "L515",
            "max_episode_steps": 40,
            "num_envs": 4,
        },
        "model": {"use": "tiny", "horizon": 10},
        "algo": {"use": "grpo", "group_size": 2, "entropy_weight": 0.01},
        "scheduler": {"use": "sync"},
        "eval": {"episodes": 4},
        "run": {"steps": 2, "device": "cpu"},
    }
