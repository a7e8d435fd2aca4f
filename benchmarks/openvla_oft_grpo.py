"""GRPO with a full-size OpenVLA-OFT on LIBERO, one GPU, a few steps under each scheduler: does it fit, and how fast is it.

    python benchmarks/openvla_oft_grpo.py --out results --machine "one H200, 16 CPU cores"   # about 3 minutes a scheduler
    python benchmarks/openvla_oft_grpo.py --out results --schedulers full-async --limit 200  # and no longer
    python benchmarks/openvla_oft_grpo.py --out /tmp/oft --tiny                # small sizes on the fake simulator, a CPU

The work of a step: 32 environments x 128 env steps in groups of 8, two 256-pixel cameras rendered, chunks of 8, LoRA of rank
32, one optimizer step on 512 chunks. Weights are random (made on the GPU), so no rollout succeeds and nothing is learned;
time does not know. What counts: ``scheduler_runs.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import scheduler_runs

RECIPE = Path(__file__).parent.parent / "examples" / "openvla-oft_libero_grpo_sync_cuda.py"


def recipe(_scheduler: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the mapping of a run, with a checkpoint written beside it."""
    from rlvla.configs import overridden, read_file
    from rlvla_model_openvla_oft import tiny
    from rlvla_model_openvla_oft.header import DINO, SIGLIP, LlamaShape

    sizes: dict[str, Any] = {"llama": LlamaShape(vocab_size=32064), "dino": DINO, "siglip": SIGLIP, "image_size": 224}
    if options.tiny:
        sizes = {"action_dim": 2, "state_dim": 2}
    tiny.write(place / "checkpoint", weights=False, data_sets=("libero_spatial_no_noops",), **sizes)
    change: dict[str, Any] = {
        "sim": {"num_envs": 32, "max_episode_steps": 128, "tasks": options.tasks},
        "model": {"path": str(place / "checkpoint"), "rollout": options.rollout},
        "algo": {"groups_per_step": 4, "minibatch_size": 512, "success_low": 0.0, "success_high": 1.0},
        "train": {"micro_batch": options.micro_batch},
    }
    if options.rollout == "fp8":
        change["algo"]["proximal"] = "recompute"
    if options.tiny:
        change["sim"] = {"use": "fake", "num_envs": 4, "max_episode_steps": 16}
        change["algo"] |= {"group_size": 2, "groups_per_step": 2, "minibatch_size": 8}
        change["run"] = {"device": "cpu", "sim_in_process": True, "slots": 2}
        change["model"] |= {"dtype": "fp32", "lora_rank": 4}
    return overridden(read_file(RECIPE), change)


def main() -> None:
    """Compare the schedulers."""
    parser = scheduler_runs.options(__doc__, "openvla_oft_grpo")
    parser.add_argument("--tasks", type=int, nargs="+", default=[0], help="of LIBERO spatial")
    parser.add_argument("--micro-batch", type=int, default=32, help="chunks in one forward and backward pass")
    parser.add_argument("--rollout", choices=("same", "fp8"), default="same", help="products while acting")
    scheduler_runs.compare("openvla_oft_grpo", "GRPO of OpenVLA-OFT", recipe, parser.parse_args())


if __name__ == "__main__":
    main()
