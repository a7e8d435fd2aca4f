"""A simulator and models made for a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import rlvla
from rlvla.batch import ObservationBatch
from rlvla.noise import Noise
from rlvla.simulator import Observation
from rlvla.specs import ActionPart, AlgorithmSpec, Camera, SimulatorSpec, StatePart, TaskSpec

TEXTS = ["pick up the black bowl", "Put it on the plate, then open the drawer", "Ünïcode 🤖"]
SHARD = "model-00001-of-00002.safetensors"
COMMON = {"embodiment_tag": "gr1", "horizon": 2, "dtype": "fp32", "pad_to": 160}


def simulator_spec(**changes: Any) -> SimulatorSpec:
    """Return a simulator of two cameras, three action dimensions and four state dimensions."""
    settings: dict[str, Any] = {
        "cameras": (Camera("front", 40, 48), Camera("hand", 32, 32, "wrist")),
        "state": (StatePart("place", 4, "m"),),
        "action": (ActionPart("move", 2), ActionPart("grip", 1, "gripper", closes_at="high")),
        "control_hz": 10.0,
        "max_episode_steps": 20,
        "tasks": (TaskSpec("task", TEXTS[0], wordings=tuple(TEXTS)),),
    }
    return SimulatorSpec(**{**settings, **changes})


def settings(path: Path | str, **options: Any) -> dict[str, Any]:
    """Return a config's options, small."""
    lora = {"lora_rank": 4} if options.get("tune") == "lora" else {}
    return {"path": str(path), **COMMON, **lora, **options}


def make(
    path: Path | str,
    spec: SimulatorSpec | None = None,
    values: str | None = "chunk",
    seed: int = 0,
    moved: bool = True,
    **options: Any,
):
    """Return a model of a checkpoint, its adapters moved so that they matter (or as they were read)."""
    plugin = rlvla.find("model", "gr00t")
    level: Any = values or "chunk"
    algorithm = AlgorithmSpec("window", credit_level=level, ratio_level="action", values=values is not None)
    config = plugin.config(**settings(path, **options))
    generator = torch.Generator().manual_seed(seed)
    model = plugin.load()(config, spec or simulator_spec(), algorithm, generator=generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if moved and "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.to("cpu")


def observation(rows: int = 3, spec: SimulatorSpec | None = None, seed: int = 0) -> ObservationBatch:
    """Return random pictures and states, and instructions of different lengths."""
    spec = spec or simulator_spec()
    generator = torch.Generator().manual_seed(seed)
    images = {
        one.name: torch.randint(0, 256, (rows, one.height, one.width, 3), generator=generator).to(torch.uint8).numpy()
        for one in spec.cameras
    }
    state = torch.randn(rows, spec.state_dim, generator=generator).numpy()
    return ObservationBatch.of(Observation(images, state, [TEXTS[row % 3] for row in range(rows)]), 64)


def act(model: Any, seen: ObservationBatch, greedy: bool = False, first: int = 0):
    """Return a chunk for each row."""
    with torch.no_grad():
        return model.act(model.preprocess(seen), Noise(torch.arange(first, first + len(seen))), greedy)


def described(path: Path, **options: Any) -> Any:
    """Return the spec of a checkpoint's model."""
    plugin = rlvla.find("model", "gr00t")
    return plugin.describe(plugin.config(**settings(path, **options)))


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return all weights of a folder."""
    return {name: one for file in sorted(folder.glob("model*.safetensors")) for name, one in load_file(file).items()}


def trained(checkpoint, **options):
    """Return a model whose weights moved by less than bf16 can tell."""
    model = make(checkpoint, **options)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.mul_(1.0001)
    return model
