"""What the JSON files of a public checkpoint folder say of its weights. Light: no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Lt

from rlvla.errors import CheckpointError

T = TypeVar("T")
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
"""Neither infinite nor "not a number"."""
INDEX = "model.safetensors.index.json"


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
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
    wanted = {"less than inf": "a finite number", "greater than -inf": "a finite number"}.get(wanted, wanted)
    got = repr(item["input"])
    got = got if len(got) < 80 else f"{got[:80]} ..."
    return f"{path}: got {got}, wanted {wanted}" if path else f"got {got}, wanted {wanted}"


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


def base_of(folder: Path, named: str, *, headers_only: bool) -> Path:
    """Return the folder of the checkpoint that an adapter, or heads, name as theirs.

    Args:
        folder: of the adapter, or heads.
        named: a folder, or ``org/name@revision``.
        headers_only: its JSON files are enough, where it lies on the model hub.

    Raises:
        CheckpointError: it cannot be had, or is the folder itself.
    """
    from rlvla.hub import located

    try:
        place = located(named, headers_only=headers_only)
    except CheckpointError as error:
        raise CheckpointError(f"the base that {folder} names cannot be had: {error}") from error
    if place.resolve() == folder.resolve():
        raise CheckpointError(
            f"{folder} names itself as its base: put the checkpoint there that its adapter belongs to (rlvla_base in "
            "config.json, or base_model_name_or_path in adapter_config.json)"
        )
    return place


def no_whole_model(folder: Path, named: str) -> CheckpointError:
    """Return the error for a base that itself needs one."""
    return CheckpointError(
        f"{folder} names {named} as its base, which holds no whole model but an adapter or heads: write the whole of it "
        "first (rlvla export), and name that folder"
    )


def adapter_of(folder: Path) -> Path | None:
    """Return the folder of a LoRA adapter beside no weights of the model itself; None: there is none."""
    places = (one for one in (folder, folder / "lora_adapter") if (one / "adapter_config.json").is_file())
    return None if shards_of(folder) else next(places, None)


@dataclass(frozen=True)
class AdapterHeader:
    """What peft's ``adapter_config.json`` says of a LoRA adapter."""

    rank: int
    alpha: float
    """The product of its two matrices is scaled by this over the rank."""
    base: str | None
    """Folder, or ``org/name``, of the checkpoint below it."""


@dataclass(frozen=True)
class _Lora:
    """``adapter_config.json`` of plain LoRA."""

    r: Annotated[int, Ge(1)]
    lora_alpha: Annotated[float, Gt(0), Lt(math.inf)]
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
    return AdapterHeader(lora.r, lora.lora_alpha, lora.base_model_name_or_path)
