"""Behaviour cloning: the policy learns to give demonstrated actions a high probability."""

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

import rlvla
from rlvla.errors import ConfigError
from rlvla.specs import AlgorithmSpec

if TYPE_CHECKING:
    from rlvla_algo_bc.algorithm import BehaviourCloning as BehaviourCloning

__version__ = "0.1.0"
__all__ = ["BcConfig", "__version__", "describe", "plugin"]


@rlvla.config
class BcConfig:
    """Behaviour cloning from recorded demonstrations; simulators run for evaluation alone."""

    path: str | None = None
    """Folder of demonstrations, as ``rlvla record`` makes it; there is no default."""
    minibatch_size: Annotated[int, Ge(1)] = 256
    """Samples in an optimizer step: an env step of a demonstration and the actions from there on, as many as a chunk has."""
    minibatches_per_step: Annotated[int, Ge(1)] = 10
    """Optimizer steps in a training step. Samples are drawn so that each comes once before any comes again."""
    entropy_weight: Annotated[float, Ge(0)] = 0.0
    """Of the policy's mean entropy, in nats a log-prob entry; keeps it from becoming sure of what it saw once, which RL
    after it needs."""


def describe(config: BcConfig) -> AlgorithmSpec:
    """Return what behaviour cloning needs.

    Raises:
        ConfigError: no folder of demonstrations.
    """
    if config.path is None:
        raise ConfigError("algo.path: missing; wanted a folder of demonstrations, which `rlvla record` makes")
    return AlgorithmSpec(
        unit="demonstration",
        credit_level="chunk",
        ratio_level="token",
        values=False,
        units_per_step=config.minibatch_size * config.minibatches_per_step,
        minibatch_size=config.minibatch_size,
        demonstrations=config.path,
        entropy_bonus=config.entropy_weight > 0,
    )


plugin: "rlvla.Plugin[BcConfig, BehaviourCloning]" = rlvla.Plugin(
    config=BcConfig, target="rlvla_algo_bc.algorithm:BehaviourCloning", describe=describe
)
