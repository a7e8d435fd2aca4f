"""What a checkpoint's JSON files say: sizes, statistics, which files hold weights. Light: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rlvla.checkpoint_header import adapter_of, missing, read_json, shards_of
from rlvla.errors import CheckpointError, ConfigError

PATCH = 14
"""Height and width of an image patch in both towers."""
BINS = 256
"""Tokens that stand for actions, the last of the tokenizer's vocabulary."""


Colours = tuple[tuple[float, ...], ...]
"""Of each tower, of each of red, green and blue, for pictures in [0, 1]."""
MEANS: Colours = ((0.485, 0.456, 0.406), (0.5, 0.5, 0.5))
STDS: Colours = ((0.229, 0.224, 0.225), (0.5, 0.5, 0.5))
"""ImageNet's for DINO, one half for SigLIP; ``preprocessor_config.json`` says otherwise where it is there."""


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of the language model; defaults are those that ``text_config`` leaves out."""

    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    vocab_size: int = 32000
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class TowerShape:
    """Sizes of a vision tower."""

    width: int
    depth: int
    heads: int
    mlp: int


DINO = TowerShape(1024, 24, 16, 4096)
"""vit_large_patch14_reg4_dinov2: a class token, four registers, layer scale."""
SIGLIP = TowerShape(1152, 27, 16, 4304)
"""vit_so400m_patch14_siglip: an attention pool, which is not used."""


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


@dataclass(frozen=True)
class Header:
    """A checkpoint before its weights are read."""

    folder: Path
    config: Mapping[str, Any]
    llama: LlamaShape
    dino: TowerShape
    siglip: TowerShape
    image_size: int
    """Height and width of what the towers see."""
    base: Header | None = None
    """Of the checkpoint that an adapter, or heads, alone belong to."""
    base_name: str | None = None
    """Its folder, or ``org/name@revision``."""

    @property
    def pad_id(self) -> int:
        return int(self.config.get("pad_token_id", 32000))

    @property
    def random_seed(self) -> int | None:
        """Seed of weights that are drawn instead of read (full size without 15 GB on disk, for benchmarks); None: read."""
        return self.config.get("rlvla_random")

    @property
    def last_action_id(self) -> int:
        """The id after the last action token: size of the tokenizer's vocabulary without padding."""
        return self.llama.vocab_size - int(self.config.get("pad_to_multiple_of", 64))

    @cached_property
    def data_sets(self) -> Mapping[str, Any]:
        """Statistics by data set: ``dataset_statistics.json``, else the config's ``norm_stats``."""
        file = self.folder / "dataset_statistics.json"
        found = read_json(file) if file.is_file() else self.config.get("norm_stats")
        if not found and self.base is not None:
            return self.base.data_sets
        if not found:
            raise CheckpointError(f"{self.folder} has neither dataset_statistics.json nor norm_stats in config.json")
        return dict(found)

    def statistics(self, key: str | None, kind: Literal["q99", "bounds"], *, state: bool) -> Statistics:
        """Return a data set's ranges.

        Args:
            key: its name, with or without ``_no_noops``; None: the only one.
            kind: percentiles or bounds.
            state: the state's too.

        Raises:
            ConfigError: no such data set, with the list of those there are; or it lacks what is asked for.
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
        names = ("q01", "q99") if kind == "q99" else ("min", "max")
        action, proprio = there[chosen].get("action", {}), there[chosen].get("proprio", {})
        problems = [
            f"model.normalisation: {chosen} has no {name!r} of its {what}s ({self.folder}); it has {', '.join(sorted(part))}"
            for what, part in (("action", action), *((("proprio", proprio),) if state else ()))
            for name in names
            if name not in part
        ]
        if not problems and len(action[names[0]]) != len(action[names[1]]):
            problems.append(
                f"{self.folder}: statistics of {chosen} have {names[0]} and {names[1]} of different lengths"
            )
        if problems:
            raise ConfigError(problems)
        low, high = (tuple(map(float, action[name])) for name in names)
        scaled = tuple(map(bool, action.get("mask", [True] * len(low))))
        state_low, state_high = (tuple(map(float, proprio[name])) if state else () for name in names)
        return Statistics(chosen, low, high, scaled, state_low, state_high)

    @cached_property
    def colours(self) -> tuple[Colours, Colours]:
        """Means and standard deviations that pictures are normalised with."""
        file = self.folder / "preprocessor_config.json"
        found = read_json(file) if file.is_file() else {}
        means, stds = (
            tuple(tuple(map(float, one)) for one in found.get(name, default))
            for name, default in (("means", MEANS), ("stds", STDS))
        )
        if [len(one) for one in (*means, *stds)] != [3] * 4:
            raise CheckpointError(f"{file}: means and stds are {means} and {stds}, wanted three numbers for each tower")
        return means, stds

    @cached_property
    def shards(self) -> tuple[Path, ...]:
        """Files with the model's weights; empty for an adapter alone."""
        return shards_of(self.folder)

    def missing_shards(self) -> list[str]:
        """Return names of weight files that should be there."""
        return missing(self.shards)

    @property
    def adapter(self) -> Path | None:
        """Folder of a LoRA adapter that is not merged into the weights; None: there is none."""
        return adapter_of(self.folder)

    @property
    def adapter_rank(self) -> int:
        """Rank of the adapter."""
        assert self.adapter is not None
        return int(read_json(self.adapter / "adapter_config.json")["r"])


def read_header(folder: Path, *, headers_only: bool = True) -> Header:
    """Return what a folder's JSON files say.

    Args:
        folder: of the checkpoint.
        headers_only: the JSON files of its base are enough, where it has one on the model hub.

    Raises:
        CheckpointError: not an OpenVLA checkpoint, or sizes that no OpenVLA has.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json; wanted a folder with an OpenVLA checkpoint (model.path)")
    config = read_json(file)
    kind = config.get("model_type")
    if kind != "openvla":
        raise CheckpointError(f"{folder} holds a {kind!r} model, wanted 'openvla' (model.path)")
    towers = config.get("rlvla_towers", {})
    header = Header(
        folder=folder,
        config=config,
        llama=_llama(folder, config.get("text_config", {})),
        dino=TowerShape(**towers["featurizer"]) if "featurizer" in towers else DINO,
        siglip=TowerShape(**towers["fused_featurizer"]) if "fused_featurizer" in towers else SIGLIP,
        image_size=_image_size(folder, config.get("image_sizes", [224, 224])),
    )
    if not towers and config.get("vision_backbone_id", "dinosiglip-vit-so-224px") != "dinosiglip-vit-so-224px":
        raise CheckpointError(
            f"{folder}: vision_backbone_id is {config['vision_backbone_id']!r}, wanted 'dinosiglip-vit-so-224px'"
        )
    named = config.get("rlvla_base")
    if header.adapter is not None and named is None:
        named = read_json(header.adapter / "adapter_config.json").get("base_model_name_or_path")
        if not named:
            raise CheckpointError(f"{header.adapter}/adapter_config.json names no base_model_name_or_path")
    if named is None:
        return header
    from rlvla.hub import located

    base = read_header(located(str(named), headers_only=headers_only), headers_only=headers_only)
    return replace(header, base=base, base_name=str(named))


def _llama(folder: Path, text: Mapping[str, Any]) -> LlamaShape:
    known = {name: text[name] for name in LlamaShape.__dataclass_fields__ if name in text}
    shape = LlamaShape(**{"vocab_size": 32064, **known})
    rope = text.get("rope_parameters") or {}
    if "rope_theta" in rope:
        shape = replace(shape, rope_theta=float(rope["rope_theta"]))
    odd = {
        "num_key_value_heads": text.get("num_key_value_heads", shape.num_attention_heads) != shape.num_attention_heads,
        "rope_scaling": text.get("rope_scaling") is not None or rope.get("rope_type", "default") != "default",
        "attention_bias": bool(text.get("attention_bias")),
        "tie_word_embeddings": bool(text.get("tie_word_embeddings")),
        "hidden_act": text.get("hidden_act", "silu") != "silu",
    }
    if any(odd.values()):
        names = ", ".join(name for name, is_odd in odd.items() if is_odd)
        raise CheckpointError(f"{folder}: text_config is not Llama 2's in {names}")
    return shape


def _image_size(folder: Path, sizes: Any) -> int:
    if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] % PATCH:
        raise CheckpointError(f"{folder}: image_sizes is {sizes}, wanted two equal multiples of {PATCH}, one a tower")
    return int(sizes[0])
