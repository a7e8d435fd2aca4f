"""Where a checkpoint is: a folder, or a repository on the model hub at a revision. Light: no torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rlvla.errors import CheckpointError

_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")
_HEADERS = ["*.json", "*merges.txt"]
_WHOLE = [*_HEADERS, "*.safetensors", "*.model", "*_checkpoint.pt", "*.py"]
"""``.py`` files are passed on with exports as they are, and never run."""


def located(path: str, *, headers_only: bool = False, option: str = "model.path") -> Path:
    """Return the local folder of a checkpoint, downloading what is not there yet; a broken download is continued.

    Args:
        path: a folder, or ``org/name@revision`` (a branch, tag or commit; the default branch without).
        headers_only: JSON files (and merges of a tokenizer) are enough.
        option: what says so, for errors.

    Raises:
        CheckpointError: neither a folder nor something that the hub has, or the hub does not answer.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return place
    named = _NAME.match(path)
    if named is None:
        raise CheckpointError(f"{option}: {path}: no such folder; wanted one, or 'org/name@revision' on the model hub")
    from huggingface_hub import constants, snapshot_download

    try:
        found = snapshot_download(
            named["repository"],
            revision=named["revision"],
            allow_patterns=_HEADERS if headers_only else _WHOLE,
            cache_dir=constants.HF_HUB_CACHE,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except Exception as error:  # the library's errors, its HTTP library's, and the system's
        raise CheckpointError(
            f"{option}: {path}: no such folder here, and not found on the model hub ({type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}): correct the path, or the name and revision, or the connection"
        ) from error
    return Path(found)


def settled(path: str | None) -> str | None:
    """Return a folder's absolute path, which holds wherever a run is opened again; anything else as it is."""
    return str(place.absolute()) if path and (place := Path(path).expanduser()).is_dir() else path


def revision_of(folder: Path) -> str | None:
    """Return the commit of a folder that came from the hub."""
    return folder.name if folder.parent.name == "snapshots" else None
