"""rlvla: reinforcement learning for vision-language-action policies, in simulators.

import rlvla

run = rlvla.build(sim="tabletop", model="tiny", algo="ppo", scheduler="sync")
run.train(steps=100)
print(run.evaluate())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlvla.configs import RunConfig as RunConfig
    from rlvla.configs import config as config
    from rlvla.errors import ConfigError as ConfigError
    from rlvla.errors import RlvlaError as RlvlaError
    from rlvla.gym import as_vector_env as as_vector_env
    from rlvla.gym import from_gym as from_gym
    from rlvla.hookspecs import hookimpl as hookimpl
    from rlvla.plugin import Plugin as Plugin
    from rlvla.plugin import find as find
    from rlvla.policy import Policy as Policy
    from rlvla.policy import load as load
    from rlvla.run import Run as Run
    from rlvla.run import build as build
    from rlvla.run import resume as resume

# name: module. Imported on first use, so that `import rlvla` costs milliseconds.
_EXPORTS = {
    "ConfigError": "errors",
    "Plugin": "plugin",
    "Policy": "policy",
    "RlvlaError": "errors",
    "Run": "run",
    "RunConfig": "configs",
    "as_vector_env": "gym",
    "build": "run",
    "config": "configs",
    "find": "plugin",
    "from_gym": "gym",
    "hookimpl": "hookspecs",
    "load": "policy",
    "resume": "run",
}
__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlvla' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlvla.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
