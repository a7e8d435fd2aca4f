"""Config options that clipped policy-gradient algorithms share, and what cannot work among them. Light: no torch."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from rlvla.configs import config, plain, read_one
from rlvla.errors import ConfigError
from rlvla.specs import CreditLevel, RatioLevel

Aggregation = Literal["element-mean", "trajectory-mean", "trajectory-sum", "constant"]
KlEstimator = Literal["k1", "abs", "k2", "k3"]
Proximal = Literal["behaviour", "stale", "recompute", "first-visit", "interpolate"]


@config
class PolicyOptions:
    """How a policy is pushed along advantages, and how far."""

    ratio_level: RatioLevel = "chunk"
    """Where log-probs are compared: one ratio a chunk, an action or a token. The higher, the more a step clips."""
    clip_low: Annotated[float, Gt(0)] = 0.2
    """Ratios below ``1 - clip_low`` stop pushing."""
    clip_high: Annotated[float, Gt(0)] = 0.2
    """Ratios above ``1 + clip_high`` stop pushing."""
    dual_clip: Annotated[float, Gt(1)] | None = None
    """Elements of negative advantage A lose at most ``dual_clip * |A|``; None: no such bound."""
    gaussian_width: Annotated[float, Gt(0)] | None = None
    """Instead of clipping, weigh elements by ``exp(-log_ratio ** 2 / (2 * width ** 2))``: far ones fade, none is cut off;
    None: clip."""
    log_ratio_clamp: Annotated[float, Gt(0)] = 20.0
    """Log-ratios are cut to plus or minus this, a guard against overflow; how often it acts is a metric."""
    aggregation: Aggregation = "element-mean"
    """What the sum over elements is divided by: their number, each trajectory's own number (all weigh the same), the
    number of trajectories, or a constant."""
    constant_length: Annotated[int, Gt(0)] | None = None
    """Length of a trajectory that ``aggregation: constant`` divides by, in actions (chunks at ratio level chunk)."""
    entropy_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus, nats at the ratio level."""
    kl_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the KL divergence from the policy that training started from; 0 does not run that policy at all."""
    kl_place: Literal["loss", "reward"] = "loss"
    """Where the KL divergence counts; never in both."""
    kl_estimator: KlEstimator | None = None
    """Estimator of the KL divergence from a sample; None: k2 in the loss (right gradient), k1 in the reward."""
    proximal: Proximal = "stale"
    """Policy that the clip is centred on: the one that acted (``behaviour``), or the one that the training step starts from:
    evaluated again for chunks of older versions (``stale``; fresh ones were acted by it) or for all (``recompute``), taken at
    the first visit, or interpolated between acting and present policy."""
    behaviour_weight_max: Annotated[float, Gt(0)] | None = None
    """Largest weight proximal / behaviour of an element of stale data; None: no bound."""
    behaviour_weight_over: Literal["truncate", "mask"] = "truncate"
    """What happens to an element above ``behaviour_weight_max``: it gets that weight, or none. With ``stale`` and
    ``recompute`` it then leaves sums and denominators altogether."""
    staleness_free: Annotated[int, Ge(0)] = 0
    """Versions that a chunk may lag without losing weight."""
    staleness_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """Factor on a chunk's weight for each version of lag beyond ``staleness_free``; 1: none."""
    max_staleness: Annotated[int, Ge(0)] = 1
    """Versions that a unit's oldest chunk may lie behind the version being trained; a scheduler may keep it lower."""
    passes: Annotated[int, Ge(1)] = 1
    """Times that each sample is trained on."""
    minibatch_size: Annotated[int, Ge(1)] | None = None
    """Samples (chunks) in an optimizer step; None: all of the training step's. A smaller last one has its own
    denominator."""
    target_kl: Annotated[float, Gt(0)] | None = None
    """The remaining passes are left out once ``approx_kl`` (nats at the ratio level) of a pass exceeds this."""


def proximal_of(options: PolicyOptions) -> Literal["none", "stale", "all"]:
    """Return which samples an algorithm with these options wants evaluated again before the first update."""
    if options.proximal == "recompute":
        return "all"
    return "stale" if options.proximal == "stale" and options.gaussian_width is None else "none"


def first_visit_suffices(options: PolicyOptions) -> bool:
    """Say whether proximal log-probs may be those of the first evaluation; not where they decide on the denominator."""
    return proximal_of(options) != "none" and options.behaviour_weight_over != "mask"


def problems(options: PolicyOptions, credit_level: CreditLevel) -> list[str]:
    """Return what cannot work among the shared options, a line each: path, got, wanted."""
    found: list[str] = []
    if credit_level == "action" and options.ratio_level == "chunk":
        found.append(
            "algo.ratio_level: got 'chunk' with credit level 'action', wanted 'action' or 'token': "
            "one ratio a chunk cannot carry an advantage for each action"
        )
    if options.aggregation == "constant" and options.constant_length is None:
        found.append(
            "algo.constant_length: missing; aggregation 'constant' divides by it (for instance the step limit)"
        )
    if options.aggregation != "constant" and options.constant_length is not None:
        found.append(
            f"algo.constant_length: got {options.constant_length} with aggregation {options.aggregation!r}, "
            "which has no use for it; wanted aggregation 'constant', or no length"
        )
    if options.gaussian_width is not None and (
        options.dual_clip is not None or options.proximal not in ("behaviour", "stale")
    ):
        clip = f"dual_clip {options.dual_clip}" if options.dual_clip is not None else f"proximal {options.proximal!r}"
        found.append(
            f"algo.gaussian_width: got {options.gaussian_width} together with {clip}; it replaces the clip and its anchor: "
            "wanted dual_clip unset, and proximal left alone or 'behaviour'"
        )
    if options.kl_place == "loss" and options.kl_estimator == "k1" and options.kl_weight > 0:
        found.append(
            "algo.kl_estimator: got 'k1' in the loss, where its expected gradient is zero; wanted 'k2', or kl_place 'reward'"
        )
    if options.behaviour_weight_max is not None and options.gaussian_width is not None:
        found.append(
            f"algo.behaviour_weight_max: got {options.behaviour_weight_max} with gaussian_width {options.gaussian_width}, "
            "which has no such weight; wanted no bound, or no gaussian_width"
        )
    elif options.behaviour_weight_max is not None and options.proximal == "behaviour":
        found.append(
            f"algo.behaviour_weight_max: got {options.behaviour_weight_max} with proximal 'behaviour', where every weight "
            "is 1; wanted proximal 'stale', 'recompute', 'first-visit' or 'interpolate', or no bound"
        )
    if options.staleness_decay < 1 and options.max_staleness <= options.staleness_free:
        found.append(
            f"algo.staleness_decay: got {options.staleness_decay}, but with max_staleness {options.max_staleness} no chunk "
            f"lags more than staleness_free {options.staleness_free}; wanted a lower staleness_free, or decay 1"
        )
    if options.target_kl is not None and options.passes == 1:
        found.append(f"algo.target_kl: got {options.target_kl} with 1 pass, after which nothing is left to stop")
    return found


def bounds(options: object) -> list[str]:
    """Return which options are of a wrong type or out of their bounds, for a config made by its constructor."""
    try:
        read_one(type(options), plain(options))
    except ConfigError as error:
        return [f"algo.{problem}" for problem in error.problems]
    return []


def refuse(found: list[str]) -> None:
    """Raise what was found, if anything.

    Raises:
        ConfigError: with every problem.
    """
    if found:
        raise ConfigError(found)
