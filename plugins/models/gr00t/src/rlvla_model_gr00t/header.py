"""What a checkpoint's JSON files say: sizes, embodiments (:mod:`rlvla_model_gr00t.embodiments`), which files hold what. Light: no torch.

``config.json`` has the action head's sizes; those of the backbone are in no public config, so they are carried here and
may be overridden (``eagle_config`` in it, or ``eagle/config.json`` beside it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from rlvla.checkpoint_header import (
    AdapterHeader,
    CheckpointHeader,
    Depth,
    Origin,
    Pixels,
    Positive,
    Rope,
    Size,
    base_header,
    read_adapter,
    read_as,
    read_json,
    refuse_others,
    text_shape,
)
from rlvla.errors import CheckpointError, ConfigError
from rlvla_model_gr00t import embodiments
from rlvla_model_gr00t.embodiments import Embodiment, Normalisation

TOKENIZER = ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json")
"""Files of a tokenizer: the first, or all others."""
METADATA = "experiment_cfg/metadata.json"
_FIXED: Mapping[str, Any] = {
    "action_head_cfg.use_vlln": True,
    "action_head_cfg.add_pos_embed": True,
    **{
        f"action_head_cfg.diffusion_model_cfg.{name}": value
        for name, value in {
            "activation_fn": "gelu-approximate",
            "attention_bias": True,
            "norm_type": "ada_norm",
            "norm_elementwise_affine": False,
            "norm_eps": 1e-5,
            "positional_embeddings": None,
            "interleave_self_attention": True,
        }.items()
    },
    **{
        f"action_head_cfg.vl_self_attention_cfg.{name}": value
        for name, value in {
            "activation_fn": "gelu-approximate",
            "attention_bias": True,
            "norm_type": "layer_norm",
            "norm_eps": 1e-5,
            "positional_embeddings": None,
        }.items()
    },
    "backbone_cfg.project_to_dim": None,
    "backbone_cfg.reproject_vision": False,
}
"""Fields of ``config.json`` by which other networks differ, and what they are in every N1.5."""
_EAGLE_FIXED: Mapping[str, Any] = {
    "use_pixel_shuffle": False,
    "mlp_connector_layers": 1,
    "select_layer": -1,
    "vision_config.model_type": "siglip_vision_model",
    "vision_config.hidden_act": "gelu_pytorch_tanh",
    "vision_config.num_channels": 3,
    "text_config.model_type": "qwen3",
    "text_config.hidden_act": "silu",
    "text_config.attention_bias": False,
    "text_config.rope_scaling": None,
    "text_config.rope_parameters.rope_type": "default",
    "text_config.sliding_window": None,
    "text_config.use_sliding_window": False,
}
"""The same of the backbone's."""


@dataclass(frozen=True)
class SiglipShape:
    """Sizes of the vision tower."""

    hidden_size: Size = 1152
    intermediate_size: Size = 4304
    num_hidden_layers: Depth = 27
    num_attention_heads: Size = 16
    image_size: Pixels = 224
    patch_size: Size = 14
    layer_norm_eps: Positive = 1e-6

    @property
    def tokens(self) -> int:
        """Tokens of one picture."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class QwenShape:
    """Sizes of the language model, whose layers above ``select_layer`` were cut off."""

    hidden_size: Size = 2048
    intermediate_size: Size = 6144
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 16
    num_key_value_heads: Size = 8
    head_dim: Size = 128
    vocab_size: Size = 151680
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 1e6


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of a stack of transformer blocks."""

    num_attention_heads: Size
    attention_head_dim: Size
    num_layers: Depth
    output_dim: Annotated[int, Ge(0), Le(2**18)] = 0

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


@dataclass(frozen=True)
class HeadShape:
    """Sizes of the action head; defaults are those that ``action_head_cfg`` may leave out."""

    diffusion: AttentionShape = AttentionShape(32, 48, 16, 1024)
    context: AttentionShape = AttentionShape(32, 64, 4)
    action_dim: Size = 32
    action_horizon: Size = 16
    backbone_embedding_dim: Size = 2048
    hidden_size: Size = 1024
    input_embedding_dim: Size = 1536
    max_state_dim: Size = 64
    num_target_vision_tokens: Size = 32
    num_timestep_buckets: Size = 1000
    max_seq_len: Size = 1024
    max_num_embodiments: Size = 32
    num_inference_timesteps: Annotated[int, Ge(2), Le(100)] = 4
    """Denoising steps, where the options do not say another number."""


@dataclass(frozen=True)
class _Diffusion(AttentionShape):
    """``diffusion_model_cfg``."""

    num_attention_heads: Size = 32
    attention_head_dim: Size = 48
    num_layers: Depth = 16
    output_dim: Size = 1024
    cross_attention_dim: Size | None = None


@dataclass(frozen=True)
class _Context(AttentionShape):
    """``vl_self_attention_cfg``."""

    num_attention_heads: Size = 32
    attention_head_dim: Size = 64
    num_layers: Depth = 4


@dataclass(frozen=True)
class _Head(HeadShape):
    """``action_head_cfg``."""

    max_action_dim: Size | None = None
    diffusion_model_cfg: _Diffusion = _Diffusion()
    vl_self_attention_cfg: _Context = _Context()


@dataclass(frozen=True)
class _Backbone:
    """``backbone_cfg``."""

    select_layer: Depth = 12


@dataclass(frozen=True)
class _Text(QwenShape):
    """``text_config``: what it may say beside sizes."""

    rope_parameters: Rope | None = None


@dataclass(frozen=True)
class _Eagle:
    """``eagle_config``, or ``eagle/config.json``."""

    vision_config: SiglipShape = SiglipShape()
    text_config: _Text = _Text()
    force_image_size: Pixels | None = None
    image_token_index: Annotated[int, Ge(0)] = 151669


@dataclass(frozen=True)
class _Config(Origin):
    """``config.json``: all that decides anything."""

    action_head_cfg: _Head = _Head()
    action_dim: Size | None = None
    action_horizon: Size | None = None
    backbone_cfg: _Backbone | None = None
    eagle_config: _Eagle | None = None


@dataclass(frozen=True, kw_only=True)
class Header(CheckpointHeader):
    """A checkpoint before its weights are read."""

    siglip: SiglipShape
    qwen: QwenShape
    head: HeadShape
    image_token: int
    """Id of the token that stands for a piece of a picture."""

    @property
    def metadata_file(self) -> Path:
        """Where :attr:`metadata` is from.

        Raises:
            CheckpointError: there is none.
        """
        file = self.folder / METADATA
        if file.is_file():
            return file
        if self.base is not None:
            return self.base.metadata_file
        raise CheckpointError(
            f"{self.folder} lacks {METADATA}, which holds the statistics that states and actions are scaled with: copy it "
            "from the run that the checkpoint was tuned in"
        )

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What ``experiment_cfg/metadata.json`` holds, by embodiment tag."""
        return read_json(self.metadata_file)

    def tag(self, wanted: str | None) -> str:
        """Return an embodiment's tag.

        Args:
            wanted: None: the only one there is.

        Raises:
            ConfigError: no such embodiment, with those there are.
        """
        there = sorted(self.metadata)
        if wanted is None and len(there) == 1:
            return there[0]
        if wanted not in self.metadata:
            raise ConfigError(
                f"model.embodiment_tag: got {wanted!r}, wanted one of {', '.join(there) or 'none'} ({self.metadata_file}); for a "
                "robot of your own, tune the checkpoint on its demonstrations first, which writes its statistics there"
            )
        assert wanted is not None
        return wanted

    def cameras(self, tag: str) -> tuple[str, ...]:
        """Return the names of a robot's pictures, in order."""
        return embodiments.cameras(self.metadata[tag], f"{self.metadata_file}: {tag}")

    def embodiment(
        self,
        tag: str,
        kind: Normalisation,
        state_keys: tuple[str, ...] | None,
        action_keys: tuple[str, ...] | None,
    ) -> Embodiment:
        """Return what the checkpoint knows of a robot; see :func:`rlvla_model_gr00t.embodiments.embodiment`."""
        return embodiments.embodiment(self.metadata[tag], self.metadata_file, tag, kind, state_keys, action_keys)

    @cached_property
    def adapter(self) -> AdapterHeader | None:
        """The LoRA adapter on the base, beside the head's weights; None: there is none."""
        beside = (self.folder / "adapter_config.json").is_file()
        return read_adapter(self.folder) if beside else super().adapter

    def tokenizer(self, configured: str | None) -> Path:
        """Return the folder with the tokenizer's files.

        Args:
            configured: ``model.tokenizer_path``; None: looked for in the checkpoint and in ``eagle/`` below it.

        Raises:
            CheckpointError: there is none, with what to provide.
        """
        from rlvla.hub import located

        folders = [self.folder, self.folder / "eagle"]
        if self.base is not None:
            folders += [self.base.folder, self.base.folder / "eagle"]
        if configured is not None:
            folders = [located(configured, option="model.tokenizer_path")]
        whole, *parts = TOKENIZER
        lacking = {folder: [name for name in parts if not (folder / name).is_file()] for folder in folders}
        for folder in folders:
            if (folder / whole).is_file() or not lacking[folder]:
                return folder
        some = [f" ({folder} lacks {', '.join(names)})" for folder, names in lacking.items() if len(names) < len(parts)]
        raise CheckpointError(
            f"model.tokenizer_path: got {configured!r}, and found no tokenizer in {', '.join(map(str, folders))}"
            f"{''.join(some)}. GR00T N1.5's checkpoints come without one: give a folder (or 'org/name' on the model hub) with the Eagle processor's "
            "vocab.json, merges.txt and added_tokens.json, or its tokenizer.json"
        )


def read_header(folder: Path, *, headers_only: bool = True) -> Header:
    """Return what a folder's JSON files say.

    Args:
        folder: of the checkpoint.
        headers_only: the JSON files of its base are enough, where it has one on the model hub.

    Raises:
        CheckpointError: not a GR00T N1.5 checkpoint, or sizes that no GR00T has.
    """
    header = _own_header(folder)
    if (named := header.base_name) is None:
        return header
    return replace(header, base=base_header(folder, named, _own_base, headers_only=headers_only))


def _own_base(folder: Path) -> Header:
    return _own_header(folder, "named as a base")


def _own_header(folder: Path, named_by: str = "model.path") -> Header:
    """Return what a folder's own files say."""
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} holds no config.json; wanted a folder with a GR00T N1.5 checkpoint ({named_by})"
        )
    config = read_json(file)
    _check_version(folder, config, named_by)
    refuse_others(config, _FIXED, file)
    found = read_as(_Config, config, file)
    eagle = _eagle(file, config, found)
    head, layers = found.action_head_cfg, (found.backbone_cfg or _Backbone()).select_layer
    header = Header(
        folder=folder,
        config=config,
        siglip=eagle.vision_config,
        qwen=replace(text_shape(QwenShape, eagle.text_config), num_hidden_layers=layers),
        head=replace(head, diffusion=head.diffusion_model_cfg, context=head.vl_self_attention_cfg),
        image_token=eagle.image_token_index,
        **found.origin(),
    )
    _check_sizes(header, found, eagle)
    return header


def _eagle(file: Path, config: Mapping[str, Any], found: _Config) -> _Eagle:
    """Return what is said of the backbone, in ``config.json`` or in a file beside it."""
    beside = file.with_name("eagle") / file.name
    if found.eagle_config is not None or not beside.is_file():
        refuse_others(config, {f"eagle_config.{name}": value for name, value in _EAGLE_FIXED.items()}, file)
        return found.eagle_config or _Eagle()
    data = read_json(beside)
    refuse_others(data, _EAGLE_FIXED, beside)
    return read_as(_Eagle, data, beside)


def _check_version(folder: Path, config: Mapping[str, Any], named_by: str) -> None:
    kind = config.get("model_type")
    if kind == "gr00t_n1_5":
        return
    told = f"{kind} {config.get('architectures')}"
    version = re.search(r"n1(?:[._]|d)(\d)", told, re.IGNORECASE)
    if version is not None and version[1] != "5":
        raise CheckpointError(
            f"{folder} holds GR00T N1.{version[1]} (model_type {kind!r}), wanted N1.5: backbone and head of later and earlier "
            f"versions are other networks ({named_by})"
        )
    raise CheckpointError(f"{folder} holds a {kind!r} model, wanted 'gr00t_n1_5' ({named_by})")


def _check_sizes(header: Header, found: _Config, eagle: _Eagle) -> None:
    head, qwen, siglip, written = header.head, header.qwen, header.siglip, found.action_head_cfg
    equal = {
        "action_dim is action_head_cfg's": (found.action_dim, head.action_dim),
        "max_action_dim is action_dim": (written.max_action_dim, head.action_dim),
        "action_horizon is action_head_cfg's": (found.action_horizon, head.action_horizon),
        "cross_attention_dim is backbone_embedding_dim": (
            written.diffusion_model_cfg.cross_attention_dim,
            head.backbone_embedding_dim,
        ),
        "vl_self_attention_cfg is as wide as backbone_embedding_dim": (head.context.width, head.backbone_embedding_dim),
        "backbone_embedding_dim is the language model's hidden_size": (head.backbone_embedding_dim, qwen.hidden_size),
        "diffusion_model_cfg is as wide as input_embedding_dim": (head.diffusion.width, head.input_embedding_dim),
        "diffusion_model_cfg's output_dim is hidden_size": (head.diffusion.output_dim, head.hidden_size),
        "force_image_size is vision_config's image_size": (eagle.force_image_size, siglip.image_size),
    }
    multiples = {
        "image_size is a multiple of patch_size": (siglip.image_size, siglip.patch_size),
        "vision_config's hidden_size is a multiple of its heads": (siglip.hidden_size, siglip.num_attention_heads),
        "text_config's heads are a multiple of num_key_value_heads": (
            qwen.num_attention_heads,
            qwen.num_key_value_heads,
        ),
        "head_dim is even": (qwen.head_dim, 2),
        "input_embedding_dim is even": (head.input_embedding_dim, 2),
    }
    below = {
        "image_token_index is below vocab_size": (header.image_token, qwen.vocab_size),
        "max_seq_len is action_horizon or more": (head.action_horizon, head.max_seq_len + 1),
    }
    broken = [(rule, *pair) for rule, pair in equal.items() if pair[0] not in (None, pair[1])]
    broken += [(rule, *pair) for rule, pair in multiples.items() if pair[0] % pair[1]]
    broken += [(rule, *pair) for rule, pair in below.items() if pair[0] >= pair[1]]
    if broken:
        lines = [f"{rule} (got {one} and {other})" for rule, one, other in broken]
        raise CheckpointError(f"{header.folder}/config.json: sizes do not go together, wanted: {'; '.join(lines)}")
