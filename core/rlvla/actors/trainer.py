"""The trainer actor: collects played chunks, and turns the units of a training step into optimizer steps.

Blind to the algorithm (it cuts and permutes what ``Algorithm.prepare`` returns) and to the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch import Tensor

from rlvla.algorithm import Algorithm
from rlvla.assembly import Assembled, Assembly, Entry
from rlvla.batch import Action, Loss, ObservationBatch, Outcome
from rlvla.configs import TrainConfig
from rlvla.errors import NonFiniteError
from rlvla.model import Model
from rlvla.receipts import TrainReceipt
from rlvla.seeds import derive
from rlvla.weights import Weights, snapshot

_VALUE_BATCH = 256
"""Final observations in one value forward."""


class TrainerActor:
    """Owns the training copy of the weights and the optimizer."""

    def __init__(self, model: Model, algorithm: Algorithm, config: TrainConfig, *, seed: int, steps: int) -> None:
        self.model = model.train()
        self.algorithm = algorithm
        self.config = config
        self.version = 0
        self.steps = steps
        self._seed = seed
        self._bad_steps = 0
        self._assembly = Assembly()
        groups = model.parameter_groups(config.learning_rate)
        self._rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, weight_decay=config.weight_decay, eps=config.adam_eps
        )

    def record(
        self,
        before: ObservationBatch,
        action: Action,
        outcome: Outcome,
        after: ObservationBatch,
        version: int,
        entries: Sequence[Entry],
    ) -> None:
        """Keep one chunk step of a slot."""
        self._assembly.record(before, action, outcome, after, version, entries)

    def forget(self, ticket: int, member: int | None = None) -> None:
        """Drop what was recorded of a unit, or of one member."""
        self._assembly.forget(ticket, member)

    def publish(self) -> tuple[int, Weights]:
        """Return the version that the weights have now, and a copy of them."""
        return self.version, snapshot(self.model)

    def train(self, tickets: Sequence[int], step: int) -> TrainReceipt:
        """Do training step ``step`` (from 0) on these units; the version goes up by one.

        Raises:
            NonFiniteError: the loss or gradient was not finite too often in a row.
        """
        began = time.perf_counter()
        metrics: dict[str, float] = {}
        if tickets:
            self.algorithm.progress(step, self.steps)
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self._decay(step)
            data = self._assembly.take(tickets, final_values=self.algorithm.spec.values)
            self._fill_final_values(data)
            batch = self.algorithm.prepare(data.trajectories)
            lag = self.version - data.trajectories.version[data.trajectories.exists]
            metrics = self._passes(data, batch, step)
            metrics["train/staleness_max"] = float(lag.max())
            metrics["train/staleness_mean"] = float(lag.float().mean())
            metrics["train/samples"] = float(len(lag))
            metrics["train/learning_rate"] = self.optimizer.param_groups[0]["lr"]
        self.version += 1
        return TrainReceipt(version=self.version, seconds=time.perf_counter() - began, metrics=metrics)

    def trial(self, observation: ObservationBatch, action: Action) -> float:
        """Return the seconds that a forward and backward pass takes for each sample; changes no weights."""
        device = next(self.model.parameters()).device
        for _ in range(2):  # the first pass of anything is slow
            began = time.perf_counter()
            with torch.no_grad():
                inputs = self.model.preprocess(observation)
            evaluation = self.model.evaluate(inputs, action.replay.to(device))
            (evaluation.logp.mean() + evaluation.value.sum()).backward()
            seconds = time.perf_counter() - began
        self.optimizer.zero_grad(set_to_none=True)
        return seconds / len(observation)

    def _decay(self, step: int) -> float:
        """Return the fraction of the learning rate in force: linear from 1 to ``final_learning_rate``."""
        done = min(1.0, step / max(1, self.steps - 1))
        return 1.0 + (self.config.final_learning_rate - 1.0) * done

    @torch.no_grad()
    def _fill_final_values(self, data: Assembled) -> None:
        if data.final_observations is None:
            return
        values = [
            self.model.value(self.model.preprocess(part))[:, 0] for part in data.final_observations.split(_VALUE_BATCH)
        ]
        data.trajectories.final_value[data.final_index] = torch.cat(values).cpu()

    def _passes(self, data: Assembled, batch: TensorDict, step: int) -> dict[str, float]:
        spec, samples = self.algorithm.spec, len(batch)
        size = min(spec.minibatch_size or samples, samples)
        meter = _Meter()
        for number in range(spec.passes):
            shuffle = torch.Generator().manual_seed(derive(self._seed, "shuffle", step, number))
            order = torch.randperm(samples, generator=shuffle)
            this_pass = _Meter()
            for chosen in order.split(size):
                self._optimizer_step(data, batch, chosen, this_pass)
            meter.add(this_pass)
            if self.algorithm.stop(this_pass.means()):
                break
        return {f"train/{name}": value for name, value in meter.means().items()} | {"train/passes": float(number + 1)}

    def _optimizer_step(self, data: Assembled, batch: TensorDict, chosen: Tensor, meter: _Meter) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        device = next(self.model.parameters()).device
        denominators = {name: one.to(device) for name, one in self.algorithm.denominators(batch[chosen]).items()}
        for part in self._micro_batches(chosen):
            with torch.no_grad():
                inputs = self.model.preprocess(data.observations[part])
            evaluation = self.model.evaluate(inputs, data.replay[part].to(device))
            loss = self.algorithm.loss(batch[part].to(device), evaluation, denominators)
            loss.total.backward()
            meter.count(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
            self._bad_steps = 0
            meter.mean("grad_norm", norm)
        else:
            self._bad_steps += 1
            meter.total("bad_steps", 1.0)
            if self._bad_steps >= self.config.max_bad_steps:
                raise NonFiniteError(
                    f"{self._bad_steps} optimizer steps in a row had a gradient that is not finite (norm {float(norm)}); "
                    "each was skipped. Lower train.learning_rate, or look at rewards and observations"
                )

    def _micro_batches(self, chosen: Tensor) -> Iterator[Tensor]:
        yield from chosen.split(self.config.micro_batch or len(chosen))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the weights (``model/``) and the optimizer's state; returns JSON-able numbers for :meth:`load`."""
        self.model.save(folder / "model")
        names = {id(one): name for name, one in self.model.named_parameters()}
        tensors = {
            f"{names[id(parameter)]}/{key}": torch.as_tensor(value).detach().cpu().contiguous()
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }
        save_file(tensors, folder / "optimizer.safetensors")
        return {"version": self.version, "bad_steps": self._bad_steps, "algorithm": self.algorithm.state()}

    def load(self, folder: Path, numbers: Mapping[str, Any]) -> None:
        """Take back what :meth:`save` wrote, in place."""
        self.model.load(folder / "model")
        parameters = dict(self.model.named_parameters())
        for key, value in load_file(folder / "optimizer.safetensors").items():
            name, _, field = key.rpartition("/")
            on_device = value if field == "step" else value.to(parameters[name].device)
            self.optimizer.state[parameters[name]][field] = on_device
        self.version = numbers["version"]
        self._bad_steps = numbers["bad_steps"]
        self.algorithm.load_state(numbers["algorithm"])


class _Meter:
    """Adds up sums and counts, and divides once."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._maxima: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def count(self, loss: Loss) -> None:
        names = list(loss.metrics)
        numbers = torch.stack(
            [torch.as_tensor(one, dtype=torch.float64).detach() for name in names for one in loss.metrics[name]]
        )
        values = numbers.tolist()  # one transfer
        for place, name in enumerate(names):
            self._put(name, values[2 * place], values[2 * place + 1])
        for name, largest in loss.maxima.items():
            self._maxima[name] = max(self._maxima.get(name, -float("inf")), float(largest))

    def mean(self, name: str, value: Tensor | float) -> None:
        self._put(name, float(value), 1.0)

    def total(self, name: str, value: float) -> None:
        self._totals[name] = self._totals.get(name, 0.0) + value

    def add(self, other: _Meter) -> None:
        for name, (total, count) in other._sums.items():
            self._put(name, total, count)
        for name, largest in other._maxima.items():
            self._maxima[name] = max(self._maxima.get(name, largest), largest)
        for name, value in other._totals.items():
            self.total(name, value)

    def _put(self, name: str, total: float, count: float) -> None:
        before, n = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (before + total, n + count)

    def means(self) -> dict[str, float]:
        return (
            {name: total / count for name, (total, count) in self._sums.items() if count} | self._maxima | self._totals
        )
