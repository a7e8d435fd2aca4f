"""What a checkpoint's JSON files say: sizes, embodiments with their statistics, which files hold what. Light: no torch.

``config.json`` has the action head's sizes; those of the backbone are in no public config, so they are carried here and
may be overridden (``eagle_config`` in it, or ``eagle/config.json`` beside it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlvla.checkpoint_header import AdapterHeader, adapter_of, missing, read_adapter, read_json, shards_of
from rlvla.errors import CheckpointError, ConfigError

T = TypeVar("T")
METADATA = "experiment_cfg/metadata.json"
EMBODIMENTS: Mapping[str, Mapping[str, int]] = {
    "nvidia": {"new_embodiment": 31, "agibot_genie1": 26, "gr1": 24, "oxe_droid": 17},
    "rlinf": {"libero_franka": 31, "isaaclab_franka": 31, "maniskill_widowx": 30, "new_embodiment": 10},
}
"""Tag to the row of weights of each embodiment, in the two published tables. They disagree in ``new_embodiment``."""
Normalisation = Literal["min_max", "q99", "mean_std"]


@dataclass(frozen=True)
class SiglipShape:
    """Sizes of the vision tower."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    image_size: int = 224
    patch_size: int = 14

    @property
    def tokens(self) -> int:
        """Tokens of one picture."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class QwenShape:
    """Sizes of the language model, whose layers above ``select_layer`` were cut off."""

    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 12
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151680
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of a stack of transformer blocks."""

    num_attention_heads: int
    attention_head_dim: int
    num_layers: int
    output_dim: int = 0

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


@dataclass(frozen=True)
class HeadShape:
    """Sizes of the action head; defaults are those that ``action_head_cfg`` may leave out."""

    diffusion: AttentionShape = AttentionShape(32, 48, 16, 1024)
    context: AttentionShape = AttentionShape(32, 64, 4)
    action_dim: int = 32
    action_horizon: int = 16
    backbone_embedding_dim: int = 2048
    hidden_size: int = 1024
    input_embedding_dim: int = 1536
    max_state_dim: int = 64
    num_target_vision_tokens: int = 32
    num_timestep_buckets: int = 1000
    max_seq_len: int = 1024
    max_num_embodiments: int = 32
    add_pos_embed: bool = True


@dataclass(frozen=True)
class Scaling:
    """A part's numbers as the network sees them: ``raw = offset + scale * normalised``; one entry a dimension."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]
    """0 where the data never changed: the network sees 0, and gives the offset."""
    clipped: bool = False
    """Normalised states beyond [-1, 1] are cut off."""


@dataclass(frozen=True)
class Embodiment:
    """A robot that the checkpoint knows."""

    tag: str
    cameras: tuple[str, ...]
    """Names of its pictures, in order."""
    state: Scaling
    action: Scaling


@dataclass(frozen=True)
class Header:
    """A checkpoint before its weights are read."""

    folder: Path
    config: Mapping[str, Any]
    siglip: SiglipShape
    qwen: QwenShape
    head: HeadShape
    image_token: int
    """Id of the token that stands for a piece of a picture."""
    base: Header | None = None
    """Of the checkpoint that this folder's weights belong on."""
    base_name: str | None = None
    """Its folder, or ``org/name@revision``."""

    @property
    def random_seed(self) -> int | None:
        """Seed of weights that are drawn instead of read (full size without 5 GB on disk, for benchmarks); None: read."""
        return self.config.get("rlvla_random")

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What ``experiment_cfg/metadata.json`` holds, by embodiment tag.

        Raises:
            CheckpointError: there is none.
        """
        file = self.folder / METADATA
        if file.is_file():
            return _robots(file)
        if self.base is not None:
            return self.base.metadata
        raise CheckpointError(
            f"{self.folder} lacks {METADATA}, which holds the statistics that states and actions are scaled with: copy it "
            "from the run that the checkpoint was tuned in"
        )

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
                f"model.embodiment_tag: got {wanted!r}, wanted one of {', '.join(there)} ({self.folder / METADATA}); for a "
                "robot of your own, tune the checkpoint on its demonstrations first, which writes its statistics there"
            )
        assert wanted is not None
        return wanted

    def embodiment(
        self,
        tag: str,
        kind: Normalisation,
        state_keys: tuple[str, ...] | None,
        action_keys: tuple[str, ...] | None,
    ) -> Embodiment:
        """Return what the checkpoint knows of a robot.

        Args:
            tag: of :meth:`tag`.
            kind: which statistics.
            state_keys: parts of the state, in the simulator's order; None: all, as they are listed.
            action_keys: likewise.

        Raises:
            ConfigError: parts or statistics that are not there; all of them.
        """
        data = self.metadata[tag]
        modalities, statistics = data.get("modalities", {}), data.get("statistics", {})
        problems: list[str] = []
        parts: dict[str, Scaling] = {}
        for part, keys in (("state", state_keys), ("action", action_keys)):
            there = modalities.get(part) or {}
            chosen = tuple(there) if keys is None else keys
            if unknown := [key for key in chosen if key not in there]:
                problems.append(
                    f"model.{part}_keys: {tag} has no {part} {', '.join(unknown)}; it has {', '.join(there)}"
                )
                continue
            found = [_ranges(tag, part, key, statistics.get(part, {}).get(key, {}), kind, problems) for key in chosen]
            lengths = [_size(there[key]) for key in chosen]
            problems += [
                f"{self.folder / METADATA}: {part} {key!r} of {tag} has {size} dimensions and statistics of {len(one[0])}"
                for key, size, one in zip(chosen, lengths, found, strict=True)
                if one[0] and len(one[0]) != size
            ]
            offsets, scales = (tuple(number for one in found for number in one[place]) for place in (0, 1))
            parts[part] = Scaling(offsets, scales, clipped=kind == "q99")
        if problems:
            raise ConfigError(problems)
        return Embodiment(tag, tuple(modalities.get("video") or {}), parts["state"], parts["action"])

    @cached_property
    def shards(self) -> tuple[Path, ...]:
        """Files with this folder's weights."""
        return shards_of(self.folder)

    def missing_shards(self) -> list[str]:
        """Return names of weight files that should be there."""
        return missing(self.shards)

    @property
    def adapter(self) -> Path | None:
        """Folder of a LoRA adapter on the base; None: there is none."""
        return self.folder if (self.folder / "adapter_config.json").is_file() else adapter_of(self.folder)

    @property
    def adapter_header(self) -> AdapterHeader:
        """Rank and scale of the adapter."""
        assert self.adapter is not None
        return read_adapter(self.adapter)

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
            folders = [located(configured)]
        for folder in folders:
            if (folder / "tokenizer.json").is_file() or all(
                (folder / name).is_file() for name in ("vocab.json", "merges.txt", "added_tokens.json")
            ):
                return folder
        raise CheckpointError(
            f"model.tokenizer_path: got {configured!r}, and found no tokenizer in {', '.join(map(str, folders))}. GR00T "
            "N1.5's checkpoints come without one: give a folder (or 'org/name' on the model hub) with the Eagle processor's "
            "vocab.json, merges.txt and added_tokens.json, or its tokenizer.json"
        )


def row_of(tag: str, table: str | None, number: int | None, shape: HeadShape) -> int:
    """Return the row of weights that belongs to an embodiment.

    Args:
        tag: its name.
        table: ``nvidia`` or ``rlinf``; None: either, where they do not disagree.
        number: the row itself, whatever the tables say.
        shape: of the head.

    Raises:
        ConfigError: no table knows the tag, or they disagree.
    """
    if number is None:
        tables = {name: one[tag] for name, one in EMBODIMENTS.items() if tag in one and table in (None, name)}
        if len(set(tables.values())) != 1:
            said = ", ".join(f"{name} {row}" for name, row in tables.items()) or "no row"
            raise ConfigError(
                f"model.embodiment_table: got {table!r}; published tables give {tag!r} {said}: choose the one that the "
                "checkpoint was trained with, or give the row itself as model.embodiment_id"
            )
        number = next(iter(tables.values()))
    if number >= shape.max_num_embodiments:
        raise ConfigError(f"model.embodiment_id: got {number}, wanted a row below {shape.max_num_embodiments}")
    return number


def read_header(folder: Path, *, headers_only: bool = True) -> Header:
    """Return what a folder's JSON files say.

    Args:
        folder: of the checkpoint.
        headers_only: the JSON files of its base are enough, where it has one on the model hub.

    Raises:
        CheckpointError: not a GR00T N1.5 checkpoint, or sizes that no GR00T has.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} holds no config.json; wanted a folder with a GR00T N1.5 checkpoint (model.path)"
        )
    config = read_json(file)
    _check_version(folder, config)
    eagle = config.get("eagle_config")
    if eagle is None and (folder / "eagle/config.json").is_file():
        eagle = read_json(folder / "eagle/config.json")
    eagle = eagle or {}
    select = int((config.get("backbone_cfg") or {}).get("select_layer", 12))
    header = Header(
        folder=folder,
        config=config,
        siglip=_shape(folder, SiglipShape(), eagle.get("vision_config", {}), "vision_config"),
        qwen=replace(
            _shape(folder, QwenShape(), eagle.get("text_config", {}), "text_config"), num_hidden_layers=select
        ),
        head=_head(folder, config.get("action_head_cfg", {})),
        image_token=int(eagle.get("image_token_index", 151669)),
    )
    _check_sizes(header)
    named = config.get("rlvla_base")
    if named is None:
        return header
    from rlvla.hub import located

    base = read_header(located(str(named), headers_only=headers_only), headers_only=headers_only)
    return replace(header, base=base, base_name=str(named))


def _check_version(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("model_type")
    if kind == "gr00t_n1_5":
        return
    told = f"{kind} {config.get('architectures')}"
    version = re.search(r"n1(?:[._]|d)(\d)", told, re.IGNORECASE)
    if version is not None and version[1] != "5":
        raise CheckpointError(
            f"{folder} holds GR00T N1.{version[1]} (model_type {kind!r}), wanted N1.5: backbone and head of later and earlier "
            "versions are other networks (model.path)"
        )
    raise CheckpointError(f"{folder} holds a {kind!r} model, wanted 'gr00t_n1_5' (model.path)")


def _head(folder: Path, config: Mapping[str, Any]) -> HeadShape:
    if odd := [name for name in ("use_vlln", "add_pos_embed") if config.get(name, True) is not True]:
        raise CheckpointError(
            f"{folder}: action_head_cfg switches {' and '.join(odd)} off, which no public GR00T N1.5 does"
        )
    head = _shape(folder, HeadShape(), config, "action_head_cfg")
    diffusion = _shape(folder, head.diffusion, config.get("diffusion_model_cfg", {}), "diffusion_model_cfg")
    context = _shape(folder, head.context, config.get("vl_self_attention_cfg", {}), "vl_self_attention_cfg")
    return replace(head, diffusion=diffusion, context=context)


def _check_sizes(header: Header) -> None:
    head = header.head
    wrong = {
        "vl_self_attention_cfg is as wide as backbone_embedding_dim": head.context.width == head.backbone_embedding_dim,
        "backbone_embedding_dim is the language model's hidden_size": head.backbone_embedding_dim
        == header.qwen.hidden_size,
        "diffusion_model_cfg is as wide as input_embedding_dim": head.diffusion.width == head.input_embedding_dim,
        "diffusion_model_cfg's output_dim is hidden_size": head.diffusion.output_dim == head.hidden_size,
        "image_size is a multiple of patch_size": header.siglip.image_size % header.siglip.patch_size == 0,
    }
    if broken := [rule for rule, holds in wrong.items() if not holds]:
        raise CheckpointError(f"{header.folder}: sizes do not go together, wanted: {'; '.join(broken)}")


def _shape(folder: Path, default: T, data: Any, where: str) -> T:
    """Return sizes with what a part of the config says instead.

    Raises:
        CheckpointError: a size that is no number.
    """
    if not isinstance(data, dict):
        raise CheckpointError(f"{folder}/config.json: {where} is a {type(data).__name__}, wanted an object")
    sizes = {name: one for name, one in vars(default).items() if isinstance(one, (int, float))}
    known = {name: data[name] for name in sizes if name in data}
    if wrong := [
        name
        for name, one in known.items()
        if not isinstance(one, (int, float)) or (one <= 0 and sizes[name] > 0 and one is not False)
    ]:
        raise CheckpointError(
            f"{folder}/config.json: {where}.{wrong[0]} is {known[wrong[0]]!r}, wanted a number above 0; download it again"
        )
    return replace(default, **known)  # type: ignore[type-var]


def _robots(file: Path) -> dict[str, Any]:
    """Return what a metadata file says of each robot.

    Raises:
        CheckpointError: it is not made of modalities and statistics.
    """
    robots = read_json(file)
    for tag, robot in robots.items():
        for part in ("modalities", "statistics"):
            kinds = robot.get(part) if isinstance(robot, dict) else None
            if not isinstance(kinds, dict) or not all(isinstance(one, dict) for one in kinds.values()):
                raise CheckpointError(
                    f"{file}: {part} of {tag!r} is missing or no object of objects; copy the file again"
                )
    return robots


def _size(modality: Mapping[str, Any]) -> int:
    shape = modality.get("shape", [1])
    return int(shape if isinstance(shape, int) else shape[0])


def _ranges(
    tag: str, part: str, key: str, statistics: Mapping[str, Any], kind: Normalisation, problems: list[str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return offset and scale of each dimension; adds to ``problems`` what is missing."""
    names = {"min_max": ("min", "max"), "q99": ("q01", "q99"), "mean_std": ("mean", "std")}[kind]
    if lost := [name for name in names if name not in statistics]:
        has = ", ".join(sorted(statistics)) or "none"
        problems.append(
            f"model.normalisation: {tag} has no {' and '.join(lost)} of its {part} {key!r}; statistics there: {has}"
        )
        return (), ()
    try:
        first, second = (tuple(map(float, statistics[name])) for name in names)
    except (TypeError, ValueError):
        problems.append(f"{tag}: {' and '.join(names)} of its {part} {key!r} are not lists of numbers (metadata.json)")
        return (), ()
    if len(first) != len(second):
        problems.append(f"{tag}: {' and '.join(names)} of its {part} {key!r} are of different lengths (metadata.json)")
        return (), ()
    if kind == "mean_std":
        return first, second
    pairs = list(zip(first, second, strict=True))
    return tuple((low + high) / 2 for low, high in pairs), tuple((high - low) / 2 for low, high in pairs)
