"""OpenVLA-OFT: two vision towers, a projector and Llama 2, all action tokens of a chunk decoded at once.

Reads and writes the public checkpoint folders (sharded safetensors, tokenizer, ``dataset_statistics.json``) without their
remote code. Sources: Kim et al. 2024, arXiv:2406.09246 (OpenVLA); Kim et al. 2025, arXiv:2502.19645 (OFT).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla import lora
from rlvla.configs import without_effect
from rlvla.errors import CheckpointError, ConfigError
from rlvla.hub import located, settled
from rlvla.specs import ACTION_OPTIONS, ModelCost, ModelSpec, Role
from rlvla_model_openvla_oft.header import PATCH, Header, read_header

if TYPE_CHECKING:
    from rlvla_model_openvla_oft.model import OpenVlaOftModel

__version__ = "0.1.0"
__all__ = ["OpenVlaOftConfig", "describe", "plugin"]


@rlvla.config
class OpenVlaOftConfig:
    """OpenVLA-OFT (and plain OpenVLA): a 7B vision-language-action model in its public checkpoint format."""

    path: str | None = None
    """Checkpoint folder, or ``org/name@revision`` on the model hub; a folder with a LoRA adapter alone (rlvla's, or peft's)
    names its base. A run stores the folder's absolute path."""
    unnorm_key: str | None = None
    """Data set in the checkpoint's statistics whose ranges actions and state are scaled with (``_no_noops`` is added where
    only that exists); None: the only one there is."""
    normalisation: Literal["q99", "bounds"] = "q99"
    """Statistics that were scaled to [-1, 1]: 1st and 99th percentile, or least and greatest."""
    cameras: tuple[Role, ...] = ("primary",)
    """Roles of the pictures, one to three: those that the checkpoint was trained with, in its order."""
    mirrored: bool | None = None
    """The checkpoint saw left and right exchanged; pictures of a simulator that shows them otherwise are mirrored. None: as
    the simulator gives them."""
    proprio: bool = False
    """Reads the robot's state (the checkpoint needs a proprio projector)."""
    horizon: Annotated[int, Ge(1), Le(64)] = 8
    """Actions in a chunk: what the checkpoint was trained with (LIBERO 8, two-arm ALOHA 25, Bridge 5)."""
    decoding: Literal["parallel", "autoregressive"] = "parallel"
    """All tokens of a chunk at once with attention in both directions (OFT), or one after another with causal attention
    (plain OpenVLA; ``horizon`` 1). Log-probs of these are computed with products of other shapes in training than in acting,
    so ratios at equal weights are 1 but for rounding (1.4e-6 nats in fp32 measured), not exactly as in parallel."""
    head: Literal["tokens", "l1"] = "tokens"
    """256 tokens for each action dimension, or the continuous L1 head with a Gaussian around what it says."""
    gaussian: Literal["fixed", "learned"] = "fixed"
    """Standard deviation around the L1 head's actions: ``gaussian_std``, or learned from there, one for each dimension."""
    gaussian_std: Annotated[float, Gt(0), Le(2)] = 0.1
    """Standard deviation, in normalised actions ([-1, 1])."""
    preset: Literal["openvla-oft", "rlinf", "simplevla-rl"] = "openvla-oft"
    """Code base whose checkpoints these are; decides what the next five leave at None."""
    jpeg: bool | None = None
    """Pictures first become what a JPEG file of quality 95 would make of them, as training pictures were. rlinf: no."""
    resize: Literal["lanczos", "bicubic"] | None = None
    """Filter that scales pictures to the towers' size. rlinf: bicubic, else lanczos."""
    center_crop: bool | None = None
    """Then cut out the centre, 0.9 of the area, and scale it up (what random crops in training ask for). rlinf: no."""
    stop_token: bool | None = None
    """The end-of-text token follows the action slots. rlinf: no."""
    temperature: Annotated[float, Gt(0)] | None = None
    """Of the token distribution, in acting and training alike. openvla-oft: 1, else 1.6."""
    top_k: Annotated[int, Ge(1), Le(256)] | None = None
    """Sample from the most likely tokens alone; which they were is kept, and log-probs are within them."""
    prompt_tokens: Annotated[int, Ge(8), Le(4096)] | None = None
    """Pad every prompt to this many tokens, so that shapes and bits do not depend on who shares a batch; None: not at
    all where those of a batch are of equal length, else to the longest (and to a multiple of 8)."""
    action_unit: Literal["normalised", "si"] = "normalised"
    """Of the checkpoint's position and rotation deltas: the simulator's normalised range, or metres and radians."""
    rotation: Literal["axis_angle", "euler_xyz"] = "axis_angle"
    """Form of the checkpoint's rotation deltas."""
    gripper_range: tuple[float, float] = (0.0, 1.0)
    """Ends of the checkpoint's gripper action."""
    gripper_closes_at: Literal["low", "high"] = "low"
    """End of ``gripper_range`` that closes the fingers."""
    gripper_binary: bool = True
    """Open or close entirely, never in between."""
    tune: Literal["lora", "full", "heads"] = "lora"
    """What training changes, besides the value head and the L1 head: adapters, all weights, or nothing else."""
    tune_vision: bool = False
    """Adapters (or training) in the vision towers and the projector too."""
    lora_rank: Annotated[int, Ge(1)] | None = None
    """Rank of the adapters; None: that of the adapter in ``path``, else 32."""
    lora_alpha: Annotated[float, Gt(0)] | None = None
    """Adapters are scaled by this over the rank; None: as the adapter in ``path`` was trained, else by 1."""
    lora_targets: tuple[str, ...] | None = None
    """Last part of the names of layers that get adapters. None: those of the adapter in ``path``; else Llama's (``q_proj``,
    ``k_proj``, ``v_proj``, ``o_proj``, ``gate_proj``, ``up_proj``, ``down_proj``) and, with ``tune_vision``, those of towers
    and projector (``qkv``, ``proj``, ``fc1``, ``fc2``, ``fc3``). ``lm_head`` too may be named; ``q``, ``kv`` and ``out_proj`` of
    published lists, of which no layer is here, change nothing."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Of frozen weights and of all products; what is trained, log-probs and values are fp32."""
    recompute: bool = False
    """Keep no activations of Llama's layers for the backward pass: less memory, about a third more time."""
    keep_vision: bool = False
    """Keep projected pictures of each chunk in host memory, so that training need not compute them again (bf16: 2 MB a
    picture at full size); only while nothing in them is trained."""
    rollout: Literal["same", "fp8"] = "same"
    """Products of Llama's layers while acting. FP8 costs a quantised copy (6.5 GB) and differs from what training computes
    (see ``train/generator_gap``), so it needs ``algo.proximal: recompute``, which centres ratios on training's own log-probs."""
    fuse: bool = True
    """On a GPU, compile the element-wise parts (norms, rotary positions, SwiGLU); costs half a minute at the start."""
    graphs: bool = True
    """On a GPU, act by CUDA graphs for batch shapes where they are measured to be faster."""

    def __post_init__(self) -> None:
        """Make a folder's path hold wherever the run is opened again."""
        object.__setattr__(self, "path", settled(self.path))


def describe(config: OpenVlaOftConfig) -> ModelSpec:
    """Return what the policy needs and gives, from the JSON files of its checkpoint.

    Raises:
        ConfigError: settings that contradict each other or the checkpoint, all of them.
        CheckpointError: no such checkpoint, of another model, or damaged.
    """
    header = header_of(config)
    header.tokenizer()
    return spec_of(config, header)


def header_of(config: OpenVlaOftConfig) -> Header:
    """Return what the configured checkpoint says of itself."""
    if not config.path:
        raise ConfigError(
            "model.path: missing; wanted a folder with an OpenVLA checkpoint, or 'org/name@revision' on the model hub"
        )
    header = read_header(located(config.path, headers_only=True))
    if Path(config.path).expanduser().is_dir() and (missing := header.missing_shards()):
        raise CheckpointError(f"{header.folder} lacks {', '.join(missing)}, named in its index: download it again")
    return header


def spec_of(config: OpenVlaOftConfig, header: Header) -> ModelSpec:
    """Return the spec for a checkpoint that was read already."""
    problems = [
        *_contradictions(config),
        *_without_effect(config),
        *lora.misfits(config, header.adapter, adaptable(header), "heads"),
        *camera_misfits(config, header),
        *_head_misfits(config, header),
    ]
    try:
        statistics = header.statistics(config.unnorm_key, config.normalisation, state=config.proprio)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    states = len(statistics.state_low) if config.proprio else None
    return replace(_spec(config), state_dim=states, action_dim=len(statistics.low))


def assume(config: OpenVlaOftConfig) -> ModelSpec | None:
    """Return the spec with a published checkpoint, for any robot; None: the one that is named is a folder here."""
    here = config.path and Path(config.path).expanduser().is_dir()
    return None if here else _spec(config)


def _spec(config: OpenVlaOftConfig) -> ModelSpec:
    """Return what the options alone say."""
    return ModelSpec(
        horizon=config.horizon,
        tokens_per_action=None,
        cameras=config.cameras,
        state=config.proprio,
        entropy=config.head == "tokens" or config.gaussian == "learned",
        acts_as_trained=config.rollout == "same",
        options_for=ACTION_OPTIONS,
        cost=_LORA_OF_7B if config.tune == "lora" and config.decoding == "parallel" else None,
    )


_LORA_OF_7B = ModelCost(
    "an H200 (7B, one camera, calls of 32)",
    "cuda",
    call=0.02,
    row=0.0084,
    sample=0.0188,
    parameters=7_541_237_184,
    trainable=79_953_920,
    memory_gib=61.0,
)


def _contradictions(config: OpenVlaOftConfig) -> list[str]:
    problems = []
    if not 1 <= len(config.cameras) <= 3 or len(set(config.cameras)) < len(config.cameras):
        problems.append(f"model.cameras: got {config.cameras}, wanted one to three roles, each once")
    if config.decoding == "autoregressive":
        others = {"horizon": (config.horizon, 1), "head": (config.head, "tokens")}
        problems += [
            f"model.decoding: autoregressive gives one action of tokens: set model.{name} to {wanted!r} (got {got!r})"
            for name, (got, wanted) in others.items()
            if got != wanted
        ]
    if config.gripper_range[0] >= config.gripper_range[1]:
        problems.append(f"model.gripper_range: got {config.gripper_range}, wanted a lower and an upper end")
    return problems


def _without_effect(config: OpenVlaOftConfig) -> list[str]:
    """Return what is wrong with options that were set and change nothing beside the others."""
    tokens, l1 = ("model.head 'tokens'", config.head == "tokens"), ("model.head 'l1'", config.head == "l1")
    adapted = ("model.tune 'lora'", config.tune == "lora")
    needs = {
        "temperature": tokens,
        "top_k": tokens,
        "gaussian": l1,
        "gaussian_std": l1,
        "stop_token": ("model.decoding 'parallel'", config.decoding == "parallel"),
        "tune_vision": ("model.tune 'lora' or 'full'", config.tune != "heads"),
        "lora_rank": adapted,
        "lora_alpha": adapted,
        "lora_targets": adapted,
        "recompute": ("model.tune 'lora' or 'full'", config.tune != "heads"),
        "keep_vision": ("model.tune_vision False", not config.tune_vision),
    }
    return without_effect("model", config, needs)


_ABSENT = frozenset({"q", "kv", "out_proj"})
"""Of timm's pooling heads and of other Llamas: in published lists of targets, but without a layer here."""


def adaptable(header: Header) -> lora.Layers:
    """Return the layers that may get adapters."""
    llama, towers = header.llama, (header.dino, header.siglip)
    width, narrow = llama.hidden_size, min(tower.width for tower in towers)
    hidden = min(narrow, *(tower.mlp for tower in towers))
    language = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), width)
    language |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), min(width, llama.intermediate_size))
    vision = {"qkv": narrow, "proj": min(narrow, 3 * PATCH**2), "fc1": hidden, "fc2": hidden, "fc3": width}
    vision = {name: min(size, width) if name in ("fc1", "fc2") else size for name, size in vision.items()}
    return lora.Layers(language, vision, {"lm_head": min(width, llama.vocab_size)}, _ABSENT)


def camera_misfits(config: OpenVlaOftConfig, header: Header) -> list[str]:
    """Return why the checkpoint was trained with other pictures."""
    trained = header.cameras
    if trained is None or (
        len(trained) == len(config.cameras) and (trained == config.cameras or {*trained} != {*config.cameras})
    ):
        return []
    return [
        f"model.cameras: got {', '.join(config.cameras)}, but {header.folder} was trained with {len(trained)} in this "
        f"order: {', '.join(trained)}"
    ]


_BESIDE = {
    "action_head": (
        "model.head: got 'tokens', but {} shows that this checkpoint acts by an L1 head: its token probabilities may never "
        "have been trained, and RL would start at no success. Set model.head to 'l1'; if tokens were trained too, move the "
        "file away"
    ),
    "proprio_projector": (
        "model.proprio: got False, but {} shows that this checkpoint reads the robot's state. Set model.proprio to True; if "
        "it was trained without, move the file away"
    ),
    "vision_backbone": (
        "model.path: {} shows that this checkpoint changes its vision towers by the instruction (FiLM), which this model does "
        "not compute: take a checkpoint without"
    ),
    "noisy_action_projector": (
        "model.path: {} shows that this checkpoint acts by diffusion, which this model does not: take one with tokens or an L1 "
        "head"
    ),
}


def _head_misfits(config: OpenVlaOftConfig, header: Header) -> list[str]:
    """Return heads that the checkpoint has and that would silently not be used."""
    used = {"action_head": config.head == "l1", "proprio_projector": config.proprio}
    found = {kind: header.beside(f"{kind}--*_checkpoint.*") for kind in _BESIDE if not used.get(kind, False)}
    return [_BESIDE[kind].format(files[0]) for kind, files in found.items() if files]


plugin: rlvla.Plugin[OpenVlaOftConfig, OpenVlaOftModel] = rlvla.Plugin(
    config=OpenVlaOftConfig, target="rlvla_model_openvla_oft.model:OpenVlaOftModel", describe=describe, assume=assume
)
