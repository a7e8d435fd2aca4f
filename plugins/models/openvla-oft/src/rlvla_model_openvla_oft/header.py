"""What a checkpoint's JSON files say: sizes, statistics, which files hold weights. Light: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from rlvla.checkpoint_header import (
    AdapterHeader,
    CheckpointHeader,
    Depth,
    Finite,
    Origin,
    Pixels,
    Positive,
    Rope,
    Size,
    adapter_of,
    base_header,
    read_adapter,
    read_as,
    read_json,
    refuse_others,
    text_shape,
)
from rlvla.errors import CheckpointError, ConfigError

HEADS = "rlvla_heads.safetensors"
"""What only training with rlvla adds."""
PATCH = 14
"""Height and width of an image patch in both towers."""
BINS = 256
"""Tokens that stand for actions, the last of the tokenizer's vocabulary."""

_Colour = tuple[Finite, Finite, Finite]
Colours = tuple[_Colour, _Colour]
"""Of each tower, of each of red, green and blue, for pictures in [0, 1]."""
MEANS: Colours = ((0.485, 0.456, 0.406), (0.5, 0.5, 0.5))
STDS: Colours = ((0.229, 0.224, 0.225), (0.5, 0.5, 0.5))
"""ImageNet's for DINO, one half for SigLIP; ``preprocessor_config.json`` says otherwise where it is there."""

_FIXED: Mapping[str, Any] = {
    "n_action_bins": BINS,
    "vision_backbone_id": "dinosiglip-vit-so-224px",
    "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
    "timm_override_act_layers": [None, None],
    "image_resize_strategy": "resize-naive",
    "arch_specifier": "no-align+fused-gelu-mlp",
    "llm_backbone_id": "llama2-7b-pure",
    "text_config.model_type": "llama",
    "text_config.hidden_act": "silu",
    "text_config.attention_bias": False,
    "text_config.mlp_bias": False,
    "text_config.tie_word_embeddings": False,
    "text_config.rope_scaling": None,
    "text_config.rope_parameters.rope_type": "default",
}
"""Fields of ``config.json`` by which other networks (or another prompt) differ, and what they are in every OpenVLA."""
_PREPROCESSOR_FIXED: Mapping[str, Any] = {"image_resize_strategy": "resize-naive", "tvf_do_letterbox": False}
"""The same of ``preprocessor_config.json``."""
_Depth = Annotated[int, Ge(2), Le(1000)]


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of the language model; defaults are those that ``text_config`` leaves out."""

    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Depth = 32
    num_attention_heads: Size = 32
    vocab_size: Size = 32000
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 10000.0


@dataclass(frozen=True)
class TowerShape:
    """Sizes of a vision tower."""

    width: Size
    depth: _Depth
    heads: Size
    mlp: Size


DINO = TowerShape(1024, 24, 16, 4096)
"""vit_large_patch14_reg4_dinov2: a class token, four registers, layer scale."""
SIGLIP = TowerShape(1152, 27, 16, 4304)
"""vit_so400m_patch14_siglip: an attention pool, which is not used."""


@dataclass(frozen=True)
class _Text(LlamaShape):
    """``text_config``: what it may say beside sizes."""

    vocab_size: Size = 32064
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope_parameters: Rope | None = None


@dataclass(frozen=True)
class _Config(Origin):
    """``config.json``: all that decides anything."""

    image_sizes: tuple[Pixels, Pixels] = (224, 224)
    text_config: _Text = field(default_factory=_Text)
    pad_token_id: Annotated[int, Ge(0)] = 32000
    pad_to_multiple_of: Annotated[int, Ge(0)] = 64
    use_fused_vision_backbone: Literal[True] | None = None
    norm_stats: dict[str, Any] | None = None
    rlvla_towers: dict[Literal["featurizer", "fused_featurizer"], TowerShape] = field(default_factory=dict)
    rlvla_cameras: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Range:
    """Of the actions, or the states, of one data set."""

    q01: tuple[Finite, ...] | None = None
    q99: tuple[Finite, ...] | None = None
    min: tuple[Finite, ...] | None = None
    max: tuple[Finite, ...] | None = None
    mask: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class _Preprocessor:
    """``preprocessor_config.json``."""

    means: Colours = MEANS
    stds: tuple[tuple[Positive, Positive, Positive], tuple[Positive, Positive, Positive]] = STDS


@dataclass(frozen=True)
class Statistics:
    """Ranges of one data set: A action dimensions, S state dimensions."""

    key: str
    low: tuple[float, ...]
    """``[A]``, what -1 stands for."""
    high: tuple[float, ...]
    """``[A]``, what 1 stands for."""
    scaled: tuple[bool, ...]
    """``[A]``, false where the action is as it is."""
    state_low: tuple[float, ...] = ()
    """``[S]``."""
    state_high: tuple[float, ...] = ()
    """``[S]``."""
    state_scaled: tuple[bool, ...] = ()
    """``[S]``, false where the state is as it is, but for being cut off at -1 and 1."""

    def ranges(self) -> str:
        """Return the ranges of actions in words."""
        parts = [
            f"{low:.3g} to {high:.3g}" if scaled else "itself"
            for low, high, scaled in zip(self.low, self.high, self.scaled, strict=True)
        ]
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Header(CheckpointHeader):
    """A checkpoint before its weights are read."""

    llama: LlamaShape
    dino: TowerShape
    siglip: TowerShape
    image_size: int
    """Height and width of what the towers see."""
    pad_id: int = 32000
    colours: tuple[Colours, Colours] = (MEANS, STDS)
    """Means and standard deviations that pictures are normalised with."""
    beyond_tokens: int = 64
    """Rows of the vocabulary after the tokenizer's."""
    cameras: tuple[str, ...] | None = None
    """Roles that rlvla trained it with, in order; None: it does not say."""

    @property
    def last_action_id(self) -> int:
        """The id after the last action token: size of the tokenizer's vocabulary without padding."""
        return self.llama.vocab_size - self.beyond_tokens

    @property
    def statistics_file(self) -> Path:
        """Where :attr:`data_sets` are from."""
        file = self.folder / "dataset_statistics.json"
        if file.is_file():
            return file
        if self.base is not None and not self.config.get("norm_stats"):
            return self.base.statistics_file
        return self.folder / "config.json"

    @cached_property
    def data_sets(self) -> Mapping[str, Any]:
        """Statistics by data set: ``dataset_statistics.json``, else the config's ``norm_stats``, else the base's."""
        file = self.statistics_file
        found = read_json(file)
        if file.name == "config.json":
            found = found.get("norm_stats")
        if not found and file.name != "config.json":
            raise CheckpointError(
                f"{file} holds no data set: take the file that training wrote, or remove it where config.json has norm_stats"
            )
        if not found:
            raise CheckpointError(
                f"{file.parent} has neither dataset_statistics.json nor norm_stats in config.json: add the file that "
                "training wrote beside the weights"
            )
        return dict(found)

    def statistics(self, key: str | None, kind: Literal["q99", "bounds"], *, state: bool) -> Statistics:
        """Return a data set's ranges.

        Args:
            key: its name, with or without ``_no_noops``; None: the only one.
            kind: percentiles or bounds.
            state: the state's too.

        Raises:
            ConfigError: no such data set, with the list of those there are; or it lacks what is asked for.
            CheckpointError: ranges that are damaged.
        """
        there, chosen = self.data_sets, key
        if key is None:
            chosen = next(iter(there)) if len(there) == 1 else None
        elif key not in there:
            chosen = f"{key}_no_noops" if f"{key}_no_noops" in there else None
        if chosen is None:
            raise ConfigError(
                f"model.unnorm_key: got {key!r}, wanted one of {', '.join(sorted(there))} ({self.folder})"
            )
        low, high, scaled = self._range(chosen, "action", kind)
        of_state = self._range(chosen, "proprio", kind) if state else ((), (), ())
        return Statistics(chosen, low, high, scaled, *of_state)

    def _range(
        self, chosen: str, part: Literal["action", "proprio"], kind: Literal["q99", "bounds"]
    ) -> tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...]]:
        """Return lower and upper ends, and which dimensions are scaled to them."""
        where = f"{self.statistics_file}: {chosen}"
        whole = read_as(dict[str, Any], self.data_sets[chosen], where).get(part, {})
        found = read_as(_Range, whole, f"{where}.{part}")
        names = ("q01", "q99") if kind == "q99" else ("min", "max")
        ends = [getattr(found, name) for name in names]
        if lacking := [name for name, end in zip(names, ends, strict=True) if end is None]:
            raise ConfigError(
                f"model.normalisation: {chosen} has no {' and no '.join(map(repr, lacking))} of its "
                f"{'actions' if part == 'action' else 'states'} ({self.statistics_file}); it has "
                f"{', '.join(sorted(whole)) or 'nothing'}: take the other normalisation, or another model.unnorm_key"
            )
        low, high = ends
        mask = found.mask if found.mask is not None else (True,) * len(low)
        lengths = {names[0]: len(low), names[1]: len(high), "mask": len(mask)}
        if len(set(lengths.values())) > 1 or not low:
            raise CheckpointError(
                f"{where}.{part}: got lengths {lengths}, wanted one number for each dimension in each: take the file that "
                "training wrote"
            )
        if crossed := [place for place, is_scaled in enumerate(mask) if is_scaled and low[place] > high[place]]:
            raise CheckpointError(
                f"{where}.{part}: got {names[0]} above {names[1]} in dimensions {', '.join(map(str, crossed))}, wanted it "
                "below: every action would be turned round; take the file that training wrote"
            )
        return low, high, mask

    def tokenizer(self) -> Path:
        """Return the file of the tokenizer, in the folder or else its base's.

        Raises:
            CheckpointError: there is none.
        """
        found = self.beside("tokenizer.json")
        if not found:
            raise CheckpointError(f"{self.folder} holds no tokenizer.json: add the one that lay beside the weights")
        return found[0]

    def beside(self, pattern: str) -> list[Path]:
        """Return files of a kind in the folder, or else its base's."""
        folders = [self.folder, *([self.base.folder] if self.base is not None else [])]
        return next((found for folder in folders if (found := sorted(folder.glob(pattern)))), [])


def read_header(folder: Path, *, headers_only: bool = True) -> Header:
    """Return what a folder's JSON files say.

    Args:
        folder: of the checkpoint.
        headers_only: the JSON files of its base are enough, where it has one on the model hub.

    Raises:
        CheckpointError: not an OpenVLA checkpoint, or sizes that no OpenVLA has.
    """
    if not (folder / "config.json").is_file():
        return _bare_adapter(folder, headers_only)
    header = _own_header(folder)
    if header.adapter is not None and header.base_name is None:
        header = replace(header, base_name=_named(header.adapter))
    if (named := header.base_name) is None:
        return header
    return replace(header, base=base_header(folder, named, _own_base, headers_only=headers_only))


def _named(adapter: AdapterHeader) -> str:
    """Return the base that an adapter names."""
    if adapter.base is None:
        raise CheckpointError(
            f"{adapter.folder}/adapter_config.json names no base_model_name_or_path: put the folder (or 'org/name@revision') "
            "there of the checkpoint that the adapter belongs to"
        )
    return adapter.base


def _bare_adapter(folder: Path, headers_only: bool) -> Header:
    """Return the header of a folder that peft alone wrote: all but the adapter is its base's."""
    place = adapter_of(folder)
    if place is None:
        raise CheckpointError(f"{folder} holds no config.json; wanted a folder with an OpenVLA checkpoint (model.path)")
    if (folder / HEADS).is_file():  # of a run, which notes there what the adapter stands on
        raise CheckpointError(f"{folder} lacks config.json, which was written with {HEADS}: put it back")
    named = _named(read_adapter(place))
    base = base_header(folder, named, _own_base, headers_only=headers_only)
    return replace(base, folder=folder, config={}, random_seed=None, base=base, base_name=named)


def _own_base(folder: Path) -> Header:
    return _own_header(folder, "named as a base")


def _own_header(folder: Path, named_by: str = "model.path") -> Header:
    """Return what ``config.json`` says."""
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json; wanted a folder with an OpenVLA checkpoint ({named_by})")
    config = read_json(file)
    kind = config.get("model_type")
    if kind != "openvla":
        raise CheckpointError(f"{folder} holds a {kind!r} model, wanted 'openvla' ({named_by})")
    refuse_others(config, _FIXED, file)
    found = read_as(_Config, config, file)
    dino = found.rlvla_towers.get("featurizer", DINO)
    siglip = found.rlvla_towers.get("fused_featurizer", SIGLIP)
    _check_sizes(file, found, {"featurizer": dino, "fused_featurizer": siglip})
    return Header(
        folder=folder,
        config=config,
        llama=text_shape(LlamaShape, found.text_config),
        dino=dino,
        siglip=siglip,
        image_size=_image_size(folder, found.image_sizes),
        pad_id=found.pad_token_id,
        colours=_colours(folder / "preprocessor_config.json"),
        beyond_tokens=found.pad_to_multiple_of,
        random_seed=found.rlvla_random,
        cameras=found.rlvla_cameras,
        base_name=found.rlvla_base,
        base_files=found.rlvla_base_files,
    )


def _colours(file: Path) -> tuple[Colours, Colours]:
    data = read_json(file) if file.is_file() else {}
    refuse_others(data, _PREPROCESSOR_FIXED, file)
    found = read_as(_Preprocessor, data, file)
    return found.means, found.stds


def _check_sizes(file: Path, found: _Config, towers: Mapping[str, TowerShape]) -> None:
    """Make sure that heads divide widths, and Llama's in even parts, whose halves rotary positions turn; and that the
    vocabulary has room for the tokens that actions are."""
    llama = found.text_config
    heads, tokens = llama.num_attention_heads, llama.vocab_size - found.pad_to_multiple_of
    widths = {"text_config.hidden_size": (llama.hidden_size, 2 * heads, "two for each head")}
    widths |= {
        f"rlvla_towers.{name}.width": (tower.width, tower.heads, "one for each head") for name, tower in towers.items()
    }
    odd = [
        f"{name}: got {width}, wanted a multiple of {parts} ({why})"
        for name, (width, parts, why) in widths.items()
        if width % parts
    ]
    if llama.num_key_value_heads not in (None, heads):
        odd.append(
            f"text_config.num_key_value_heads: got {llama.num_key_value_heads}, wanted as many as heads, {heads}"
        )
    if not odd and llama.head_dim not in (None, llama.hidden_size // heads):
        odd.append(f"text_config.head_dim: got {llama.head_dim}, wanted {llama.hidden_size // heads}")
    if tokens < BINS:
        odd.append(
            f"pad_to_multiple_of: got {found.pad_to_multiple_of}, which leaves {tokens} of text_config.vocab_size "
            f"({llama.vocab_size}) tokens, wanted {BINS} or more"
        )
    elif found.pad_token_id >= llama.vocab_size:
        odd.append(
            f"pad_token_id: got {found.pad_token_id}, wanted less than text_config.vocab_size, {llama.vocab_size}"
        )
    if odd:
        raise CheckpointError(f"{file}: {'; '.join(odd)}; take the config.json that belongs to the weights")


def _image_size(folder: Path, sizes: tuple[int, int]) -> int:
    if sizes[0] != sizes[1] or sizes[0] % PATCH:
        raise CheckpointError(
            f"{folder}: image_sizes is {list(sizes)}, wanted two equal multiples of {PATCH}, one a tower: take the "
            "config.json that belongs to the weights"
        )
    return sizes[0]
