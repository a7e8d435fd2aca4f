"""GR00T N1.5: a vision-language backbone, and a flow-matching head that denoises a chunk of actions.

Reads and writes the public checkpoint folders without their remote code. Sources: Bjorck et al. 2025, arXiv:2503.14734
(GR00T N1) and the published N1.5 code; its RL form follows Liu et al. 2025, arXiv:2505.05470 (flow as a stochastic
differential equation) and RLinf.
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
from rlvla_model_gr00t.embodiments import Embodiment, Normalisation, row_of
from rlvla_model_gr00t.header import Header, read_header

if TYPE_CHECKING:
    from rlvla_model_gr00t.model import Gr00tModel

__version__ = "0.1.0"
__all__ = ["Gr00tConfig", "describe", "plugin"]


@rlvla.config
class Gr00tConfig:
    """GR00T N1.5: a 3B vision-language-action model with a flow-matching head, in its public checkpoint format."""

    path: str | None = None
    """Checkpoint folder, or ``org/name@revision`` on the model hub; a folder of a run names the checkpoint it stands on.
    A run stores the folder's absolute path."""
    tokenizer_path: str | None = None
    """Folder (or ``org/name`` on the model hub) with the Eagle processor's tokenizer, which checkpoints come without; None:
    the checkpoint's own, or its ``eagle`` folder's."""
    embodiment_tag: str | None = None
    """Robot in the checkpoint's ``metadata.json``; None: the only one there is."""
    embodiment_table: Literal["nvidia", "rlinf"] | None = None
    """Published table that gives the tag its row of weights; None: either, where they do not disagree."""
    embodiment_id: Annotated[int, Ge(0)] | None = None
    """The row itself, whatever the tables say."""
    state_keys: tuple[str, ...] | None = None
    """Parts of the state in ``metadata.json``, in the simulator's order; None: all, as they are listed."""
    action_keys: tuple[str, ...] | None = None
    """Parts of the action, in the simulator's order; None: all, as they are listed."""
    normalisation: Normalisation = "min_max"
    """Statistics that states and actions are scaled with: least and greatest to [-1, 1], 1st and 99th percentile to
    [-1, 1] (states beyond are cut off), or mean and standard deviation."""
    cameras: tuple[Role, ...] = ("primary", "wrist")
    """Roles of the pictures, in the order of the checkpoint's video keys."""
    mirrored: bool | None = None
    """The checkpoint saw left and right exchanged; pictures of a simulator that shows them otherwise are mirrored. None: as
    the simulator gives them."""
    state: Literal["given", "zeros"] = "given"
    """The robot's state, or zeros in its place (checkpoints that were tuned so)."""
    instruction: Literal["plain", "listed"] = "plain"
    """The text as it is (RLinf's checkpoints), or as the only item of a printed list, ``['text']`` (the original evaluation)."""
    padding: Literal["fixed", "masked"] = "fixed"
    """``fixed``: sequences are padded to ``pad_to``, and the head looks at the padding too, as checkpoints were tuned.
    ``masked``: it does not; another policy than a checkpoint that was tuned with padding."""
    pad_to: Annotated[int, Ge(16), Le(40960)] | None = None
    """Tokens of a sequence. None: 570 where padding is ``fixed``; where it is ``masked``, the longest that the simulator's
    tasks ask for, rounded up to a multiple of 8. Longer instructions than a simulator tells of are refused, or with
    ``masked`` and None widen their batches, in which bf16 log-probs then differ a little (2 %) between acting and training."""
    horizon: Annotated[int, Ge(1)] = 10
    """Actions of a chunk that are executed, of the 16 that the head denoises."""
    denoising_steps: Annotated[int, Ge(2), Le(100)] | None = None
    """Steps from noise to actions; None: as many as the checkpoint's ``num_inference_timesteps``."""
    noise: Literal["flow_sde", "flow_cps", "reinflow"] = "flow_sde"
    """How a step becomes random: a stochastic differential equation with the flow's marginals (arXiv:2505.05470), noise
    that preserves coefficients (arXiv:2509.05952), or a learned deviation around the flow's own step (arXiv:2505.22094)."""
    noise_level: Annotated[float, Gt(0), Le(1)] = 0.5
    """How strong it is (``flow_sde``, ``flow_cps``)."""
    noise_level_final: Annotated[float, Gt(0), Le(1)] | None = None
    """Level that it reaches after ``noise_anneal_steps``, linearly; None: it stays."""
    noise_anneal_steps: Annotated[int, Ge(1)] = 400
    """Training steps on the way to ``noise_level_final``."""
    stochastic_steps: Literal["one", "all"] = "one"
    """Of a chunk's denoising, one step is random, drawn for each chunk, and trained; or all are, at as many times the cost."""
    skip_last: bool = False
    """The last step is never random (with ``flow_cps`` it cannot be)."""
    entries: Literal["dimension", "step"] = "dimension"
    """Log-prob entries of an action, which are ``ratio_level: token``: one for each dimension (and random step), or one for
    each random step."""
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
    tune: Literal["head", "lora"] = "head"
    """What training changes: the action head, or also LoRA adapters in the backbone."""
    tune_vision: bool = False
    """Adapters in the vision tower and the projector too (``tune: lora``)."""
    lora_rank: Annotated[int, Ge(1)] | None = None
    """Rank of the adapters; None: that of the adapter in ``path``, else 32."""
    lora_alpha: Annotated[float, Gt(0)] | None = None
    """Adapters are scaled by this over the rank; None: as the adapter in ``path`` was trained, else by 1."""
    lora_targets: tuple[str, ...] | None = None
    """Last part of the names of layers that get adapters. None: those of the adapter in ``path``; else the language model's
    (``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``, ``gate_proj``, ``up_proj``, ``down_proj``) and, with ``tune_vision``, those of
    vision tower and projector (also ``out_proj``, ``fc1``, ``fc2``, and ``0``, the projector)."""
    detach_critic: bool = False
    """The value head's gradient ends at what it reads, instead of changing the head below it too."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Of frozen weights and of all products; what is trained, the denoising chain, log-probs and values are fp32."""
    keep_features: Annotated[int, Ge(0)] = 0
    """Chunks whose backbone features stay on the device until they are trained on (2.3 MB each at full size), so that
    training need not compute them again; the oldest go first. Only while the backbone is frozen, and where generator and
    trainer share a process. 0: none."""
    language: Literal["same", "fp8"] = "same"
    """Products of the frozen language model's layers, in acting and training alike. FP8 costs a quantised copy (0.6 GB) and is
    a policy a little apart from the checkpoint's (``benchmarks/gr00t.py`` measures how far); ``tune: head`` only."""
    fuse: bool = True
    """On a GPU, compile the element-wise parts (norms, modulation, rotary positions); costs half a minute at the start."""
    graphs: bool = True
    """On a GPU, act by one CUDA graph for each batch shape where it is measured to be faster."""

    def __post_init__(self) -> None:
        """Make paths of folders hold wherever the run is opened again."""
        object.__setattr__(self, "path", settled(self.path))
        object.__setattr__(self, "tokenizer_path", settled(self.tokenizer_path))


def describe(config: Gr00tConfig) -> ModelSpec:
    """Return what the policy needs and gives, from the JSON files of its checkpoint.

    Raises:
        ConfigError: settings that contradict each other or the checkpoint, all of them.
        CheckpointError: no such checkpoint, of another model or version, or damaged; no tokenizer.
    """
    header = header_of(config)
    header.tokenizer(config.tokenizer_path)
    return spec_of(config, header)


def header_of(config: Gr00tConfig) -> Header:
    """Return what the configured checkpoint says of itself."""
    if config.path is None:
        raise ConfigError(
            "model.path: missing; wanted a folder with a GR00T N1.5 checkpoint, or 'org/name@revision' on the model hub"
        )
    header = read_header(located(config.path, headers_only=True))
    if Path(config.path).expanduser().is_dir() and (missing := header.missing_shards()):
        raise CheckpointError(f"{header.folder} lacks {', '.join(missing)}, named in its index: download it again")
    return header


def spec_of(config: Gr00tConfig, header: Header) -> ModelSpec:
    """Return the spec for a checkpoint that was read already."""
    problems = [*_contradictions(config, header), *_without_effect(config)]
    actions: int | None = None
    try:
        robot = embodiment_of(config, header)
        actions = len(robot.action.offset)
    except ConfigError as error:
        problems += error.problems
    if actions is not None and actions > header.head.action_dim:
        problems.append(f"model.action_keys: {actions} dimensions, the head gives {header.head.action_dim} at most")
    if problems:
        raise ConfigError(problems)
    assert actions is not None
    recorded = denoising_of(config, header)[1] if config.stochastic_steps == "all" else 1
    return replace(
        _spec(config),
        tokens_per_action=recorded * (actions if config.entries == "dimension" else 1),
        state_dim=len(robot.state.offset) if config.state == "given" else None,
        action_dim=actions,
    )


def assume(config: Gr00tConfig) -> ModelSpec | None:
    """Return the spec with a published checkpoint, for any robot; None: the one that is named is a folder here."""
    here = config.path is not None and Path(config.path).expanduser().is_dir()
    return None if here else _spec(config)


def _spec(config: Gr00tConfig) -> ModelSpec:
    """Return what the options alone say."""
    return ModelSpec(
        horizon=config.horizon,
        tokens_per_action=None,
        cameras=config.cameras,
        state=config.state == "given",
        entropy=config.noise == "reinflow",
        options_for={"values": ("detach_critic",), **ACTION_OPTIONS},
        cost=_HEAD_OF_3B if config.tune == "head" and config.keep_features else None,
    )


_HEAD_OF_3B = ModelCost(
    "an H200 (two cameras, calls of 1 to 32, parts of 64 chunks with kept features)",
    "cuda",
    call=0.007,
    row=0.0031,
    sample=0.0026,
    parameters=2_112_345_057,
    trainable=767_628_321,
    memory_gib=42.0,
)


def denoising_of(config: Gr00tConfig, header: Header) -> tuple[int, int]:
    """Return how many denoising steps there are, and how many of them may be random."""
    steps = config.denoising_steps or header.head.num_inference_timesteps
    return steps, steps - int(config.skip_last or config.noise == "flow_cps")


def embodiment_of(config: Gr00tConfig, header: Header) -> Embodiment:
    """Return the robot of a config."""
    tag = header.tag(config.embodiment_tag)
    return header.embodiment(tag, config.normalisation, config.state_keys, config.action_keys)


def _without_effect(config: Gr00tConfig) -> list[str]:
    """Return what is wrong with options that were set and change nothing beside the others."""
    adapted = ("model.tune 'lora'", config.tune == "lora")
    strength = ("model.noise 'flow_sde' or 'flow_cps'", config.noise != "reinflow")
    annealed = config.noise_level_final is not None and config.noise != "reinflow"
    needs = {
        **dict.fromkeys(("tune_vision", "lora_rank", "lora_alpha", "lora_targets"), adapted),
        **dict.fromkeys(("noise_level", "noise_level_final"), strength),
        "noise_anneal_steps": ("model.noise_level_final and model.noise 'flow_sde' or 'flow_cps'", annealed),
        "skip_last": ("model.noise 'flow_sde' or 'reinflow'", config.noise != "flow_cps"),
        "embodiment_table": ("model.embodiment_id None", config.embodiment_id is None),
        "state_keys": ("model.state 'given'", config.state == "given"),
    }
    return without_effect("model", config, needs)


def adaptable(header: Header) -> lora.Layers:
    """Return the layers that may get adapters."""
    qwen, siglip = header.qwen, header.siglip
    query, keys = qwen.num_attention_heads * qwen.head_dim, qwen.num_key_value_heads * qwen.head_dim
    heads = {"q_proj": query, "k_proj": keys, "v_proj": keys, "o_proj": query}
    language = heads | dict.fromkeys(("gate_proj", "up_proj", "down_proj"), qwen.intermediate_size)
    vision = dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), siglip.hidden_size)
    vision |= dict.fromkeys(("fc1", "fc2"), min(siglip.hidden_size, siglip.intermediate_size))
    vision["0"] = min(siglip.hidden_size, qwen.hidden_size)
    return lora.Layers({name: min(size, qwen.hidden_size) for name, size in language.items()}, vision)


def _contradictions(config: Gr00tConfig, header: Header) -> list[str]:
    problems: list[str] = []
    head = header.head
    if config.horizon > head.action_horizon:
        problems.append(f"model.horizon: got {config.horizon}, the head denoises {head.action_horizon} actions")
    if config.gripper_range[0] >= config.gripper_range[1]:
        problems.append(f"model.gripper_range: got {config.gripper_range}, wanted a lower and an upper end")
    if config.keep_features and config.tune == "lora":
        problems.append("model.keep_features: features change with adapters (model.tune: 'lora'): set it to 0")
    if config.language == "fp8" and config.tune == "lora":
        problems.append("model.language: 'fp8' is of frozen weights, and model.tune is 'lora': 'same'")
    if config.keep_features and config.padding == "masked" and config.pad_to is None:
        problems.append(
            "model.keep_features: features are as long as the longest instruction of their batch: give model.pad_to, or set "
            "keep_features to 0"
        )
    problems += lora.misfits(config, header.adapter, adaptable(header), "head")
    try:
        tag = header.tag(config.embodiment_tag)
        row_of(tag, config.embodiment_table, config.embodiment_id, head)
    except ConfigError as error:
        return [*problems, *(problem for problem in error.problems if "embodiment_tag" not in problem)]
    video = header.cameras(tag)
    if len(config.cameras) != len(video) or len(set(config.cameras)) < len(config.cameras):
        problems.append(
            f"model.cameras: got {config.cameras}, wanted a role for each of the {len(video)} pictures that {tag} was trained "
            f"with, each once: {', '.join(video)}"
        )
    return problems


plugin: rlvla.Plugin[Gr00tConfig, Gr00tModel] = rlvla.Plugin(
    config=Gr00tConfig, target="rlvla_model_gr00t.model:Gr00tModel", describe=describe, assume=assume
)
