"""What models share that stand on a public checkpoint folder: which one, by what name, and with which weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rlvla import weight_files
from rlvla.checkpoint_header import CheckpointHeader
from rlvla.hub import revision_of
from rlvla.model import Model


class CheckpointModel(Model):
    """A model whose ``config`` has a ``path``."""

    config: Any
    header: CheckpointHeader

    @cached_property
    def base_weights(self) -> Mapping[str, str]:
        """What tells the weights that training started from from others: size and hash of each file, or the seed, as read."""
        base = self.header.whole
        return weight_files.fingerprints(base.shards, base.random_seed)

    def check_base(self, stored: CheckpointHeader) -> None:
        """Make sure that what training changed stands on the weights that it was trained on.

        Raises:
            CheckpointError: it does not; in which files.
        """
        weight_files.check_base(stored.folder, stored.base_files, self.header.whole.folder, self.base_weights)

    def base_name(self) -> str:
        """Return what names the checkpoint below adapters and heads, anywhere or at least on this machine."""
        if self.header.base_name is not None:
            return self.header.base_name
        path, revision = str(self.config.path), revision_of(self.header.folder)
        if revision is None or Path(path).expanduser().is_dir():
            return str(self.header.folder.resolve())
        return f"{path.partition('@')[0]}@{revision}"

    def manifest(self) -> Mapping[str, Any]:
        return {
            "path": self.config.path,
            "folder": str(self.header.folder),
            "revision": revision_of(self.header.whole.folder),
            "files": dict(self.base_weights),
        }
