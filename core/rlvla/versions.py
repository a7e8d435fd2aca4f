"""What changes numbers: the versions that a run's manifest and an evaluation's protocol name. Light: imports nothing heavy."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import metadata

from rlvla.configs import RunConfig
from rlvla.plugin import GROUPS

_PACKAGES = ("rlvla", "torch", "tensordict", "numpy", "gymnasium", "transformers", "peft", "timm")


def packages(config: RunConfig) -> dict[str, str]:
    """Return Python's, the platform's, and the versions of installed packages and chosen plugins."""
    return installed([getattr(config, kind).plugin.distribution for kind in GROUPS])


def installed(plugins: Sequence[str]) -> dict[str, str]:
    """Return Python's, the platform's, and the versions of installed packages and these distributions."""
    found = {"python": sys.version.partition(" ")[0], "platform": platform.platform()}
    for name in (*_PACKAGES, *plugins):
        try:
            found[name] = metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return found


def everywhere(config: RunConfig) -> dict[str, str]:
    """Return what every machine of a cluster must have alike: Python (``3.11``), the packages that actors use, chosen plugins."""
    wanted = installed([getattr(config, kind).plugin.distribution for kind in GROUPS])
    plugins = [getattr(config, kind).plugin.distribution for kind in GROUPS]
    found = {name: wanted[name] for name in ("rlvla", "torch", "tensordict", *plugins) if name in wanted}
    return {"python": ".".join(map(str, sys.version_info[:2])), **found}
