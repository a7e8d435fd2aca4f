"""A small vision-language-action policy: pictures, instruction and proprioception to discrete action tokens.

Some 70 000 parameters, trained from scratch in a minute on a CPU. It takes any simulator: any cameras, any state, any
bounded continuous action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.errors import ConfigError
from rlvla.specs import ModelCost, ModelSpec, Role

if TYPE_CHECKING:
    from rlvla_model_tiny.model import TinyModel

__version__ = "0.1.0"


@rlvla.config
class TinyConfig:
    """A small vision-language policy with discrete action tokens, trainable from scratch."""

    path: str | None = None
    """Folder with saved weights to start from, for instance ``model`` in a checkpoint; None: fresh ones. A value head that
    is not there, or of another width, starts fresh."""
    cameras: tuple[Role, ...] = ("primary",)
    """Roles of the pictures it looks at; none: the instruction and the state alone."""
    horizon: Annotated[int, Ge(1), Le(64)] = 4
    """Actions in a chunk."""
    bins: Annotated[int, Ge(2), Le(1024)] = 32
    """Tokens of one action dimension, evenly over its range."""
    basis: Annotated[int, Ge(1)] = 6
    """Cosines that the logits over the bins are made of; neighbouring bins then learn together (about twice as fast)."""
    image_size: Annotated[int, Ge(16)] = 64
    """Pictures are scaled to this height and width."""
    patch: Annotated[int, Ge(2)] = 4
    """Height and width of an image patch; must divide ``image_size``."""
    width: Annotated[int, Ge(4)] = 32
    """Features of a patch and of the instruction."""
    queries: Annotated[int, Ge(1)] = 4
    """Places in each picture that the instruction asks about."""
    hidden: Annotated[int, Ge(8)] = 128
    """Units in the two hidden layers."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Of the token distribution, in acting and training alike."""


def describe(config: TinyConfig) -> ModelSpec:
    """Return what the policy needs and gives."""
    if config.image_size % config.patch:
        raise ConfigError(
            f"model.patch: got {config.patch}, wanted a divisor of model.image_size ({config.image_size})"
        )
    return ModelSpec(
        horizon=config.horizon,
        tokens_per_action=None,
        cameras=config.cameras,
        state=False,
        imitation=True,
        start="path",
        cost=ModelCost(
            "2 CPU cores", "cpu", call=0.0022, row=0.00006, sample=0.0006, parameters=72_000, trainable=72_000
        ),
    )


plugin: rlvla.Plugin[TinyConfig, TinyModel] = rlvla.Plugin(
    config=TinyConfig, target="rlvla_model_tiny.model:TinyModel", describe=describe
)
