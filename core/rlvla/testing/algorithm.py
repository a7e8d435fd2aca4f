"""Conformance of algorithms: what a trainer, and whoever reads its curves, relies on.

Letters: U trajectories, T chunk steps, S samples (chunks), H actions in a chunk, K log-prob entries an action.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla.algorithm import Algorithm
from rlvla.batch import Evaluation, Loss, Trajectories
from rlvla.errors import ConfigError
from rlvla.receipts import Member, UnitReport
from rlvla.rl import quantiles
from rlvla.specs import AlgorithmSpec
from rlvla.testing import worlds
from rlvla.testing.suite import Conformance, check, skip

LEVELS = (("chunk", "chunk"), ("chunk", "action"), ("chunk", "token"), ("action", "action"), ("action", "token"))


class AlgorithmConformance(Conformance):
    """Checks of an algorithm plugin, each for every pair of credit and ratio level that its config accepts."""

    kind = "algo"
    learns_from_reward: ClassVar[bool] = True
    """False for imitation: checks of what rewards do are skipped."""

    # --- how an algorithm is run ---

    def levels(self, variations: bool = True) -> Iterator[tuple[Any, AlgorithmSpec]]:
        """Yield the configs of the suite at each pair of levels that ``describe`` accepts, with their specs."""
        plugin = self.plugin()
        options = {field.name for field in dataclasses.fields(plugin.config)}
        seen: list[Any] = []
        for base in ({}, *(self.variations if variations else ())):
            for credit, ratio in LEVELS:
                chosen = {"credit_level": credit, "ratio_level": ratio}
                config = self.made(**{**base, **{name: level for name, level in chosen.items() if name in options}})
                if config in seen:
                    continue
                seen.append(config)
                try:
                    spec = plugin.describe(config)
                except ConfigError:
                    continue
                yield config, spec

    def algorithm(self, config: Any, step: int = 3) -> Algorithm:
        """Return the algorithm, about to start training step ``step``."""
        algorithm: Algorithm = self.plugin().load()(config)
        algorithm.progress(step, 10)
        return algorithm

    def world(self, spec: AlgorithmSpec, seed: int = 0, *, H: int = 3, K: int = 2) -> Trajectories:
        """Return random trajectories of the kind that the spec asks for."""
        grouped = spec.unit == "group"
        trajectories = worlds.random_trajectories(
            seed, 8, 4, H, K, width(spec, H), group_size=4 if grouped else 1, stops=grouped, lag=spec.max_staleness
        )
        return with_asked(trajectories, spec, seed)

    def exercise(self, config: Any) -> None:
        """Describe, prepare, take the loss, and ask the remaining questions, at the config's own level."""
        spec = self.plugin().describe(config)
        algorithm = self.algorithm(config)
        trajectories = self.world(spec)
        run(algorithm, trajectories, worlds.evaluation_of(trajectories, seed=1))
        members = tuple(Member(float(i % 2), i % 2 == 0, 5) for i in range(4))
        algorithm.keep(UnitReport(0, spec.unit, members if spec.unit == "group" else (), 0, 0))
        algorithm.stop({"approx_kl": 0.0})
        algorithm.load_state(algorithm.state())

    # --- checks ---

    def test_levels_that_clash_are_refused(self) -> None:
        """One ratio a chunk cannot carry an advantage for each of its actions."""
        config = self.plugin().config
        if not {"credit_level", "ratio_level"} <= {field.name for field in dataclasses.fields(config)}:
            skip("does not choose its credit level")
        try:
            self.plugin().describe(self.made(credit_level="action", ratio_level="chunk"))
        except ConfigError:
            return
        raise AssertionError("describe() accepts credit level action with ratio level chunk: raise ConfigError")

    def test_prepare_gives_one_row_a_chunk(self) -> None:
        """Rows are the existing chunks; the trajectories are not changed."""
        for config, spec in self.levels():
            trajectories = self.world(spec)
            before = trajectories.clone()
            batch = self.algorithm(config).prepare(trajectories)
            wanted = int(trajectories.exists.sum())
            assert tuple(batch.batch_size) == (wanted,), f"prepare() gave {tuple(batch.batch_size)}, wanted ({wanted},)"
            assert equal(trajectories.to_tensordict(), before.to_tensordict()), "prepare() changed the trajectories"

    def test_rows_may_be_cut_and_permuted(self) -> None:
        """The gradient of each chunk is the same wherever its row stands."""
        for config, spec in self.levels():
            trajectories = self.world(spec)
            order = torch.randperm(int(trajectories.exists.sum()), generator=torch.Generator().manual_seed(0))
            plain = worlds.evaluation_of(trajectories, seed=1)
            mixed = worlds.evaluation_of(trajectories, seed=1)
            run(self.algorithm(config), trajectories, plain)
            run(self.algorithm(config), trajectories, mixed, order=order)
            assert_close(gradients(mixed), gradients(plain), "the gradient depends on the order of rows")

    def test_micro_batches_add_up(self) -> None:
        """k micro-batches give the loss, gradient and metrics of the one batch that they are parts of."""
        for config, spec in self.levels():
            trajectories = self.world(spec)
            whole = worlds.evaluation_of(trajectories, seed=1)
            total, metrics = run(self.algorithm(config), trajectories, whole)
            for parts in (2, 5):
                cut = worlds.evaluation_of(trajectories, seed=1)
                sums, added = run(self.algorithm(config), trajectories, cut, parts=parts)
                hint = f"{parts} micro-batches differ from one batch: divide sums by `denominators`, never by the part"
                assert_close(gradients(cut), gradients(whole), hint)
                assert_close({"total": sums, **added}, {"total": total, **metrics}, hint, floor=1.0)

    def test_denominators_add_up(self) -> None:
        """Denominators are sums over rows, so that they can be added over ranks."""
        for config, spec in self.levels():
            algorithm = self.algorithm(config)
            batch = algorithm.prepare(self.world(spec))
            whole, parts = algorithm.denominators(batch), [algorithm.denominators(part) for part in batch.chunk(3)]
            summed = {name: torch.stack([part[name] for part in parts]).sum(0) for name in whole}
            assert_close(summed, whole, "denominators of parts do not add up to those of the whole")

    def test_what_is_not_valid_changes_nothing(self) -> None:
        """NaN, huge numbers and flags where nothing was executed reach neither loss, gradient nor metrics."""
        for config, spec in self.levels():
            clean = self.world(spec)
            results = []
            for trajectories in (clean, worlds.with_garbage(clean), worlds.with_garbage(clean, 1e30)):
                evaluation = worlds.evaluation_of(trajectories, seed=1)
                total, metrics = run(self.algorithm(config), trajectories, evaluation)
                results.append({"total": total, **metrics, **gradients(evaluation)})
            for dirty in results[1:]:
                assert_close(
                    dirty,
                    results[0],
                    "content of entries that are not valid leaks: use torch.where, not a product",
                    0.0,
                )

    def test_masked_entries_have_no_gradient(self) -> None:
        """The gradient at an action that was not executed is exactly zero."""
        for config, spec in self.levels():
            trajectories = self.world(spec)
            evaluation = worlds.evaluation_of(trajectories, seed=1)
            run(self.algorithm(config), trajectories, evaluation)
            off_SH = ~trajectories.valid[trajectories.exists]
            for name, gradient in gradients(evaluation).items():
                if gradient.shape[1] in (0, 1) and name == "value":
                    off = off_SH.all(1, keepdim=True)[:, : gradient.shape[1]]
                else:
                    off = off_SH
                assert not gradient[off].any(), f"{name} has a gradient where no action was executed"

    def test_positive_advantage_raises_log_prob(self) -> None:
        """A step down the gradient makes what led to success likelier, against what did not."""
        if not self.learns_from_reward:
            skip("does not learn from rewards")
        for config, spec in self.levels():
            trajectories = with_asked(worlds.better_and_worse(V=width(spec, 3)), spec, None)
            evaluation = worlds.evaluation_of(trajectories)
            run(self.algorithm(config), trajectories, evaluation)
            push_UTHK = -gradients(evaluation)["logp"].view(trajectories.logp.shape)
            better, worse = push_UTHK[0::2], push_UTHK[1::2]
            assert (better > worse).all(), (
                "the log-probs of rollouts that succeeded do not rise against the others': check signs"
            )
            assert (better[:, -1] > 0).all(), "the action that was rewarded does not become likelier"
            assert (worse[:, -1] < 0).all(), "the action that ended in failure does not become less likely"

    def test_levels_agree(self) -> None:
        """With one action a chunk and one log-prob entry an action, all levels are the same thing."""
        results: list[tuple[Any, dict[str, Tensor]]] = []
        bases = [self.made(), *(self.made(**dict(one)) for one in self.variations)]
        for config, spec in self.levels():
            trajectories = self.world(spec, H=1, K=1)
            evaluation = worlds.evaluation_of(trajectories, seed=1)
            total, metrics = run(self.algorithm(config), trajectories, evaluation)
            base = next(i for i, one in enumerate(bases) if same_but_levels(one, config))
            first = next((result for of, result in results if of == base), None)
            this = {"total": total, **metrics, **gradients(evaluation)}
            results.append((base, this))
            if first is not None:
                assert_close(
                    this, first, f"levels {spec.credit_level}/{spec.ratio_level} disagree at one action and one token"
                )

    def test_ratio_one_gives_reinforce(self) -> None:
        """Where the policy is still the one that acted, the gradient is that of ``-advantage * log-prob``."""
        if not self.learns_from_reward:
            skip("does not learn from rewards")
        for config, spec in self.levels():
            trajectories = self.world(dataclasses.replace(spec, max_staleness=0))
            trajectories = with_asked(trajectories, spec, None)
            evaluation = worlds.evaluation_of(trajectories)
            algorithm = self.algorithm(config)
            _, metrics = run(algorithm, trajectories, evaluation)
            batch = self.algorithm(config).prepare(trajectories)
            assert "advantage" in batch.keys(), "prepare() gives no column 'advantage' ([S], [S, 1] or [S, H])"  # noqa: SIM118
            valid_SH = trajectories.valid[trajectories.exists]
            advantage_SH = batch["advantage"].view(len(batch), -1).expand(valid_SH.shape)
            gradient_SHK = gradients(evaluation)["logp"]
            ratio_SHK = -gradient_SHK / torch.where(advantage_SH == 0, torch.nan, advantage_SH)[..., None]
            row_U = torch.arange(len(trajectories))[:, None].expand(trajectories.exists.shape)[trajectories.exists]
            for u in range(len(trajectories)):
                weights = ratio_SHK[row_U == u][valid_SH[row_U == u]].flatten()
                weights = weights[~weights.isnan()]
                if len(weights) and weights.abs().max() > 0:
                    assert (weights > 0).all(), "at ratio 1 the gradient does not point along the advantage"
                    assert_close(
                        {"": weights},
                        {"": weights.mean().expand_as(weights)},
                        "at ratio 1 the gradient is not REINFORCE's",
                        1e-4,
                    )
            assert not gradient_SHK[(advantage_SH == 0)].any(), "a gradient where the advantage is zero"
            for name in ("clip_fraction", "approx_kl"):
                assert float(metrics.get(name, 0.0)) == 0.0, f"{name} is not 0 at ratio 1"

    def test_nothing_to_learn_is_no_nan(self) -> None:
        """Equal rewards everywhere, or no valid action at all, give a finite loss."""
        for config, spec in self.levels():
            flat = self.world(spec)
            flat.reward.zero_()
            empty = self.world(spec)
            for flag in (empty.valid, empty.terminated, empty.truncated):
                flag.zero_()
            for trajectories in (flat, empty):
                evaluation = worlds.evaluation_of(trajectories)
                total, metrics = run(self.algorithm(config), trajectories, evaluation)
                for name, x in {"total": total, **metrics, **gradients(evaluation)}.items():
                    assert bool(x.isfinite().all()), f"{name} is not finite where there is nothing to learn"

    def test_metrics_are_sums_and_counts(self) -> None:
        """Counts are not negative, numbers finite, and a fraction lies between 0 and 1."""
        for config, spec in self.levels():
            trajectories = self.world(spec)
            algorithm = self.algorithm(config)
            batch = algorithm.prepare(trajectories)
            loss = algorithm.loss(
                batch, worlds.evaluation_of(trajectories, seed=1, scale=2.0), algorithm.denominators(batch)
            )
            for name, (total, count) in loss.metrics.items():
                assert not total.requires_grad, f"{name} holds on to the graph: detach it"
                assert math.isfinite(float(total)), f"{name} is {float(total)}"
                assert float(count) >= 0, f"{name} counts {float(count)}"
                assert not name.endswith("fraction") or 0 <= float(total) <= float(count), f"{name} is outside [0, 1]"
            for name, counts in loss.distributions.items():
                wanted = f"counts of rlvla.rl.quantiles.counts, [{quantiles.BINS}]"
                assert counts.shape == (quantiles.BINS,), f"{name} has the shape {tuple(counts.shape)}, wanted {wanted}"
                assert bool((counts >= 0).all()), f"{name} counts less than nothing, wanted {wanted}"

    def test_solves_a_guessing_game(self) -> None:
        """Trained by the loop of ``Algorithm``'s docstring, the policy guesses right nearly always."""
        if not self.learns_from_reward:
            skip("does not learn from rewards")
        for config, spec in self.levels(variations=False):
            game = worlds.GuessingGame(0, V=width(spec, 2))
            optimizer = torch.optim.Adam([game.logits, game.values], lr=0.1)
            algorithm = self.algorithm(config, step=0)
            for step in range(60):
                algorithm.progress(step, 60)
                grouped = spec.unit == "group"
                trajectories, tokens = game.play(8 if grouped else 32, spec.group_size if grouped else 1, step)
                batch = algorithm.prepare(with_asked(trajectories, spec, None))
                denominators = algorithm.denominators(batch)
                for part in torch.arange(len(batch)).chunk(2):
                    torch.autograd.backward(
                        algorithm.loss(batch[part], game.evaluate(tokens[part]), denominators).total
                    )
                optimizer.step()
                optimizer.zero_grad()
            assert game.chance > 0.9, (
                f"at levels {spec.credit_level}/{spec.ratio_level} a guess is right with chance {game.chance:.2f} after 60 "
                "updates (1/3 at the start), wanted 0.9"
            )

    def test_state_survives_json(self) -> None:
        """What a checkpoint holds of the algorithm is JSON, and is taken back."""
        for config in self.all_configs():
            algorithm = self.algorithm(config)
            state = json.loads(json.dumps(algorithm.state()))
            other = self.algorithm(config, step=0)
            other.load_state(state)
            assert other.state() == algorithm.state(), "state() after load_state() is another"


def check_algorithm(name: str, config: Mapping[str, Any] | None = None, **attributes: Any) -> None:
    """Run all checks of :class:`AlgorithmConformance`; for a notebook.

    Example:
        >>> check_algorithm("grpo", {"group_size": 4})

    Raises:
        AssertionError: with every check that failed, and its likely cause.
    """
    check(AlgorithmConformance, name, config, **attributes)


def width(spec: AlgorithmSpec, H: int) -> int:
    """Return V, the values a chunk that the spec asks for."""
    return 0 if not spec.values else H if spec.credit_level == "action" else 1


def with_asked(trajectories: Trajectories, spec: AlgorithmSpec, seed: int | None) -> Trajectories:
    """Fill in what a trainer would for this spec; ``seed=None``: all policies are the one that acted."""
    for offset, (wanted, name) in enumerate(
        ((spec.reference, "reference_logp"), (spec.proximal != "none", "proximal_logp"))
    ):
        if wanted:
            generator = torch.Generator().manual_seed((seed or 0) + offset)
            noise = torch.randn(trajectories.logp.shape, generator=generator) * (0.1 if seed is not None else 0.0)
            setattr(trajectories, name, trajectories.logp + noise)
    return trajectories


def run(
    algorithm: Algorithm,
    trajectories: Trajectories,
    evaluation: Evaluation,
    *,
    parts: int = 1,
    order: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Take one optimizer step's loss as a trainer does, with gradients in ``evaluation``.

    Returns:
        The total and the averaged metrics; of a distribution, its counts.
    """
    batch: TensorDict = algorithm.prepare(trajectories)
    order = torch.arange(len(batch)) if order is None else order
    batch = batch[order]
    denominators = algorithm.denominators(batch)
    total, losses = torch.zeros(()), []
    for rows in torch.arange(len(batch)).chunk(parts):
        loss: Loss = algorithm.loss(batch[rows], evaluation[order[rows]], denominators)
        torch.autograd.backward(loss.total)
        total = total + loss.total.detach()
        losses.append(loss)
    metrics = {}
    for name in losses[0].metrics:
        amount, count = (torch.stack([loss.metrics[name][i] for loss in losses]).sum() for i in (0, 1))
        if float(count) > 0:
            metrics[name] = amount / count
    for name in losses[0].maxima:
        metrics[name] = torch.stack([loss.maxima[name] for loss in losses]).amax()
    for name in losses[0].distributions:
        metrics[f"{name}_counts"] = torch.stack([loss.distributions[name] for loss in losses]).sum(0)
    return total, metrics


def gradients(evaluation: Evaluation) -> dict[str, Tensor]:
    """Return the gradients of an evaluation's leaves; zeros where there is none."""
    leaves = {name: getattr(evaluation, name) for name in ("logp", "entropy", "value")}
    return {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}


def assert_close(
    got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], hint: str, tolerance: float = 1e-6, floor: float = 1e-6
) -> None:
    """Assert that tensors of equal names are equal, relative to the largest entry of each or to ``floor``."""
    assert got.keys() == wanted.keys(), f"{hint}: got {sorted(got)}, wanted {sorted(wanted)}"
    for name, x in got.items():
        size = float(wanted[name].abs().max()) if wanted[name].numel() else 0.0
        close = torch.allclose(x.double(), wanted[name].double(), rtol=0.0, atol=tolerance * max(size, floor))
        assert close, f"{hint} ({name}: {x.flatten()[:6].tolist()} against {wanted[name].flatten()[:6].tolist()})"


def equal(one: TensorDict, other: TensorDict) -> bool:
    """Return whether two containers hold the same bits."""
    return all(torch.equal(x, other[name]) for name, x in one.items() if isinstance(x, Tensor))


def same_but_levels(one: Any, other: Any) -> bool:
    """Return whether two configs differ in their levels only."""
    names = [field.name for field in dataclasses.fields(one) if field.name not in ("credit_level", "ratio_level")]
    return all(getattr(one, name) == getattr(other, name) for name in names)
