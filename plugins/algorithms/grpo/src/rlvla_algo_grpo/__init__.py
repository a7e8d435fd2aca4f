"""Group-relative policy optimisation: rollouts of one task from one initial state are compared with each other."""

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

import rlvla
from rlvla.rl import options
from rlvla.specs import AlgorithmSpec, RatioLevel

if TYPE_CHECKING:
    from rlvla_algo_grpo.algorithm import Grpo as Grpo

__version__ = "0.1.0"
__all__ = ["GrpoConfig", "__version__", "describe", "plugin"]


@rlvla.config
class GrpoConfig(options.PolicyOptions):
    """Group-Relative Policy Optimisation: no value function; a rollout is as good as it is better than its group."""

    group_size: Annotated[int, Ge(2)] = 8
    """Rollouts of one task from one initial state."""
    groups_per_step: Annotated[int, Ge(1)] | None = None
    """Groups in a training step; None: as many as the environments play at once, at least one."""
    advantage: Literal["std", "mean", "rloo", "reinforce++", "reinforce++-baseline"] = "std"
    """Score against the group's mean over its standard deviation; against its mean; against the mean of the others;
    against the whole batch; against the group's mean, scaled over the whole batch."""
    unbiased_std: bool = True
    """The group's variance divides by members - 1 (advantage std); at 8 members the other is 7 % lower."""
    ratio_level: RatioLevel = "token"
    """Where log-probs are compared: one ratio a chunk, an action or a token. The higher, the more a step clips."""
    clip_high: Annotated[float, Gt(0)] = 0.28
    """Ratios above ``1 + clip_high`` stop pushing."""
    aggregation: options.Aggregation = "trajectory-mean"
    """What the sum over elements is divided by: their number, each trajectory's own number (all weigh the same), the
    number of trajectories, or a constant."""
    success_low: Annotated[float, Ge(0), Le(1)] = 0.0
    """Groups with a lower success rate are filtered out."""
    success_high: Annotated[float, Ge(0), Le(1)] = 1.0
    """Groups with a higher success rate are filtered out; 0.1 and 0.9 leave out groups that all fail or all succeed."""
    filter: Literal["refill", "drop", "mask"] = "refill"
    """What becomes of a filtered group: others are collected in its place; it leaves the denominators, so the step keeps
    its size; or it stays in them, so the step shrinks."""
    refill_budget: Annotated[float, Ge(1)] = 3.0
    """Groups that may be judged for a training step, as a multiple of those that it takes; beyond it they are passed on
    unjudged and dropped."""


def describe(config: GrpoConfig) -> AlgorithmSpec:
    """Return what GRPO needs.

    Raises:
        ConfigError: options out of bounds, or that cannot work together; all of them.
    """
    found = options.bounds(config) + options.problems(config, "chunk")
    if config.success_low > config.success_high:
        found.append(
            f"algo.success_low: got {config.success_low} above success_high {config.success_high}: no group would be kept"
        )
    elif not any(
        config.success_low <= solved / config.group_size <= config.success_high
        for solved in range(config.group_size + 1)
    ):
        found.append(
            f"algo.success_low: got {config.success_low} to success_high {config.success_high}, but groups of "
            f"{config.group_size} have success rates in steps of 1/{config.group_size}, and none lies there: no group would "
            "be kept; widen them"
        )
    refills = config.filter == "refill" and (config.success_low, config.success_high) != (0, 1)
    if not refills and config.refill_budget != GrpoConfig().refill_budget:
        found.append(
            f"algo.refill_budget: got {config.refill_budget:g}, but no group is replaced (filter {config.filter!r}, success "
            f"rates from {config.success_low:g} to {config.success_high:g}): leave it out, or filter with 'refill' and bounds"
        )
    if config.advantage != "std" and not config.unbiased_std:
        found.append(
            f"algo.unbiased_std: got False, but advantage {config.advantage!r} divides by no group's deviation: leave it out, "
            "or take 'std'"
        )
    options.refuse(found)
    return AlgorithmSpec(
        unit="group",
        credit_level="chunk",
        ratio_level=config.ratio_level,
        values=False,
        units_per_step=config.groups_per_step,
        group_size=config.group_size,
        passes=config.passes,
        minibatch_size=config.minibatch_size,
        max_staleness=config.max_staleness,
        reference=config.kl_weight > 0,
        proximal=options.proximal_of(config),
        proximal_at_first_visit=options.first_visit_suffices(config),
        entropy_bonus=config.entropy_weight > 0,
        refill_budget=config.refill_budget if refills else None,
    )


plugin: "rlvla.Plugin[GrpoConfig, Grpo]" = rlvla.Plugin(
    config=GrpoConfig, target="rlvla_algo_grpo.algorithm:Grpo", describe=describe
)
