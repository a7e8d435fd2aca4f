"""Weights on disk: the public folders, read strictly and written again.

A folder holds the model's shards and their index, or a LoRA adapter alone that names its base. Beside them: L1 head and
proprio projector in files of their own (the public ``.pt`` are read without unpickling objects; written are safetensors),
and ``rlvla_heads.safetensors`` with what only training with rlvla adds.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvla.errors import CheckpointError
from rlvla_model_openvla_oft.header import Header

SHARD_BYTES = 5 * 10**9
HEADS = "rlvla_heads.safetensors"
ADAPTER = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_BESIDE = (*_TOKENIZER, "preprocessor_config.json", "generation_config.json")


def read_shards(header: Header) -> dict[str, Tensor]:
    """Return the model's weights by public name.

    Raises:
        CheckpointError: no weights, a shard that is missing or damaged, or weights that are not finite.
    """
    if missing := header.missing_shards():
        raise CheckpointError(f"{header.folder} lacks {', '.join(missing)}, named in {INDEX}: download it again")
    if not header.shards:
        raise CheckpointError(f"{header.folder} holds no weights (model.safetensors, or shards and {INDEX})")
    found: dict[str, Tensor] = {}
    for file in header.shards:
        found |= {public_name(name): tensor for name, tensor in read_tensors(file).items()}
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
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    except Exception as error:  # an unpickler refuses objects by errors of its own
        raise CheckpointError(f"{file} cannot be read safely: {type(error).__name__}: {error}") from error
    bad = [name for name, tensor in found.items() if not _is_finite(tensor)]
    if bad:
        raise CheckpointError(f"{file} holds weights that are not finite: {_listed(bad)}")
    return found


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum(dtype=torch.float32)))


def fingerprint(file: Path) -> str:
    """Return size and SHA-256 of a file's first and last MiB: other weights give another one, in no time."""
    size, mib = file.stat().st_size, 1 << 20
    with file.open("rb") as stream:
        digest = hashlib.sha256(stream.read(mib))
        stream.seek(max(0, size - mib))
        digest.update(stream.read(mib))
    return f"{size} bytes, {digest.hexdigest()[:16]}"


def public_name(name: str) -> str:
    """Return a weight's public name, whatever LoRA training left around it."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def compare(where: object, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Make sure that names and shapes are the same.

    Raises:
        CheckpointError: a report of what is missing, unexpected, or of another shape.
    """
    missing, unexpected = set(wanted) - set(found), set(found) - set(wanted)
    other = [
        f"{name}: {tuple(found[name].shape)} there, {tuple(wanted[name].shape)} here"
        for name in sorted(set(wanted) & set(found))
        if wanted[name].shape != found[name].shape
    ]
    lines = [
        *([f"missing ({len(missing)} of {len(wanted)}): {_listed(missing)}"] if missing else []),
        *([f"unexpected ({len(unexpected)}): {_listed(unexpected)}"] if unexpected else []),
        *([f"of another shape ({len(other)}): {'; '.join(other[:6])}{' ...' if other[6:] else ''}"] if other else []),
    ]
    if lines:
        raise CheckpointError("\n  ".join([f"{where} does not hold the weights of this model:", *lines]))


def _listed(names: Iterable[str]) -> str:
    """Return names with layer numbers counted instead of listed."""
    kinds = Counter(re.sub(r"\.\d+\.", ".*.", name) for name in names)
    shown = [f"{kind} ({count}x)" if count > 1 else kind for kind, count in sorted(kinds.items())]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more kinds" if shown[12:] else "")


def read_head(header: Header, kind: str) -> dict[str, Tensor]:
    """Return the weights of ``action_head`` or ``proprio_projector``, from the newest file with them.

    Raises:
        CheckpointError: there is no such file.
    """
    folders = [header.folder, *([header.base.folder] if header.base is not None else [])]
    for folder in folders:
        files = [*folder.glob(f"{kind}--*_checkpoint.safetensors"), *folder.glob(f"{kind}--*_checkpoint.pt")]
        if files:
            return read_tensors(max(files, key=_step))
    raise CheckpointError(f"{header.folder} holds no {kind}--*_checkpoint.pt (or .safetensors)")


def _step(file: Path) -> float:
    step = file.name.partition("--")[2].partition("_")[0]
    return float(step) if step.isdigit() else float("inf")


def write_head(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights of ``action_head`` or ``proprio_projector``."""
    _write(tensors, folder / f"{kind}--latest_checkpoint.safetensors")


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
        _write(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(one.numel() * one.element_size() for one in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1))


def write_heads(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what only training with rlvla adds."""
    if tensors:
        _write(tensors, folder / HEADS)


def write_adapter(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a LoRA adapter under peft's names."""
    _write(tensors, folder / ADAPTER)


def _write(tensors: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, file, metadata={"format": "pt"})


def write_headers(folder: Path, header: Header, base: str | None) -> None:
    """Write config and statistics of the checkpoint that training started from.

    Args:
        folder: made where it is not there.
        header: of that checkpoint.
        base: its name, where the folder is to hold no weights of the model itself; None: tokenizer and preprocessor too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = header.base or header
    config = dict(source.config) if base is None else {**source.config, "rlvla_base": base}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "dataset_statistics.json").write_text(json.dumps(dict(header.data_sets), indent=1))
    for name in _BESIDE if base is None else ():
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
