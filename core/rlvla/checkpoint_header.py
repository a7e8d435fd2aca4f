"""What the JSON files of a public checkpoint folder say of its weights. Light: no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from annotated_types import Ge, Le

from rlvla.errors import CheckpointError

T = TypeVar("T")
H = TypeVar("H", bound="CheckpointHeader")
_FAR, _NEAR = 1e38, 1e-37
Finite = Annotated[float, Ge(-_FAR), Le(_FAR)]
"""Not "not a number", and it and its difference to another are finite in fp32."""
Positive = Annotated[Finite, Ge(_NEAR)]
"""Not zero in fp32 either."""
Size = Annotated[int, Ge(1), Le(2**18)]
"""Of a layer, or a number of tokens: products of three are tensors that can at least be described."""
Depth = Annotated[int, Ge(1), Le(1000)]
"""Layers of a network."""
Pixels = Annotated[int, Ge(1), Le(4096)]
"""Height and width of a picture."""
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; download it again") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} holds a {type(data).__name__}, wanted an object; download it again")
    return data


def read_as(kind: type[T], data: Any, where: object) -> T:
    """Return a part of a JSON file as a checked dataclass; keys that it has no field for are ignored. Files beside weights, and
    any other that somebody else wrote.

    Args:
        kind: a dataclass with bounds in ``Annotated`` and choices in ``Literal``.
        data: the part.
        where: the file, and the path in it, for errors.

    Raises:
        CheckpointError: all fields that are missing or hold something else, each with what was got and wanted.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        lines = [_misfit(item) for item in error.errors(include_url=False)]
        lines = [*lines[:6], *([f"and {len(lines) - 6} more"] if lines[6:] else [])]
        raise CheckpointError(
            "\n  ".join([f"{where} is damaged, or not what is read here (download it again):", *lines])
        ) from error


def _misfit(item: Any) -> str:
    """Say path, got and wanted of one pydantic error."""
    path = "".join(f"{part}." for part in item["loc"])[:-1]
    if item["type"] == "missing":
        return f"{path}: missing"
    wanted = str(item["msg"]).removeprefix("Input should be ").partition(" or an instance of ")[0]
    bound = {*item.get("ctx", {}).values()}
    if isinstance(item["input"], float) and not math.isfinite(item["input"]):
        wanted = "a finite number"
    elif bound & {_FAR, -_FAR}:
        wanted = f"a number from {-_FAR:g} to {_FAR:g}, which fp32 can hold"
    elif _NEAR in bound:
        wanted = "greater than 0, in fp32 too"
    got = repr(item["input"])
    got = got if len(got) < 80 else f"{got[:80]} ..."
    return f"{path}: got {got}, wanted {wanted}" if path else f"got {got}, wanted {wanted}"


_NOTHING = object()


def refuse_others(data: Mapping[str, Any], wanted: Mapping[str, Any], where: object) -> None:
    """Make sure that fields which choose among networks choose the one that is here; fields that are not there do.

    Args:
        data: what the file holds.
        wanted: what a field says, by its path in the file (``part.field``).
        where: the file.

    Raises:
        CheckpointError: all that say otherwise, each with what was got and wanted.
    """
    got = {path: _at(data, path) for path in wanted}
    lines = [
        f"{path}: got {got[path]!r}, wanted {value!r}"
        for path, value in wanted.items()
        if got[path] is not _NOTHING and got[path] != value
    ]
    if lines:
        what = f"{where} asks for another network than the one that is computed here; take a checkpoint that does not:"
        raise CheckpointError("\n  ".join([what, *lines]))


def _at(data: Any, path: str) -> Any:
    """Return what lies below some names."""
    for name in path.split("."):
        data = data.get(name, _NOTHING) if isinstance(data, Mapping) else _NOTHING
    return data


@dataclass(frozen=True)
class Rope:
    """Rotary positions of a language model, as newer ``text_config``s say them."""

    rope_theta: Positive | None = None


def text_shape(kind: type[T], text: Any) -> T:
    """Return a language model's sizes, of what its ``text_config`` says.

    Args:
        kind: a dataclass of sizes, with ``rope_theta``.
        text: has its fields, and ``rope_parameters``.
    """
    sizes = {one.name: getattr(text, one.name) for one in fields(kind)}  # type: ignore[arg-type]
    rope = text.rope_parameters or Rope()
    return kind(**{**sizes, "rope_theta": rope.rope_theta or text.rope_theta})


@dataclass(frozen=True)
class Origin:
    """What rlvla adds to a ``config.json``: where weights are from that are not in the folder."""

    rlvla_random: Annotated[int, Ge(0)] | None = None
    rlvla_base: str | None = None
    rlvla_base_files: dict[str, str] | None = None

    def origin(self) -> dict[str, Any]:
        """Return it as fields of a :class:`CheckpointHeader`."""
        return {
            "random_seed": self.rlvla_random,
            "base_name": self.rlvla_base,
            "base_files": self.rlvla_base_files,
        }


@dataclass(frozen=True)
class _Index:
    """Of sharded weights."""

    weight_map: dict[str, str]


def shards_of(folder: Path) -> tuple[Path, ...]:
    """Return the files with a model's weights: those that the index names, or the only one; empty: there are none.

    Raises:
        CheckpointError: an index that is none.
    """
    index = folder / INDEX
    if not index.is_file():
        single = folder / "model.safetensors"
        return (single,) if single.is_file() else ()
    names = read_as(_Index, read_json(index), index).weight_map.values()
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(
            f"{index} names {outside[0]!r}, wanted names of files beside it; download the checkpoint again"
        )
    return tuple(folder / name for name in sorted(set(names)))


def missing(shards: Sequence[Path]) -> list[str]:
    """Return names of weight files that should be there."""
    return [file.name for file in shards if not file.is_file()]


def base_header(folder: Path, named: str, read: Callable[[Path], H], *, headers_only: bool) -> H:
    """Return the header of the checkpoint that an adapter, or heads, name as theirs.

    Args:
        folder: of the adapter, or heads.
        named: a folder, or ``org/name@revision``.
        read: what a folder says of itself.
        headers_only: its JSON files are enough, where it lies on the model hub.

    Raises:
        CheckpointError: it cannot be had, is the folder itself, another model's, or itself needs a base.
    """
    from rlvla.hub import located

    try:
        place = located(named, headers_only=headers_only, option=f"base of {folder}")
        if place.resolve() == folder.resolve():
            raise CheckpointError(f"{folder} names itself as its base")
        base = read(place)
    except CheckpointError as error:
        raise CheckpointError(
            f"the base that {folder} names, {named}, cannot be had: {error}; put the checkpoint there that it belongs to "
            "(rlvla_base in config.json, or base_model_name_or_path in adapter_config.json)"
        ) from error
    if base.base_name is not None or base.adapter is not None:
        raise CheckpointError(
            f"{folder} names {named} as its base, which holds no whole model but an adapter or heads: write the whole of it "
            "first (rlvla export), and name that folder"
        )
    return base


def adapter_of(folder: Path) -> Path | None:
    """Return the folder of a LoRA adapter beside no weights of the model itself; None: there is none."""
    places = (one for one in (folder, folder / "lora_adapter") if (one / "adapter_config.json").is_file())
    return None if shards_of(folder) else next(places, None)


@dataclass(frozen=True)
class AdapterHeader:
    """What peft's files say of a LoRA adapter."""

    folder: Path
    rank: int
    alpha: float
    """The product of its two matrices is scaled by this over the rank."""
    base: str | None
    """Folder, or ``org/name``, of the checkpoint below it."""

    @property
    def file(self) -> Path:
        """Its weights."""
        return self.folder / ADAPTER

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Public names of the layers that it has weights of, sorted; empty: its weights are not here yet.

        Raises:
            CheckpointError: the file is damaged.
        """
        if not self.file.is_file():
            return ()
        names = [name.removeprefix("base_model.model.").partition(".lora_")[0] for name in tensor_names(self.file)]
        return tuple(sorted(set(names)))


def tensor_names(file: Path) -> list[str]:
    """Return the names in a safetensors file.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > file.stat().st_size:
                raise ValueError(f"its header has {size} bytes, the file {file.stat().st_size}")
            data = json.loads(stream.read(size))
        if not isinstance(data, dict):
            raise ValueError(f"its header is a {type(data).__name__}, wanted an object")
        return [name for name in data if name != "__metadata__"]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}; it is damaged or incomplete: download it again"
        ) from error


@dataclass(frozen=True, kw_only=True)
class CheckpointHeader:
    """A checkpoint before its weights are read: what models share of it."""

    folder: Path
    config: Mapping[str, Any]
    """What its ``config.json`` holds."""
    random_seed: int | None = None
    """Seed of weights that are drawn instead of read (full size without gigabytes on disk, for benchmarks); None: read."""
    base: Self | None = None
    """Of the checkpoint that an adapter, or heads, alone belong to."""
    base_name: str | None = None
    """Its folder, or ``org/name@revision``."""
    base_files: Mapping[str, str] | None = None
    """What tells that checkpoint's weights from others, when training stood on them; None: not known."""

    def __post_init__(self) -> None:
        if self.random_seed is not None and self.shards:
            raise CheckpointError(
                f"{self.folder}/config.json says rlvla_random (weights are drawn, none are read), beside {self.shards[0].name}: "
                "remove the one that is not meant"
            )

    @cached_property
    def shards(self) -> tuple[Path, ...]:
        """Files with the folder's own weights; empty for an adapter alone."""
        return shards_of(self.folder)

    def missing_shards(self) -> list[str]:
        """Return names of weight files that should be there."""
        return missing(self.shards)

    @cached_property
    def adapter(self) -> AdapterHeader | None:
        """The LoRA adapter that is not merged into the weights; None: there is none."""
        place = adapter_of(self.folder)
        return read_adapter(place) if place is not None else None

    @property
    def whole(self) -> Self:
        """Of the checkpoint that has all weights: the base, where there is one."""
        return self if self.base is None else self.base


@dataclass(frozen=True)
class _Lora:
    """``adapter_config.json`` of plain LoRA."""

    r: Annotated[int, Ge(1)]
    lora_alpha: Positive
    base_model_name_or_path: str | None = None


_PLAIN: dict[str, Any] = {"peft_type": "LORA", "bias": "none"} | dict.fromkeys(
    (
        "fan_in_fan_out",
        "lora_bias",
        "use_rslora",
        "use_dora",
        "use_qalora",
        "use_bdlora",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "trainable_token_indices",
        "target_parameters",
        "layer_replication",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "velora_config",
        "monteclora_config",
    )
)
"""Fields by which other kinds differ in what they compute or hold, and what they are in plain LoRA; None: nothing."""


def read_adapter(folder: Path) -> AdapterHeader:
    """Return rank, scale and base of an adapter.

    Raises:
        CheckpointError: not plain LoRA (another kind, a rank or scale of single layers, biases, further weights), named.
    """
    file = folder / "adapter_config.json"
    found = read_json(file)
    if others := [
        f"{name} {found[name]!r} (wanted {plain!r})"
        for name, plain in _PLAIN.items()
        if found.get(name) and found[name] != plain
    ]:
        raise CheckpointError(
            f"{file}: got {', '.join(others)}: this is not plain LoRA, and would act otherwise than it was trained; merge it "
            "into its base with peft, and give that folder"
        )
    lora = read_as(_Lora, found, file)
    return AdapterHeader(folder, lora.r, lora.lora_alpha, lora.base_model_name_or_path)
