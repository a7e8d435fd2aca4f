"""REINFORCE: the smallest policy gradient (Williams 1992)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

import rlvla
from rlvla.specs import AlgorithmSpec

if TYPE_CHECKING:
    from reinforce.algorithm import Reinforce

__version__ = "1.0.0"


@rlvla.config
class ReinforceConfig:
    """REINFORCE with the batch's mean return as baseline."""

    window: Annotated[int, Ge(1)] = 8
    """Chunk steps of one environment in a unit."""
    discount: Annotated[float, Ge(0), Le(1)] = 0.7
    """Of a chunk's reward for each chunk that it lies ahead; what follows the window counts as nothing."""
    entropy_weight: Annotated[float, Ge(0)] = 0.02
    """Of the entropy of the actions, in nats a log-prob entry; keeps exploration alive while pictures are learnt."""
    minibatch_size: Annotated[int, Ge(1)] = 64
    """Samples (chunks) in an optimizer step."""


def describe(config: ReinforceConfig) -> AlgorithmSpec:
    """Return what REINFORCE consumes: windows, once, on-policy."""
    return AlgorithmSpec(
        unit="window",
        credit_level="chunk",
        ratio_level="chunk",
        values=False,
        window=config.window,
        minibatch_size=config.minibatch_size,
        max_staleness=0,
        entropy_bonus=config.entropy_weight > 0,
    )


plugin: rlvla.Plugin[ReinforceConfig, Reinforce] = rlvla.Plugin(
    config=ReinforceConfig, target="reinforce.algorithm:Reinforce", describe=describe
)
