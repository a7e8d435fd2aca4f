"""Weights on disk: safetensors in shards with an index, read strictly and written again."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvla.checkpoint_header import INDEX, missing
from rlvla.errors import CheckpointError

SHARD_BYTES = 5 * 10**9
DTYPES: Mapping[Literal["bf16", "fp32"], torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""By the names that options have for them."""
_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_KINDS = ", ".join(str(one).removeprefix("torch.") for one in _DTYPES)


def read_shards(folder: Path, shards: Sequence[Path]) -> dict[str, Tensor]:
    """Return a model's weights by public name.

    Raises:
        CheckpointError: no weights, a shard that is missing or damaged, or weights that are not finite.
    """
    if lost := missing(shards):
        raise CheckpointError(f"{folder} lacks {', '.join(lost)}, named in {INDEX}: download it again")
    if not shards and (loose := sorted(folder.glob("model-*.safetensors"))):
        raise CheckpointError(
            f"{folder} holds {loose[0].name}, but no {INDEX} that says which shards there are: download it"
        )
    if not shards:
        raise CheckpointError(f"{folder} holds no weights (model.safetensors, or shards and {INDEX}): download them")
    found: dict[str, Tensor] = {}
    owners: dict[str, str] = {}
    for file in shards:
        for stored, tensor in read_tensors(file).items():
            name, owner = public_name(stored), f"{stored!r} of {file.name}"
            if name in owners:
                raise CheckpointError(
                    f"{folder}: {name!r} is there twice, as {owners[name]} and as {owner}: remove the one that is not meant"
                )
            found[name], owners[name] = tensor, owner
    return found


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors or ``.pt`` file.

    Raises:
        CheckpointError: it cannot be read, or holds numbers that are not finite.
    """
    try:
        if file.suffix == ".pt":
            loaded = torch.load(file, map_location="cpu", weights_only=True)
            found = {name.removeprefix("module."): tensor for name, tensor in loaded.items()}
        else:
            found = load_file(file)
    except (OSError, SafetensorError, RuntimeError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}; it is damaged or incomplete: download it again"
        ) from error
    except Exception as error:  # an unpickler refuses objects by errors of its own
        raise CheckpointError(
            f"{file} cannot be read safely: {type(error).__name__}: {error}; wanted a file of tensors alone, as a state_dict"
        ) from error
    if strange := next((name for name, one in found.items() if not isinstance(one, Tensor)), None):
        raise CheckpointError(
            f"{file}: {strange!r} is a {type(found[strange]).__name__}, wanted tensors alone, as a state_dict: save "
            "module.state_dict() itself, not a mapping that holds it"
        )
    bad = [name for name, tensor in found.items() if not _is_finite(tensor)]
    if bad:
        raise CheckpointError(
            f"{file} holds weights that are not finite: {_listed(bad)}; download it again, or take an earlier checkpoint of "
            "the training that wrote it"
        )
    return found


def _is_finite(tensor: Tensor) -> bool:
    return tensor.dtype not in _DTYPES or bool(torch.isfinite(tensor.sum(dtype=torch.float32)))


def fingerprint(file: Path) -> str:
    """Return size and SHA-256 of a file's first and last MiB and of 512 samples between: other weights give another one.

    It takes no time, and a matrix of a 500th of the file or more is in it.
    """
    size, mib, sample = file.stat().st_size, 1 << 20, 1 << 12
    with file.open("rb") as stream:
        digest = hashlib.sha256(stream.read(mib))
        for number in range(512) if size > 2 * mib else ():
            stream.seek(mib + (size - 2 * mib) * number // 512)
            digest.update(stream.read(sample))
        stream.seek(max(0, size - mib))
        digest.update(stream.read(mib))
    return f"{size} bytes, {digest.hexdigest()[:16]}"


def fingerprints(shards: Sequence[Path], seed: int | None = None) -> dict[str, str]:
    """Return what tells a checkpoint's weights from others: the fingerprint of each file, or the seed that drew them."""
    if seed is not None:
        return {"drawn": f"seed {seed}"}
    return {file.name: fingerprint(file) for file in shards}


def check_base(trained: Path, stored: Mapping[str, str] | None, base: Path, now: Mapping[str, str]) -> None:
    """Make sure that what training changed stands on the weights that it was trained on.

    Args:
        trained: folder of what training changed.
        stored: :func:`fingerprints` of its base, when it was written; None: not known.
        base: folder of the base.
        now: its fingerprints.

    Raises:
        CheckpointError: they differ; in which files.
    """
    if stored is None or stored == now:
        return
    changed = [
        f"{name}: got {now.get(name, 'no such file')}, wanted {stored.get(name, 'no such file')}"
        for name in sorted({*now, *stored})
        if now.get(name) != stored.get(name)
    ]
    what = (
        f"{trained} was trained on other weights than {base} holds now (put the old files back; where they are gone, train "
        "again):"
    )
    raise CheckpointError("\n  ".join([what, *changed]))


def public_name(name: str) -> str:
    """Return a weight's public name, whatever LoRA training left around it."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def compare(where: object, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Make sure that names and shapes are the same, and numbers such as weights are stored as.

    Raises:
        CheckpointError: a report of what is missing, unexpected, of another shape, or quantised.
    """
    missing, unexpected = set(wanted) - set(found), set(found) - set(wanted)
    other = [
        f"{name}: {tuple(found[name].shape)} there, {tuple(wanted[name].shape)} here"
        for name in sorted(set(wanted) & set(found))
        if wanted[name].shape != found[name].shape
    ]
    quantised = [
        f"{name}: got {str(found[name].dtype).removeprefix('torch.')}, wanted one of {_KINDS}"
        for name in sorted(set(wanted) & set(found))
        if found[name].dtype not in _DTYPES
    ]
    lines = [
        *([f"missing ({len(missing)} of {len(wanted)}): {_listed(missing)}"] if missing else []),
        *([f"unexpected ({len(unexpected)}): {_listed(unexpected)}"] if unexpected else []),
        *([f"of another shape ({len(other)}): {_some(other)}"] if other else []),
        *([f"not stored as weights are, but quantised ({len(quantised)}): {_some(quantised)}"] if quantised else []),
    ]
    if lines:
        what = f"{where} does not hold the weights of this model (config.json and weights must be of one checkpoint):"
        raise CheckpointError("\n  ".join([what, *lines]))


def _some(lines: Sequence[str]) -> str:
    return f"{'; '.join(lines[:6])}{' ...' if lines[6:] else ''}"


def _listed(names: Iterable[str]) -> str:
    """Return names with layer numbers counted instead of listed."""
    kinds = Counter(re.sub(r"\.\d+\.", ".*.", name) for name in names)
    shown = [f"{kind} ({count}x)" if count > 1 else kind for kind, count in sorted(kinds.items())]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more kinds" if shown[12:] else "")


def as_stored(
    weights: Mapping[str, Tensor], stored: Mapping[str, torch.dtype], dtype: Literal["bf16", "fp32"] | None
) -> dict[str, Tensor]:
    """Return weights as an export holds them.

    Args:
        weights: by public name.
        stored: dtypes in the files that they came from; those that are in none stay as they are.
        dtype: of all instead; None: those.
    """
    if dtype is not None:
        return {name: one.to(DTYPES[dtype]) for name, one in weights.items()}
    return {name: one.to(stored.get(name, one.dtype)) for name, one in weights.items()}


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write weights in shards with an index, in the public layout."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        this = tensor.numel() * tensor.element_size()
        if size and size + this > SHARD_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += this
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        write_tensors(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(one.numel() * one.element_size() for one in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1))


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file."""
    save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, file, metadata={"format": "pt"})


@torch.no_grad()
def copy_weights(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Copy in place, name by name."""
    for name, tensor in mine.items():
        tensor.copy_(theirs[name])
