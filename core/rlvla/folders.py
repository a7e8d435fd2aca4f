"""Folders that a command makes. Light."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlvla.errors import ConfigError


def fresh(folder: Path) -> Path:
    """Return a folder that is to be written.

    Raises:
        ConfigError: it is there already.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: already there; give a folder that does not exist yet")
    return folder


def written(folder: Path, write: Callable[[Path], object]) -> Path:
    """Return a folder that a function wrote.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error}; give a folder on a disk with space, that you may write"
        ) from error
    return folder
