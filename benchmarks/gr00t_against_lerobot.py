"""GR00T's action head against LeRobot's, on the same small random weights: what the network computes, not how fast.

    pip install --no-deps --target /some/folder lerobot==0.4.4 diffusers==0.35.2
    python benchmarks/gr00t_against_lerobot.py /some/folder

LeRobot 0.4.4 is the last with N1.5 for Python 3.11; its package asks for older releases of torch and transformers than these
modules need, so it is not installed but put on the path. Differences are of fp32, largest over all elements.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

import rlvla
from rlvla.noise import Noise
from rlvla.specs import ActionPart, AlgorithmSpec, Camera, SimulatorSpec, StatePart, TaskSpec
from rlvla.weight_files import read_shards
from rlvla_model_gr00t import tiny
from rlvla_model_gr00t.header import read_header


def theirs(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Any:
    """Return LeRobot's head with a file's weights."""
    sys.path.insert(0, str(folder))
    for name in ("lerobot.policies", "lerobot.policies.groot"):  # whose own imports need all of LeRobot
        package = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    asked = types.ModuleType(
        "lerobot.utils.import_utils"
    )  # whether transformers is there; the rest of it needs draccus
    asked._transformers_available = True  # type: ignore[attr-defined]
    sys.modules[asked.__name__] = asked
    module = importlib.import_module("lerobot.policies.groot.action_head.flow_matching_action_head")
    settings = dict(config["action_head_cfg"])
    settings["diffusion_model_cfg"] |= {"interleave_self_attention": True, "norm_type": "ada_norm", "dropout": 0.0}
    settings["diffusion_model_cfg"] |= {"final_dropout": True, "positional_embeddings": None}
    settings["vl_self_attention_cfg"] |= {"final_dropout": True, "positional_embeddings": None, "dropout": 0.0}
    head = module.FlowmatchingActionHead(module.FlowmatchingActionHeadConfig(**settings))
    own = {name.removeprefix("action_head."): one.float() for name, one in weights.items()}
    head.load_state_dict({name: one for name, one in own.items() if name in head.state_dict()}, strict=True)
    return head.eval()


def ours(place: Path) -> Any:
    """Return this package's model of a checkpoint, on a simulator made for it."""
    plugin = rlvla.find("model", "gr00t")
    config = plugin.config(path=str(place), cameras=("primary",), dtype="fp32", pad_to=96, horizon=16)
    simulator = SimulatorSpec(
        cameras=(Camera("front", 32, 32),),
        state=(StatePart("pose", 8),),
        action=(ActionPart("pose", 6), ActionPart("gripper", 1, "gripper", closes_at="high")),
        control_hz=20.0,
        max_episode_steps=10,
        tasks=(TaskSpec("task"),),
    )
    algorithm = AlgorithmSpec("window", credit_level="chunk", ratio_level="chunk", values=False)
    return plugin.load()(config, simulator, algorithm, generator=torch.Generator().manual_seed(0))


def main() -> None:
    """Compare context and a chunk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where lerobot and diffusers are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = tiny.write(Path(name), tags=("gr1",), cameras=1)
        config = json.loads((place / "config.json").read_text())
        reference = theirs(options.folder, config, read_shards(place, read_header(place).shards))
        model = ours(place)
    rows, generator = 3, torch.Generator().manual_seed(1)
    features = torch.randn(rows, 20, model.header.head.backbone_embedding_dim, generator=generator)
    state = torch.randn(rows, model.header.head.max_state_dim, generator=generator)
    drawn = model._draw(rows, Noise(torch.arange(rows)), greedy=True)
    with torch.no_grad():
        seen = model.network.seen(features, torch.ones(rows, 20, dtype=torch.bool), state)
        mine = model.network.denoise(seen, *drawn.values()).actions
        wanted_context = reference.vl_self_attention(reference.vlln(features))
        embodiment, x = torch.full((rows,), model.row), drawn["start"]
        token = reference.state_encoder(state[:, None], embodiment)
        future = reference.future_tokens.weight.expand(rows, -1, -1)
        places = reference.position_embedding.weight[: x.shape[1]]
        for number in range(4):
            bucket = torch.full((rows,), number * 250)
            actions = reference.action_encoder(x, bucket, embodiment) + places
            tokens = torch.cat([token, future, actions], 1)
            out = reference.model(hidden_states=tokens, encoder_hidden_states=wanted_context, timestep=bucket)
            x = x + reference.action_decoder(out, embodiment)[:, -x.shape[1] :] / 4
    found = {
        "context": float((seen.context - wanted_context).abs().max()),
        "chunk after four steps": float((mine - x).abs().max()),
        "of which the largest number is": float(x.abs().max()),
    }
    print(json.dumps(found, indent=1))
    if max(found["context"], found["chunk after four steps"]) > 1e-4:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
