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

    window: Annotated[int, Ge(1)] = 16
    """Chunk steps of one environment in a unit."""
    discount: Annotated[float, Ge(0), Le(1)] = 0.9
    """Of a chunk's reward for each chunk that it lies ahead; what follows the window counts as nothing."""


def describe(config: ReinforceConfig) -> AlgorithmSpec:
    """Return what REINFORCE consumes: windows, once, on-policy."""
    return AlgorithmSpec(
        unit="window", credit_level="chunk", ratio_level="chunk", values=False, window=config.window, max_staleness=0
    )


plugin: rlvla.Plugin[ReinforceConfig, Reinforce] = rlvla.Plugin(
    config=ReinforceConfig, target="reinforce.algorithm:Reinforce", describe=describe
)
