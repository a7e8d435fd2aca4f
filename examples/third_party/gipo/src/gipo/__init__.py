"""GIPO: importance ratios that fade instead of being clipped (Lu et al. 2026, arXiv:2603.03955)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.specs import AlgorithmSpec, RatioLevel

if TYPE_CHECKING:
    from gipo.algorithm import Gipo

__version__ = "1.0.0"


@rlvla.config
class GipoConfig:
    """Actor and critic on windows, with a Gaussian weight on the log-ratio in place of PPO's clip."""

    width: Annotated[float, Gt(0)] = 0.5
    """Of the Gaussian, in log-ratio: an element that is ``width`` away from the acting policy keeps 61 % of its weight."""
    ratio_level: RatioLevel = "token"
    """Where log-probs are compared: one ratio a chunk, an action or a token. At ``chunk`` nearly everything fades."""
    window: Annotated[int, Ge(1)] = 10
    """Chunk steps of one environment in a unit."""
    passes: Annotated[int, Ge(1)] = 3
    """Times that each sample is trained on."""
    minibatch_size: Annotated[int, Ge(1)] | None = 320
    """Samples (chunks) in an optimizer step; None: all of the training step's."""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99
    """Discount of a chunk."""
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95
    """Weight of longer returns in the advantage: 1 the full return, 0 one chunk and the next value."""
    value_weight: Annotated[float, Gt(0)] = 0.5
    """Of the squared error of the values, halved."""
    max_staleness: Annotated[int, Ge(0)] = 1
    """Versions that a unit's oldest chunk may lie behind; far data fades by itself."""


def describe(config: GipoConfig) -> AlgorithmSpec:
    """Return what GIPO consumes: windows, with a value for each chunk."""
    return AlgorithmSpec(
        unit="window",
        credit_level="chunk",
        ratio_level=config.ratio_level,
        values=True,
        window=config.window,
        passes=config.passes,
        minibatch_size=config.minibatch_size,
        max_staleness=config.max_staleness,
    )


plugin: rlvla.Plugin[GipoConfig, Gipo] = rlvla.Plugin(
    config=GipoConfig, target="gipo.algorithm:Gipo", describe=describe
)
