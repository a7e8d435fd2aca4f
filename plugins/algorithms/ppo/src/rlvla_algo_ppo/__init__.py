"""Proximal policy optimisation with a value function, for windows of action chunks."""

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.rl import options
from rlvla.specs import AlgorithmSpec, CreditLevel

if TYPE_CHECKING:
    from rlvla_algo_ppo.algorithm import Ppo as Ppo

__version__ = "0.1.0"
__all__ = ["PpoConfig", "__version__", "describe", "plugin"]


@rlvla.config
class PpoConfig(options.PolicyOptions):
    """Proximal Policy Optimisation: clipped policy steps along advantages of a learned value function."""

    credit_level: CreditLevel = "chunk"
    """Where reward, value and advantage live: one value head, or one for each action of a chunk. ``gamma`` and
    ``gae_lambda`` count in this unit."""
    window: Annotated[int, Ge(1)] = 10
    """Chunk steps of one environment that are trained on together, at most."""
    partial_reset: bool = True
    """An environment whose episode ends starts the next one within the window, and goes on with it in the next window.
    False: fixed-length episodes; every window starts an episode and is over when that ends or after ``window`` chunks, and
    what is left of either is not played."""
    windows_per_step: Annotated[int, Ge(1)] | None = None
    """Windows in a training step; None: one for each environment."""
    passes: Annotated[int, Ge(1)] = 3
    """Times that each sample is trained on."""
    minibatch_size: Annotated[int, Ge(1)] | None = 320
    """Samples (chunks) in an optimizer step, at most all of the training step's; None: all of the training step's. A smaller last one has its own
    denominator."""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99
    """Discount of a chunk, or of an action at credit level action (same horizon: ``gamma_chunk ** (1 / H)``)."""
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95
    """Weight of longer returns in the advantage: 1 the full return, 0 one step and the next value."""
    bootstrap: Literal["truncation", "always", "never"] = "truncation"
    """Episode ends that are followed by a value instead of nothing: step limits, success and failure too, none."""
    normalise_advantages: bool = True
    """Centre and scale advantages over all valid entries of the collected batch, over all ranks."""
    value_weight: Annotated[float, Gt(0)] = 1.0
    """Weight of the value loss."""
    value_clip: Annotated[float, Gt(0)] | None = None
    """Values that moved further than this from the collected ones stop learning, in reward units; None: no such bound."""
    huber_delta: Annotated[float, Gt(0)] | None = 10.0
    """Errors of the value beyond this count linearly, in reward units; None: always squared."""
    value_learning_rate_scale: Annotated[float, Gt(0)] = 1.0
    """What the learning rate is multiplied by for the value head."""
    critic_warmup: Annotated[int, Ge(0)] = 0
    """First training steps in which only the value's loss counts; in a model whose value head shares its trunk with the
    policy it moves the policy too."""


def describe(config: PpoConfig) -> AlgorithmSpec:
    """Return what PPO needs.

    Raises:
        ConfigError: options out of bounds, or that cannot work together; all of them.
    """
    options.refuse(options.bounds(config) + options.problems(config, config.credit_level))
    return AlgorithmSpec(
        unit="window",
        credit_level=config.credit_level,
        ratio_level=config.ratio_level,
        values=True,
        bootstrap_terminated=config.bootstrap == "always",
        units_per_step=config.windows_per_step,
        window=config.window,
        partial_reset=config.partial_reset,
        passes=config.passes,
        minibatch_size=config.minibatch_size,
        max_staleness=config.max_staleness,
        reference=config.kl_weight > 0,
        proximal=options.proximal_of(config),
        proximal_at_first_visit=options.first_visit_suffices(config),
        entropy_bonus=config.entropy_weight > 0,
        critic_warmup=config.critic_warmup,
        value_learning_rate_scale=config.value_learning_rate_scale,
    )


plugin: "rlvla.Plugin[PpoConfig, Ppo]" = rlvla.Plugin(
    config=PpoConfig, target="rlvla_algo_ppo.algorithm:Ppo", describe=describe
)
