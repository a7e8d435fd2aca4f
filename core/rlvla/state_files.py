"""The optimizer's state on disk: safetensors that torch's distributed checkpoint writes, one file a rank, read by any number.

A file says in its own JSON header which part of which tensor it holds, so that nothing is pickled and nothing has to be
gathered. A folder with ``optimizer.safetensors`` and nothing else is of before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor, distribute_tensor

from rlvla.weight_files import write_tensors

FOLDER = "optimizer"
ALONE = "model.safetensors"
_BEFORE = "optimizer.safetensors"


def write(folder: Path, tensors: Mapping[str, Tensor], together: bool) -> None:
    """Write tensors below a checkpoint's folder.

    Args:
        folder: of the checkpoint, which all ranks reach.
        tensors: by name; those that are cut among ranks are written part by part.
        together: all ranks write at the same time; else this one alone does.
    """
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    if together and tensors:
        state_dict_saver.save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(place), save_distributed=True))
    elif not together:
        write_tensors(tensors, place / ALONE)


def read(folder: Path, like: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Return what :func:`write` wrote, whoever wrote it, in the form that this rank wants.

    Args:
        folder: of the checkpoint.
        like: returns a tensor of a name's shape, cut like the parameter it belongs to; it is filled.

    Raises:
        CheckpointError: of ``like``.
    """
    before = folder / _BEFORE
    if before.is_file():
        return {name: _cut_like(like(name), tensor) for name, tensor in load_file(before).items()}
    reader = HuggingFaceStorageReader(str(folder / FOLDER))
    tensors = {name: like(name) for name in reader.read_metadata().state_dict_metadata}
    if tensors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it reads without asking other ranks, which is meant
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _cut_like(wanted: Tensor, tensor: Tensor) -> Tensor:
    if not isinstance(wanted, DTensor):
        return tensor
    return distribute_tensor(tensor.to(wanted.device), wanted.device_mesh, wanted.placements, src_data_rank=None)
