"""The policy part of a loss: what clipped policy-gradient algorithms share, composed of this package's functions.

An algorithm holds one :class:`PolicyObjective` and calls it in the three places where the trainer calls the algorithm::

    columns = policy.columns(trajectories, advantage_UTc, valid_UTH)        # prepare
    denominators = policy.denominators(minibatch)                           # denominators
    loss = policy.loss(part, evaluation, denominators)                      # loss

Letters: U trajectories, T chunk steps, S samples (chunks), H actions in a chunk, K log-prob entries an action; c is 1 or
H (credit level), ``h, k`` the ratio level's widths (see :mod:`rlvla.rl.reductions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla.batch import Evaluation, Loss, Trajectories
from rlvla.rl import losses, quantiles, reductions
from rlvla.rl.moments import sum_over_ranks
from rlvla.rl.options import proximal_of

if TYPE_CHECKING:
    from rlvla.rl.options import PolicyOptions


class PolicyObjective:
    """Clipped policy term, entropy bonus, KL divergence and off-policy weights, under one aggregation."""

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options
        self.version: int | None = None
        """Weights that the training step starts from; None: the newest that produced a chunk."""
        self._evaluated_again = proximal_of(options) != "none"
        self._clip = losses.Clip(clip_low=options.clip_low, clip_high=options.clip_high, dual_clip=options.dual_clip)
        self._first_visit: Tensor | None = None

    def columns(self, trajectories: Trajectories, advantage_UTc: Tensor, valid_UTH: Tensor) -> dict[str, Tensor]:
        """Return columns ``[U, T, ...]`` that :meth:`loss` reads; the algorithm may add its own and calls :func:`rows`.

        Args:
            trajectories: as they came.
            advantage_UTc: one a chunk or one an action.
            valid_UTH: actions that are trained on.
        """
        options, shape = self.options, trajectories.exists.shape
        entries = trajectories.logp.shape[-1] if options.ratio_level == "token" else 1
        units_U = reductions.units(valid_UTH, options.ratio_level)
        weight_U = reductions.element_weight(units_U, entries, options.aggregation)
        count = torch.stack([(units_U > 0).sum(), trajectories.exists.sum()]).double()
        counted, samples = sum_over_ranks(count).unbind()
        newest = torch.where(trajectories.exists, trajectories.version, 0).amax()
        lag_UT = ((newest if self.version is None else self.version) - trajectories.version).clamp(min=0)
        columns = {
            "advantage": advantage_UTc,
            "valid": valid_UTH,
            "logp": reductions.at_least_fp32(trajectories.logp),
            "lag": lag_UT,
            "staleness_weight": losses.staleness_weight(
                lag_UT, free=options.staleness_free, decay=options.staleness_decay
            ),
            "element_weight": weight_U[:, None].expand(shape),
            "share": (counted / samples.clamp(min=1)).expand(shape),
            "sample": torch.arange(trajectories.exists.numel(), device=lag_UT.device).view(shape),
        }
        if options.kl_weight > 0:
            columns["reference_logp"] = given(trajectories, "reference_logp")
        if self._evaluated_again:
            fresh = options.proximal == "stale" and trajectories.proximal_logp is None
            columns["proximal_logp"] = columns["logp"] if fresh else given(trajectories, "proximal_logp")
        if options.proximal == "first-visit":
            mask = reductions.mask_at_level(valid_UTH, trajectories.logp.shape[-1], options.ratio_level)
            self._first_visit = torch.full(mask.flatten(0, 1).shape, torch.nan, device=mask.device)
        return columns

    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        """Return ``{"policy": ...}``; see :func:`rlvla.rl.reductions.denominator`."""
        options = self.options
        return {
            "policy": reductions.denominator(
                self._counted(batch),
                batch["share"],
                batch["staleness_weight"],
                options.aggregation,
                options.constant_length,
            )
        }

    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        """Return ``(policy - entropy_weight * entropy + kl_weight * kl) / denominator`` of this part, and metrics."""
        options, level, valid_SH = self.options, self.options.ratio_level, batch["valid"]
        logp, old_logp = (
            reductions.reduce_to_level(x_SHK, valid_SH, level) for x_SHK in (evaluation.logp, batch["logp"])
        )
        mask, counted = reductions.mask_at_level(valid_SH, batch["logp"].shape[-1], level), self._counted(batch)
        proximal_logp = self._proximal(batch, evaluation, logp, old_logp)
        weight = losses.behaviour_weight(
            proximal_logp, old_logp, highest=options.behaviour_weight_max, over=options.behaviour_weight_over
        )
        element_weight = (batch["element_weight"] * batch["staleness_weight"])[:, None, None]
        raw_log_ratio = logp - proximal_logp
        log_ratio = raw_log_ratio.clamp(-options.log_ratio_clamp, options.log_ratio_clamp)
        advantage = reductions.spread_to(batch["advantage"], mask)
        if options.gaussian_width is None:
            terms = {"policy": weight * losses.clipped_policy_term(log_ratio, advantage, **self._clip)}
        else:
            terms = {"policy": losses.gaussian_policy_term(log_ratio, advantage, options.gaussian_width)}
        if options.entropy_weight > 0:
            terms["entropy"] = -reductions.reduce_to_level(evaluation.entropy, valid_SH, level)
        if options.kl_weight > 0 and options.kl_place == "loss":
            reference_logp = reductions.reduce_to_level(batch["reference_logp"], valid_SH, level)
            terms["kl"] = losses.kl_estimate(logp, reference_logp, options.kl_estimator or "k2")
        sums = {name: torch.where(counted, element_weight * term, 0.0).double().sum() for name, term in terms.items()}
        total = (
            sums["policy"] + options.kl_weight * sums.get("kl", 0.0) + options.entropy_weight * sums.get("entropy", 0.0)
        )
        loss = Loss(reductions.divide(total, denominators["policy"]).float())
        with torch.no_grad():
            here = self.denominators(batch)["policy"]
            loss.metrics["policy_loss"] = (sums["policy"].detach(), here)
            if "kl" in sums:
                loss.metrics["kl_loss"] = (sums["kl"].detach(), here)
            self._ratio_metrics(loss, log_ratio.detach(), raw_log_ratio, advantage, mask)
            self._batch_metrics(loss, batch, evaluation, mask, weight)
        return loss

    def _counted(self, batch: TensorDict) -> Tensor:
        """Elements in sums and denominator: the valid ones, but for those that a known weight masks out."""
        options, valid_SH = self.options, batch["valid"]
        mask = reductions.mask_at_level(valid_SH, batch["logp"].shape[-1], options.ratio_level)
        if not self._evaluated_again or options.behaviour_weight_over != "mask":
            return mask
        proximal, behaviour = (
            reductions.reduce_to_level(batch[name], valid_SH, options.ratio_level) for name in ("proximal_logp", "logp")
        )
        return mask & (
            losses.behaviour_weight(proximal, behaviour, highest=options.behaviour_weight_max, over="mask") > 0
        )

    def _proximal(self, batch: TensorDict, evaluation: Evaluation, logp: Tensor, old_logp: Tensor) -> Tensor:
        """Return the log-probs that the clip is centred on, ``[S, h, k]``, without gradient."""
        how = self.options.proximal
        if self._evaluated_again:
            given_SHK, now_SHK = batch["proximal_logp"], reductions.at_least_fp32(evaluation.logp.detach())
            anchor_SHK = torch.where(given_SHK.isnan(), now_SHK.to(given_SHK.dtype), given_SHK)
            return reductions.reduce_to_level(anchor_SHK, batch["valid"], self.options.ratio_level)
        if how in ("behaviour", "stale"):
            return old_logp
        if how == "interpolate":
            return losses.interpolated(logp, old_logp, batch["lag"][:, None, None])
        assert self._first_visit is not None, "columns() makes it"
        self._first_visit = self._first_visit.to(logp.device)
        seen = self._first_visit[batch["sample"]]
        anchor = torch.where(seen.isnan(), logp.detach(), seen)
        self._first_visit[batch["sample"]] = anchor
        return anchor

    def _ratio_metrics(self, loss: Loss, log_ratio: Tensor, raw: Tensor, advantage: Tensor, mask: Tensor) -> None:
        ratio = log_ratio.exp()
        outside = (ratio < 1 - self.options.clip_low) | (ratio > 1 + self.options.clip_high)
        pushes = (
            losses.has_gradient(log_ratio, advantage, **self._clip)
            if self.options.gaussian_width is None
            else torch.ones_like(outside)
        )
        entries = {
            "approx_kl": ratio - 1 - log_ratio,
            "approx_kl_k1": -log_ratio,
            "clip_fraction": outside,
            "dead_fraction": ~pushes & (advantage != 0),
            "log_ratio_clamped": raw != log_ratio,
            "ratio": ratio,
        }
        loss.metrics |= {name: masked(x, mask) for name, x in entries.items()}
        loss.distributions["ratio"] = quantiles.counts(log_ratio, mask)
        loss.maxima["ratio_max"] = torch.where(mask, ratio, 0.0).max() if mask.numel() else ratio.new_zeros(())

    def _batch_metrics(
        self, loss: Loss, batch: TensorDict, evaluation: Evaluation, mask: Tensor, weight: Tensor
    ) -> None:
        valid_SHK = batch["valid"][..., None].expand(batch["logp"].shape)
        loss.metrics["logprob_gap"] = masked(
            (reductions.at_least_fp32(evaluation.logp) - batch["logp"]).abs(), valid_SHK
        )
        loss.metrics["entropy"] = masked(evaluation.entropy, valid_SHK)  # nats an entry, whatever the ratio level
        used = weight * batch["staleness_weight"][:, None, None]
        loss.metrics["behaviour_weight"] = masked(weight, mask)
        loss.metrics["sample_weight"] = masked(used, mask)
        loss.metrics["sample_weight_square"] = masked(used.square(), mask)  # mean^2 / this = effective sample fraction
        loss.metrics["staleness"] = masked(batch["lag"], batch["valid"].any(-1))
        for name, pair_S2 in batch["report"].items():
            loss.metrics[name] = tuple(pair_S2.double().sum(0).unbind())


def rewards(trajectories: Trajectories, options: PolicyOptions) -> Tensor:
    """Return ``[U, T, H]``: rewards, less ``kl_weight`` times the KL estimate of each action where it counts there.

    At ratio level chunk the estimate of a chunk stands at its first action, which is always executed.
    """
    reward_UTH = reductions.at_least_fp32(trajectories.reward)
    if options.kl_weight == 0 or options.kl_place == "loss":
        return reward_UTH
    logp, reference = (
        reductions.reduce_to_level(x_UTHK, trajectories.valid, options.ratio_level)
        for x_UTHK in (trajectories.logp, given(trajectories, "reference_logp"))
    )
    kl_UTh = losses.kl_estimate(logp, reference, options.kl_estimator or "k1").sum(-1)
    kl_UTH = torch.nn.functional.pad(kl_UTh, (0, reward_UTH.shape[-1] - kl_UTh.shape[-1]))
    return reward_UTH - options.kl_weight * kl_UTH


def per_trajectory(x_U: Tensor, exists_UT: Tensor, index_U: Tensor | None = None) -> Tensor:
    """Return ``[U, T, 2]`` for :func:`rows`: what its samples add to the mean of ``x`` over trajectories.

    Args:
        x_U: a number of each trajectory, or of its group.
        exists_UT: chunks that become samples.
        index_U: number of its group, counted from 0: the mean is over groups.
    """
    samples_U = exists_UT.sum(1)
    if index_U is not None:
        samples_U = torch.zeros_like(samples_U).index_add(0, index_U, samples_U)[index_U]
    weight_UT = (1.0 / samples_U.clamp(min=1).double())[:, None].expand(exists_UT.shape)
    return torch.stack([x_U.double()[:, None] * weight_UT, weight_UT], -1)


def constant(x: Tensor, exists_UT: Tensor) -> Tensor:
    """Return ``[U, T, 2]`` for :func:`rows`: a number of the whole batch, whose mean is itself."""
    pair = torch.stack([x.double(), torch.ones_like(x, dtype=torch.float64)])
    return pair.expand(*exists_UT.shape, 2)


def masked(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sum, count) in float64 of the entries where ``mask``."""
    return torch.where(mask, x.detach().double(), 0.0).sum(), mask.sum().double()


def rows(trajectories: Trajectories, columns: Mapping[str, Tensor], report: Mapping[str, Tensor]) -> TensorDict:
    """Return the batch ``[S]``: the existing chunks of ``[U, T, ...]`` columns, in row-major order.

    Args:
        trajectories: whose ``exists`` chooses.
        columns: by name.
        report: metrics of the batch itself: name to ``[U, T, 2]``, what each sample adds to (sum, count).
    """
    exists = trajectories.exists
    samples = int(exists.sum())
    return TensorDict(
        {
            **{name: x[exists] for name, x in columns.items()},
            "report": TensorDict({name: x[exists].float() for name, x in report.items()}, batch_size=[samples]),
        },
        batch_size=[samples],
    )


def given(trajectories: Trajectories, name: str) -> Tensor:
    """Return log-probs that the trainer was asked for through the spec.

    Raises:
        ValueError: they are missing.
    """
    value: Tensor | None = getattr(trajectories, name)
    if value is None:
        raise ValueError(f"trajectories.{name} is missing: the algorithm's spec asks for it before prepare()")
    return reductions.at_least_fp32(value)


def check(trajectories: Trajectories) -> None:
    """Refuse trajectories that break the contract.

    Raises:
        ValueError: a mask is of a wrong type or shape, or padding stands before a chunk that exists.
    """
    shape = trajectories.reward.shape
    for name in ("terminated", "truncated", "valid"):
        x = getattr(trajectories, name)
        if x is None or x.dtype != torch.bool or x.shape != shape:
            got = "nothing" if x is None else f"{x.dtype} {tuple(x.shape)}"
            raise ValueError(f"trajectories.{name}: got {got}, wanted bool {tuple(shape)}")
    if bool((trajectories.exists[:, 1:] & ~trajectories.exists[:, :-1]).any()):
        raise ValueError("trajectories.exists: a chunk follows one that does not exist; padding belongs at the end")
