"""GR00T N1.5 on LIBERO spatial with PPO at chunk level, rollouts never stopping, on one GPU with 80 GiB or more.

``PATH`` is a checkpoint that was tuned on LIBERO demonstrations, in the public layout (a folder, or
``org/name@revision``); ``TOKENIZER`` a folder with the Eagle processor's tokenizer, which checkpoints come without. The
backbone is frozen and its features are kept for training, the action head and a value head are trained. Settings follow
RLinf's recipe (windows of 240 env steps in chunks of 5, 4 passes, a value learning rate 20 times the policy's, noise 0.5 in
one of four denoising steps) at an eighth of its 512 windows a step, and a staleness of one version.
"""

from typing import Any

from pairs import gr00t_libero

PATH = "checkpoints/gr00t-libero-spatial"
TOKENIZER = "checkpoints/eagle2hg-processor-groot-n1p5"


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    return {
        "sim": {"use": "libero", "suite": "libero_spatial", "num_envs": 64, "max_episode_steps": 240},
        "model": {
            "use": "gr00t",
            "path": PATH,
            "tokenizer_path": TOKENIZER,
            **gr00t_libero(),
            "horizon": 5,
            "noise": "flow_sde",
            "noise_level": 0.5,
            "keep_features": 8192,
        },
        "algo": {
            "use": "ppo",
            "window": 48,
            "windows_per_step": 64,
            "credit_level": "chunk",
            "ratio_level": "chunk",
            "passes": 4,
            "minibatch_size": 1024,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_low": 0.2,
            "clip_high": 0.2,
            "value_clip": 0.2,
            "huber_delta": 10.0,
            "value_learning_rate_scale": 20.0,
        },
        "scheduler": {"use": "full-async", "max_staleness": 1},
        "train": {
            "learning_rate": 5e-6,
            "weight_decay": 0.01,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "max_grad_norm": 1.0,
            "micro_batch": 64,
        },
        "eval": {"every": 10, "episodes": 500},
        "run": {"steps": 400, "device": "cuda"},
    }
