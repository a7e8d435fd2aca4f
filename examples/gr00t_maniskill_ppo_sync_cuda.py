"""GR00T N1.5 on ManiSkill's 25 pick-and-place tasks with PPO at chunk level, synchronous, on one GPU with 80 GiB or more.

``PATH`` is a checkpoint that was tuned on demonstrations of a WidowX arm with one camera and no state; ``TOKENIZER`` a folder
with the Eagle processor's tokenizer. There is no published recipe of this pair: PPO's settings are those of GR00T on LIBERO,
windows and episodes those of OpenVLA-OFT on these tasks.
"""

from typing import Any

from pairs import gr00t_maniskill
from plate25 import EVAL, RUN, SIM

PATH = "checkpoints/gr00t-plate25"
TOKENIZER = "checkpoints/eagle2hg-processor-groot-n1p5"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {**SIM, "num_envs": 64},
        "model": {
            "use": "gr00t",
            "path": PATH,
            "tokenizer_path": TOKENIZER,
            **gr00t_maniskill(),
            "horizon": 8,
            "keep_features": 4096,
        },
        "algo": {
            "use": "ppo",
            "window": 10,
            "windows_per_step": 128,
            "credit_level": "chunk",
            "ratio_level": "chunk",
            "passes": 1,
            "minibatch_size": 640,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_low": 0.2,
            "clip_high": 0.2,
            "value_clip": 0.2,
            "huber_delta": 10.0,
            "value_learning_rate_scale": 20.0,
        },
        "scheduler": {"use": "sync"},
        "train": {
            "learning_rate": 5e-6,
            "weight_decay": 0.01,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "max_grad_norm": 1.0,
            "micro_batch": 64,
        },
        "eval": EVAL,
        "run": RUN,
    }
