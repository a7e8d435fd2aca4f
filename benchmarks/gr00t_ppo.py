"""PPO with a full-size GR00T N1.5 on LIBERO, one GPU, a few steps under each scheduler: how fast, and what holds it back.

    python benchmarks/gr00t_ppo.py --out results --machine "one H200, 16 CPU cores"           # about 2 minutes a scheduler
    python benchmarks/gr00t_ppo.py --out results --schedulers sync async-rollout --limit 105  # and no longer
    python benchmarks/gr00t_ppo.py --out /tmp/gr00t --tiny                   # small sizes on the fake simulator, a CPU

The work of a step: 64 environments (4 in each of 16 processes) x 80 env steps of one task of LIBERO spatial, two 256-pixel
cameras rendered, chunks of 10, one pass over 512 chunks in optimizer steps of 256; backbone frozen, its features kept, head
trained. Weights are random (made on the GPU), so no rollout succeeds and nothing is learned; time does not know. What counts:
``scheduler_runs.py``.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

import scheduler_runs

RECIPE = Path(__file__).parent.parent / "examples" / "gr00t_libero_ppo_full-async_cuda.py"


def recipe(_scheduler: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden
    from rlvla_model_gr00t import tiny
    from rlvla_model_gr00t.header import HeadShape, QwenShape, SiglipShape

    sizes: dict[str, Any] = {"siglip": SiglipShape(), "qwen": QwenShape(), "head": HeadShape()}
    if options.tiny:
        sizes = {"action_dim": 2, "state_dim": 2}
    tiny.write(place / "checkpoint", weights=False, tags=("libero_franka",), **sizes)
    change: dict[str, Any] = {
        "sim": {"num_envs": options.envs, "max_episode_steps": 240, "tasks": [0]},
        "model": {"path": str(place / "checkpoint"), "tokenizer_path": None, "horizon": 10, "keep_features": 4096},
        "algo": {"window": 8, "windows_per_step": options.envs, "passes": 1, "minibatch_size": 256},
        "train": {"micro_batch": options.micro_batch},
        "run": {"slots": options.slots},
    }
    if options.tiny:
        change["sim"] = {"use": "fake", "num_envs": 4, "max_episode_steps": 40}
        change["algo"] |= {"window": 2, "windows_per_step": 4, "minibatch_size": 8}
        change["run"] |= {"device": "cpu", "sim_in_process": True, "slots": 2}
        change["model"] |= {"dtype": "fp32", "pad_to": 128, "state_keys": None, "action_keys": None}
    return overridden(runpy.run_path(str(RECIPE))["recipe"](), change)


def main() -> None:
    """Compare the schedulers."""
    parser = scheduler_runs.options(__doc__, "gr00t_ppo")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16, help="parts of the environments, a process each")
    parser.add_argument("--micro-batch", type=int, default=64, help="chunks in one forward and backward pass")
    scheduler_runs.compare("gr00t_ppo", "PPO of GR00T N1.5", recipe, parser.parse_args())


if __name__ == "__main__":
    main()
