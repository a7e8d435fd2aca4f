"""tiny on ManiSkill's PushCube with PPO from state, synchronous, on two CPU cores: clearly better within ten minutes.

Instead of pictures the policy gets where the cube and its target are. Physics costs 3 ms an env step and core, which is what
bounds it. Episodes end at success, and what would follow is worth its value (``bootstrap: always``): the reward of ManiSkill is
paid at every step, so an end worth nothing would be avoided.
"""

from typing import Any


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {
            "use": "maniskill",
            "task": "PushCube-v1",
            "observation": "state",
            "control_mode": "pd_ee_delta_pos",
            "backend": "cpu",
            "fresh_scenes": False,  # episodes are short, and need not be equal in their last digits
            "num_envs": 32,
        },
        "model": {"use": "tiny", "cameras": [], "horizon": 2},
        "algo": {
            "use": "ppo",
            "window": 10,
            "passes": 8,
            "minibatch_size": 160,
            "gamma": 0.85,
            "gae_lambda": 0.9,
            "bootstrap": "always",
            "target_kl": 0.25,
        },
        "scheduler": {"use": "sync"},
        "train": {"learning_rate": 2e-3, "final_learning_rate": 0.1},
        "eval": {"every": 30, "episodes": 64, "pause": True},
        "run": {"steps": 180, "device": "cpu", "slots": 2},
    }
