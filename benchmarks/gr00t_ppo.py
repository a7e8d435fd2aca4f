"""PPO with a full-size GR00T N1.5 on LIBERO, one GPU, a few steps under each scheduler: how fast, and what holds it back.

    python benchmarks/gr00t_ppo.py --out results --machine "one H200, 16 CPU cores"           # about 2 minutes a scheduler
    python benchmarks/gr00t_ppo.py --out results --schedulers sync async-rollout --limit 105  # and no longer
    python benchmarks/gr00t_ppo.py --out results --sim libero-gpu --schedulers full-async hybrid
    python benchmarks/gr00t_ppo.py --out /tmp/gr00t --tiny                   # small sizes on the fake simulator, a CPU

The work of a step: 64 environments (4 in each of 16 processes) x 80 env steps of one task of LIBERO spatial, two 256-pixel
cameras rendered, chunks of 10, one pass over 512 chunks in optimizer steps of 256; with ``libero-gpu`` 256 environments (two batches
on the GPU of the model) x 40 env steps and 1024 chunks. The backbone is frozen, its features kept, the head trained. Weights are
random (made on the GPU), so no rollout succeeds and nothing is learned; time does not know. What counts: ``scheduler_runs.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import scheduler_runs

EXAMPLES = Path(__file__).parent.parent / "examples"
SIZES = {"libero": (64, 16, 8), "libero-gpu": (256, 2, 4)}
"""Environments, slots (processes of ``libero``, batches of ``libero-gpu``), and chunks of each environment in a step."""


def recipe(_scheduler: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden, read_file
    from rlvla_model_gr00t import tiny
    from rlvla_model_gr00t.header import HeadShape, QwenShape, SiglipShape

    sizes: dict[str, Any] = {"siglip": SiglipShape(), "qwen": QwenShape(), "head": HeadShape()}
    if options.tiny:
        sizes = {"action_dim": 2, "state_dim": 2}
    tiny.write(place / "checkpoint", weights=False, tags=("libero_franka",), **sizes)
    envs, slots, window = SIZES[options.sim]
    envs, slots = options.envs or envs, options.slots or slots
    change: dict[str, Any] = {
        "sim": {"num_envs": envs, "max_episode_steps": 240, "tasks": [0]},
        "model": {"path": str(place / "checkpoint"), "tokenizer_path": None, "horizon": 10, "keep_features": 64 * envs},
        "algo": {"window": window, "windows_per_step": envs, "passes": 1, "minibatch_size": 256},
        "train": {"micro_batch": options.micro_batch},
        "run": {"slots": slots},
    }
    if options.tiny:
        change["sim"] = {"use": "fake", "num_envs": 4, "max_episode_steps": 40}
        change["algo"] |= {"window": 2, "windows_per_step": 4, "minibatch_size": 8}
        change["run"] |= {"device": "cpu", "sim_in_process": True, "slots": 2}
        change["model"] |= {"dtype": "fp32", "pad_to": 128, "state_keys": None, "action_keys": None}
    return overridden(read_file(EXAMPLES / f"gr00t_{options.sim}_ppo_full-async_cuda.py"), change)


def main() -> None:
    """Compare the schedulers."""
    parser = scheduler_runs.options(__doc__, "gr00t_ppo")
    parser.add_argument("--sim", choices=list(SIZES), default="libero")
    parser.add_argument("--envs", type=int, help="default: 64, of libero-gpu 256")
    parser.add_argument("--slots", type=int, help="parts of the environments; default: 16, of libero-gpu 2")
    parser.add_argument("--micro-batch", type=int, default=64, help="chunks in one forward and backward pass")
    options = parser.parse_args()
    name, on = ("gr00t_ppo", "") if options.sim == "libero" else ("gr00t_ppo_libero_gpu", ", LIBERO on the same GPU,")
    scheduler_runs.compare(name, f"PPO of GR00T N1.5{on}", recipe, options)


if __name__ == "__main__":
    main()
