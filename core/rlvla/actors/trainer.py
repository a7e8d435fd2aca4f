"""The trainer actor: collects played chunks, and turns the units of a training step into optimizer steps.

Blind to the algorithm (it cuts and permutes what ``Algorithm.prepare`` returns) and to the simulator.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla import memory, ranks, sharding, state_files
from rlvla.algorithm import Algorithm
from rlvla.assembly import Assembled, Assembly, Entry, check_groups
from rlvla.batch import Action, Loss, ObservationBatch, Outcome
from rlvla.configs import TrainConfig
from rlvla.imitation import Teacher
from rlvla.metrics import Sums
from rlvla.model import Model
from rlvla.offload import PARAMETERS, OnDemand
from rlvla.optimizer import Optimizer
from rlvla.receipts import PublishReceipt, TrainReceipt
from rlvla.seeds import derive
from rlvla.transport import Broadcast, Notice, Reference, Shelf, Store, WeightTransport
from rlvla.turns import computing
from rlvla.weights import Weights, products_in, snapshot

log = logging.getLogger(__name__)

_FORWARD_BATCH = 256
"""Samples in one forward pass without gradients."""


def minibatches(shares: Sequence[int], wanted: int | None) -> tuple[list[int], int]:
    """Return how many samples of a minibatch each rank gives, and how many minibatches a pass has: as many as on one rank.

    Args:
        shares: samples of each rank.
        wanted: samples of a minibatch, on all ranks together; None: all.
    """
    if wanted is None:
        return [max(1, share) for share in shares], int(any(shares))
    size, count = max(1, wanted // len(shares)), math.ceil(sum(shares) / wanted)
    if max(math.ceil(share / size) for share in shares) > count:  # else a step would be left of the few that remain
        return [max(1, math.ceil(share / count)) for share in shares], count
    return [size] * len(shares), count


class TrainerActor:
    """Owns the training copy of the weights and the optimizer.

    With several ranks, each holds its own units; minibatches, denominators, gradients and metrics are of all ranks.
    """

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        config: TrainConfig,
        *,
        seed: int,
        steps: int,
        shelf: Shelf | None = None,
        weights: OnDemand | None = None,
    ) -> None:
        self.model = model.train()
        if weights is None:
            weights = OnDemand(model, config.offload in PARAMETERS, shared=False)
        self._weights = weights
        self.algorithm = algorithm
        self.config = config
        self.version = 0
        self.steps = steps
        self._seed = seed
        self._assembly = Assembly()
        self._device = next(model.parameters()).device
        self._reference: Model | None = None
        self._cut = config.shard == "fsdp" and ranks.world() > 1
        """Parameters are cut among ranks: each pass through the model gathers them, so all ranks do as many."""
        with self._weights.here(write=True):
            if algorithm.spec.reference and model.reference() is None:
                self._reference = copy.deepcopy(model).eval().requires_grad_(False)
                self._weights.also(self._reference)
            if self._cut:
                sharding.shard(model)
            self._optimizer = Optimizer(model, config, algorithm.spec.value_learning_rate_scale)
        self._was_empty = False
        self._ways: dict[str, WeightTransport] = {"reference": Reference(), "store": Store()}
        if shelf is not None:
            self._ways["process"] = shelf
        self._teachers: dict[str, Teacher] = {}

    def record(
        self,
        before: ObservationBatch,
        action: Action,
        outcome: Outcome,
        after: ObservationBatch,
        version: int,
        entries: Sequence[Entry | None],
    ) -> None:
        """Keep one chunk step of a slot; None: a row whose unit is another rank's."""
        self._assembly.record(before, action, outcome, after, version, entries)

    def miss(self, entries: Sequence[Entry | None]) -> None:
        """Hear of a chunk step that was lost on its way here: units that it belongs to are left out, unless played again."""
        self._assembly.miss(entries)

    def forget(self, ticket: int, member: int | None = None) -> None:
        """Drop what was recorded of a unit, or of one member."""
        self._assembly.forget(ticket, member)

    def connect(self, meeting: tuple[str, int], ends: int) -> None:
        """Become the end that sends in the group that weights are broadcast in."""
        self._ways["broadcast"] = Broadcast(meeting, 0, ends, self._device)

    def publish(self, weights: str = "latest", via: str = "reference") -> tuple[PublishReceipt, Weights | Notice]:
        """Send a copy of the weights, or of their running average (``"ema"``), whole.

        Returns:
            Their version with the times of it, and what generators are to be told (:mod:`rlvla.transport`).

        Raises:
            TransportError: somebody on that way is gone.
        """
        began = time.monotonic_ns()
        with self._weights.here():
            copied = snapshot(self.model)
        if weights == "ema":
            with self._optimizer.at_work():
                copied = self._optimizer.averaged(copied)
        told = self._ways[via].send(copied, self.version)
        return PublishReceipt(self.version, began, (time.monotonic_ns() - began) / 1e9), told

    def train(self, tickets: Sequence[int], step: int, of_all: int | None = None) -> TrainReceipt:
        """Do training step ``step`` (from 0) on these units; the version goes up by one.

        Args:
            tickets: of this rank's units; those of which something was lost are left out.
            step: its number.
            of_all: units of all ranks; None: this one is alone.

        Raises:
            NonFiniteError: the loss or gradient was not finite too often in a row.
            NothingToLearnError: there was none too often in a row, and ``max_empty_steps`` is set.
            SimulatorError: rollouts of a group start from different scenes.
        """
        began, cpu = time.monotonic_ns(), time.process_time()
        metrics: dict[str, float] = {}
        lags: tuple[int, ...] = ()
        whole = self._assembly.whole(tickets)
        has_units = (len(tickets) if of_all is None else of_all) and ranks.largest(len(whole))
        if has_units or self.algorithm.spec.unit == "demonstration":
            with self._weights.here(write=True):
                metrics, lags = self._step(whole, step)
        self.version += 1
        return TrainReceipt(
            version=self.version,
            seconds=(time.monotonic_ns() - began) / 1e9,
            metrics=metrics,
            began_ns=began,
            cpu_seconds=time.process_time() - cpu,
            lags=lags,
            lost=len(tickets) - len(whole),
            memory=memory.peaks(),
        )

    def _step(self, tickets: Sequence[int], step: int) -> tuple[dict[str, float], tuple[int, ...]]:
        """Do a training step in which some rank has units; returns its metrics, and samples by their versions' lag."""
        spec = self.algorithm.spec
        self.algorithm.progress(step, self.steps)
        self._optimizer.begin_step(step, self.steps)
        if spec.unit == "demonstration":
            data = self._taught_by(spec.demonstrations).units(step, spec.units_per_step or 1, self.version)
        else:
            data = self._assembly.take(tickets, spec.values, spec.bootstrap_terminated)
        if spec.unit == "group" and tickets:
            check_groups(data)
        self._fill(data)
        batch = self.algorithm.prepare(data.trajectories)
        lag = self.version - data.trajectories.version[data.trajectories.exists]
        with self._optimizer.at_work():
            metrics = self._passes(data, batch, step)
        empty = metrics.get("train/empty_steps", 0.0)
        if empty and not self._was_empty:  # once for several in a row
            log.warning(
                "training step %d: %.0f optimizer steps had nothing to learn from: every group was filtered, all "
                "outcomes were equal, or no action was valid (train.max_empty_steps bounds how long that may go on)",
                step,
                empty,
            )
        self._was_empty = empty > 0
        lag_sums = torch.tensor([float(lag.sum()), float(len(lag))], dtype=torch.float64)
        ranks.add_up([lag_sums])
        oldest = ranks.largest(float(lag.max()) if len(lag) else 0.0)
        lag_counts = torch.bincount(lag.clamp(min=0), minlength=int(oldest) + 1).double()
        ranks.add_up([lag_counts])
        lags = tuple(map(int, lag_counts.tolist()))
        metrics["train/staleness_max"] = oldest
        metrics["train/staleness_mean"] = float(lag_sums[0] / lag_sums[1])
        metrics["train/samples"] = float(lag_sums[1])
        metrics["train/learning_rate"] = self._optimizer.learning_rate
        return metrics, lags

    def settled(self) -> int:
        """Return the version, once every earlier call is done."""
        return self.version

    def trial(self, observation: ObservationBatch, action: Action) -> float:
        """Return the seconds that a forward and backward pass takes for each sample of a minibatch; changes no weights."""
        wanted = self.config.micro_batch or self.algorithm.spec.minibatch_size or len(observation)
        repeated = torch.arange(min(wanted, 64 * len(observation))) % len(observation)
        observation, replay = observation[repeated], action.replay[repeated]
        with self._weights.here():
            for _ in range(2):  # the first pass of anything is slow
                began = time.perf_counter()
                with computing():
                    evaluation = self._evaluate(self.model, observation, replay)
                    (evaluation.logp.mean() + evaluation.value.sum()).backward()
                seconds = time.perf_counter() - began
            self._optimizer.zero()
        return seconds / len(observation)

    # ---- before the first pass ----------------------------------------------------------------------------------

    @torch.no_grad()
    def _fill(self, data: Assembled) -> None:
        """Add what the algorithm asks for beside what was played: values of final observations, further log-probs."""
        spec, trajectories = self.algorithm.spec, data.trajectories
        if spec.values:
            finals = data.final_observations
            parts = finals.split(_FORWARD_BATCH) if finals is not None else ()
            missing = self._missing(len(parts))
            values = [self._values(part) for part in parts]
            for _ in range(missing):
                self._values(self._spare(data)[0])
            if values:
                trajectories.final_value[data.final_index] = torch.cat(values).float().cpu()
        if spec.proximal != "none":
            self._fill_proximal(data)
        if spec.reference:
            with self.model.reference() or nullcontext():
                trajectories.reference_logp = self._logp(self._reference or self.model, data)

    def _missing(self, passes: int) -> int:
        """Return how many more passes through the model another rank makes, where all have to make as many.

        To be asked before the first of them, since they are collectives too.
        """
        return int(ranks.largest(passes)) - passes if self._cut else 0

    def _spare(self, data: Assembled) -> tuple[ObservationBatch, TensorDict]:
        """Return a sample for passes that are made for the other ranks alone."""
        if len(data.observations):
            return data.observations[:1], data.replay[:1]
        return self._assembly.spare()

    def _values(self, observations: ObservationBatch) -> Tensor:
        with computing(), products_in(self.config.precision, self._device):
            return self.model.value(self.model.preprocess(observations))[:, 0]

    def _fill_proximal(self, data: Assembled) -> None:
        """Add log-probs under the weights that the training step starts from: of all samples, or of older versions'.

        Where the whole training step is one optimizer step, its own evaluation is by these weights: NaN stands for that.
        """
        spec, trajectories = self.algorithm.spec, data.trajectories
        wanted = trajectories.exists
        if spec.proximal == "stale":
            wanted = wanted & (trajectories.version < self.version)
        at_first_visit = spec.proximal_at_first_visit and spec.passes == 1
        if at_first_visit and self._minibatches(int(trajectories.exists.sum()))[1] == 1:
            if wanted.any():
                trajectories.proximal_logp = trajectories.logp.clone()
                trajectories.proximal_logp[wanted] = math.nan
        elif spec.proximal == "all" or ranks.largest(float(wanted.any())):
            trajectories.proximal_logp = self._logp(self.model, data, only=wanted)

    def _logp(self, model: Model, data: Assembled, only: Tensor | None = None) -> Tensor:
        """Return log-probs of what was played under a model, ``[U, T, H, K]``; as they were acted but for ``only`` ``[U, T]``."""
        exists = data.trajectories.exists
        filled = data.trajectories.logp.clone()
        wanted = exists if only is None else only
        samples = wanted[exists].nonzero().squeeze(1).split(_FORWARD_BATCH)
        missing = self._missing(len(samples))
        logp = [self._evaluate(model, data.observations[part], data.replay[part]).logp.cpu() for part in samples]
        for _ in range(missing):
            self._evaluate(model, *self._spare(data))
        if logp:
            filled[wanted] = torch.cat(logp).to(filled.dtype)
        return filled

    def _evaluate(self, model: Model, observations: ObservationBatch, replay: TensorDict) -> Any:
        with computing(), products_in(self.config.precision, self._device):
            with torch.no_grad():
                inputs = model.preprocess(observations)
            return model.evaluate(inputs, replay.to(self._device))

    # ---- demonstrations -----------------------------------------------------------------------------------------

    def _taught_by(self, path: str | None) -> Teacher:
        """Return a folder's samples; opened at their first use, since whoever only evaluates has no need of them."""
        assert path is not None, "an algorithm whose unit is demonstration names their folder in its spec"
        if path not in self._teachers:
            self._teachers[path] = Teacher(path, self.model, self._seed)
        return self._teachers[path]

    def _imitate(self, key: tuple[int, ...], sums: Sums) -> None:
        """Add the gradient of ``imitation_weight`` x the mean of ``-log prob`` of a minibatch of demonstrations."""
        config = self.config
        if config.demonstrations is None:
            return
        data = self._taught_by(config.demonstrations).minibatch(config.imitation_batch, *key)
        valid_SH1 = data.trajectories.valid[:, 0, :, None].to(self._device)
        entries = (valid_SH1.sum() * data.trajectories.logp.shape[-1]).double()
        ranks.add_up([entries])
        parts = list(self._micro_batches(data, torch.arange(len(valid_SH1))))
        missing = self._missing(len(parts))
        for part in parts:
            with computing():
                evaluation = self._evaluate(self.model, data.observations[part], data.replay[part])
                logp_SHK = evaluation.logp.float()
                mask_SHK = valid_SH1[part].expand(logp_SHK.shape)
                total = torch.where(mask_SHK, -logp_SHK, 0.0).double().sum()
                loss = Loss((config.imitation_weight * total / entries.clamp(min=1.0)).float())
                loss.metrics["imitation_nll"] = (total.detach(), mask_SHK.sum())
                self._backward(loss.total, evaluation)
            sums.count(loss)
        self._accompany(data, missing)

    # ---- passes -------------------------------------------------------------------------------------------------

    def _passes(self, data: Assembled, batch: TensorDict, step: int) -> dict[str, float]:
        spec, samples = self.algorithm.spec, len(batch)
        size, minibatches = self._minibatches(samples)
        whole = Sums()
        for number in range(spec.passes):
            if spec.unit == "demonstration" and number == 0:
                order = torch.arange(samples)  # drawn in random order over all ranks
            else:
                shuffle = torch.Generator().manual_seed(derive(self._seed, "shuffle", step, number))
                order = torch.randperm(samples, generator=shuffle)
            this_pass = Sums()
            for place in range(minibatches):  # a rank that has no samples left still takes part in the sums
                chosen = order[place * size : (place + 1) * size]
                self._optimizer_step(data, batch, chosen, (step, number, place), this_pass)
            this_pass.add_up_over_ranks()
            whole.add(this_pass)
            if self.algorithm.stop(this_pass.means()):
                break
        return {f"train/{name}": value for name, value in whole.means().items()} | {"train/passes": float(number + 1)}

    def _minibatches(self, samples: int) -> tuple[int, int]:
        """Return samples of a minibatch on this rank, and how many minibatches a pass has on all ranks."""
        sizes, count = minibatches(ranks.counts(samples), self.algorithm.spec.minibatch_size)
        return sizes[ranks.rank()], count

    def _optimizer_step(
        self, data: Assembled, batch: TensorDict, chosen: Tensor, key: tuple[int, int, int], sums: Sums
    ) -> None:
        """Take one step on the ``chosen`` samples; ``key`` is (training step, pass, place in the pass)."""
        self._optimizer.zero()
        denominators = {name: one.to(self._device) for name, one in self.algorithm.denominators(batch[chosen]).items()}
        ranks.add_up(denominators[name] for name in sorted(denominators))
        parts = list(self._micro_batches(data, chosen))
        missing = self._missing(len(parts))
        for part in parts:
            with computing():
                evaluation = self._evaluate(self.model, data.observations[part], data.replay[part])
                loss = self.algorithm.loss(batch[part].to(self._device), evaluation, denominators)
                self._backward(loss.total, evaluation)
            sums.count(loss)
            if key[1:] == (0, 0) and self.algorithm.spec.unit != "demonstration":
                self._compare(data, part, evaluation.logp, sums)
        self._accompany(data, missing)
        self._imitate(key, sums)
        norm = self._optimizer.update()
        if math.isnan(norm):
            sums.total("bad_steps", 1.0 / ranks.world())
        else:
            sums.mean("grad_norm", norm)
        if norm == 0:
            sums.total("empty_steps", 1.0 / ranks.world())

    def _backward(self, total: Tensor | float, evaluation: Any) -> None:
        """Compute gradients; where parameters are cut, of all of them on every rank, if only zeros."""
        if self._cut:
            total = total + 0.0 * (evaluation.logp.nan_to_num().sum() + evaluation.value.sum())
        if isinstance(total, Tensor):
            total.backward()

    def _accompany(self, data: Assembled, passes: int) -> None:
        """Take part in passes that other ranks make and this one has no samples for."""
        for _ in range(passes):
            with computing():
                self._backward(0.0, self._evaluate(self.model, *self._spare(data)))

    @torch.no_grad()
    def _compare(self, data: Assembled, part: Tensor, logp: Tensor, sums: Sums) -> None:
        """Measure how far generator and trainer are apart at equal weights: before the first update, on fresh chunks."""
        trajectories = data.trajectories[data.trajectories.exists][part]
        same = (trajectories.version == self.version)[:, None] & trajectories.valid
        if same.any():
            gap = float((logp.cpu() - trajectories.logp)[same].abs().mean())
            sums.mean("generator_gap", gap)
            if gap > self.config.generator_gap_limit:
                log.warning(
                    "generator and trainer differ by %.3g nats an entry at equal weights (train.generator_gap_limit %.3g): "
                    "ratios start away from 1; look at precision, dropout and batch-dependent layers",
                    gap,
                    self.config.generator_gap_limit,
                )

    def _micro_batches(self, data: Assembled, chosen: Tensor) -> Iterator[Tensor]:
        """Cut a minibatch into parts that fit: at most so many samples, and so many tokens with padding."""
        config = self.config
        if config.micro_batch_tokens is None:
            yield from chosen.split(config.micro_batch or max(1, len(chosen))) if len(chosen) else ()
            return
        tokens = self.model.count_tokens(data.observations[chosen]).tolist()
        first, longest = 0, 0
        for place, length in enumerate(tokens):
            count = place - first + 1
            full = max(longest, length) * count > config.micro_batch_tokens or count > (config.micro_batch or count)
            if place > first and full:
                yield chosen[first:place]
                first, longest = place, 0
            longest = max(longest, length)
        if len(chosen):
            yield chosen[first:]

    def describe(self) -> tuple[dict[str, Any], int, int]:
        """Return the model's manifest, its parameters, and how many of them are trained."""
        trainable = sum(one.numel() for one in self.model.trainable().values())
        return dict(self.model.manifest()), sum(one.numel() for one in self.model.parameters()), trainable

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the weights (``model/``) and the optimizer's state; returns JSON-able numbers for :meth:`load`.

        Where parameters are cut among ranks, all must be told to.
        """
        cut = sharding.is_sharded(self.model)
        with self._weights.here(), sharding.gathered(self.model):
            if not cut or ranks.rank() == 0:
                self.model.save(folder / "model")
        with self._optimizer.at_work():
            tensors, numbers = self._optimizer.state()
            state_files.write(folder, tensors, together=cut)
        return {"version": self.version, "optimizer": numbers, "algorithm": self.algorithm.state()}

    def load(self, folder: Path, numbers: Mapping[str, Any]) -> None:
        """Take back what :meth:`save` wrote, in place."""
        with self._weights.here(write=True), sharding.gathered(self.model, write=True):
            self.model.load(folder / "model")
        with self._optimizer.at_work():
            tensors = state_files.read(folder, self._optimizer.like)
            self._optimizer.load_state(tensors, numbers["optimizer"])
        self.version = numbers["version"]
        self.algorithm.load_state(numbers["algorithm"])
