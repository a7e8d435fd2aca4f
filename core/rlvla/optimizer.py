"""AdamW with what RL needs around it: schedule, clipping, a guard against non-finite gradients, a running average.

Every optimizer step sees the gradient of the whole minibatch, over all micro-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlvla import ranks, sharding
from rlvla.configs import TrainConfig
from rlvla.errors import CheckpointError, ConfigError, NonFiniteError, NothingToLearnError
from rlvla.model import Model
from rlvla.offload import Away
from rlvla.weights import Weights


class Optimizer:
    """Changes a model's trainable parameters.

    Args:
        model: whose parameters.
        config: rate, schedule, clipping, running average.
        value_scale: what the learning rate is multiplied by for the value head.
    """

    def __init__(self, model: Model, config: TrainConfig, value_scale: float = 1.0) -> None:
        self._config = config
        self._named = model.trainable()
        self._bad_steps, self._max_bad_steps = 0, config.max_bad_steps
        self._empty_steps, self._max_empty_steps = 0, config.max_empty_steps
        self.adam = torch.optim.AdamW(
            _groups(model, config.learning_rate, value_scale),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
        )
        self._rates = [group["lr"] for group in self.adam.param_groups]
        self._average: Weights | None = None
        if config.ema_decay is not None:
            self._average = {name: one.detach().clone() for name, one in self._named.items()}
        self._away = Away()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold while anything but weights is needed: with ``train.offload`` the rest waits in host memory outside of it."""
        self._away.bring_back()
        try:
            yield
        finally:
            if self._config.offload != "none":
                self.zero()
            if self._config.offload in ("optimizer", "all"):
                moments = [one for state in self.adam.state.values() for one in state.values()]
                large = [
                    one for one in (*moments, *(self._average or {}).values()) if torch.is_tensor(one) and one.dim()
                ]
                self._away.take(large)

    @property
    def learning_rate(self) -> float:
        """The rate in force, of the first group."""
        return float(self.adam.param_groups[0]["lr"])

    def begin_step(self, step: int, steps: int) -> None:
        """Set the rate of training step ``step`` (from 0) of ``steps``."""
        factor = self.factor(step, steps)
        for group, rate in zip(self.adam.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def factor(self, step: int, steps: int) -> float:
        """Return the fraction of the learning rate at a training step: a rise, then the way to the final fraction."""
        config = self._config
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        done = min(1.0, (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps))
        if config.schedule == "cosine":
            done = (1.0 - math.cos(math.pi * done)) / 2.0
        return 1.0 + (config.final_learning_rate - 1.0) * done

    def zero(self) -> None:
        """Forget gradients."""
        self.adam.zero_grad(set_to_none=True)

    def update(self) -> float:
        """Add gradients up over ranks, clip, and step; returns the norm before clipping.

        A step is skipped where the norm is not finite (nan is returned). Where it is exactly 0, nothing was there to learn
        from; Adam's moments go on (decision 014).

        Raises:
            NonFiniteError: too many steps in a row had a gradient that is not finite.
            NothingToLearnError: too many steps in a row had none.
        """
        norm = self._clipped()
        if not torch.isfinite(norm):
            self._bad_steps += 1
            if self._bad_steps >= self._max_bad_steps:
                raise NonFiniteError(
                    f"{self._bad_steps} optimizer steps in a row had a gradient that is not finite (norm {float(norm)}); "
                    "each was skipped. Lower train.learning_rate, or look at rewards and observations"
                )
            return math.nan
        self._bad_steps = 0
        self._empty_steps = self._empty_steps + 1 if norm == 0 else 0
        self._check_empty()
        self.adam.step()
        if self._average is not None and self._config.ema_decay is not None:
            with torch.no_grad():
                for name, one in self._named.items():
                    self._average[name].lerp_(one, 1.0 - self._config.ema_decay)
        return float(norm)

    def _clipped(self) -> Tensor:
        """Add gradients up over ranks (those that are cut among them are) and scale them down; returns the norm before."""
        plain, cut = _apart(self._named.values())
        if ranks.world() > 1:
            somewhere = ranks.anywhere([one.grad is not None for one in plain])
            for one, used in zip(plain, somewhere, strict=True):
                if (
                    used and one.grad is None
                ):  # a rank without samples in this step; what no rank trains Adam leaves alone
                    one.grad = torch.zeros_like(one)
            ranks.add_up(one.grad for one in plain if one.grad is not None)
        if not cut:
            return torch.nn.utils.clip_grad_norm_(plain, self._config.max_grad_norm)
        found = [[one.grad for one in some if one.grad is not None] for some in (plain, cut)]
        parts = [sharding.norm(some) for some in found if some]  # with adapters and no value head, all are cut
        norm: Tensor = torch.stack(parts).norm() if parts else torch.zeros(())
        for some in (plain, cut):
            torch.nn.utils.clip_grads_with_norm_(some, self._config.max_grad_norm, norm)
        return norm

    def _check_empty(self) -> None:
        if self._max_empty_steps is not None and self._empty_steps >= self._max_empty_steps:
            raise NothingToLearnError(
                f"{self._empty_steps} optimizer steps in a row had nothing to learn from (train.max_empty_steps "
                f"{self._max_empty_steps}): every group was filtered, all outcomes were equal, or no action was valid. Widen "
                "the filter, make the tasks easier or harder, start from another policy, or let the run go on "
                "(max_empty_steps unset)"
            )

    def averaged(self, weights: Weights) -> Weights:
        """Return weights with the running average in place of the trainable ones.

        Raises:
            ConfigError: no average is kept.
        """
        if self._average is None:
            raise ConfigError("eval.weights: got 'ema', but train.ema_decay is not set: no running average is kept")
        return {**weights, **{name: sharding.whole(one).clone() for name, one in self._average.items()}}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors (``"<parameter>/<what>"``), some cut among ranks, and JSON-able numbers, for an exact resume."""
        names = {id(one): name for name, one in self._named.items()}
        tensors = {
            f"{names[id(parameter)]}/{key}": torch.as_tensor(value).detach()
            for parameter, state in self.adam.state.items()
            for key, value in state.items()
        }
        tensors |= {f"{name}/average": one for name, one in (self._average or {}).items()}
        return tensors, {"bad_steps": self._bad_steps, "empty_steps": self._empty_steps}

    def like(self, name: str) -> Tensor:
        """Return zeros in the form that a tensor of :meth:`state` has on this rank.

        Raises:
            CheckpointError: it belongs to no parameter that is trained here.
        """
        parameter, _, what = name.rpartition("/")
        if parameter not in self._named:
            raise CheckpointError(f"the optimizer's state holds {name!r}, but no such parameter is trained here")
        return torch.zeros(()) if what == "step" else torch.zeros_like(self._named[parameter]).detach()

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned."""
        for key, value in tensors.items():
            name, _, what = key.rpartition("/")
            parameter = self._named[name]
            if what != "average":
                self.adam.state[parameter][what] = value if what == "step" else value.to(parameter.device)
            elif self._average is not None:
                self._average[name].copy_(value)
        self._bad_steps, self._empty_steps = numbers["bad_steps"], numbers.get("empty_steps", 0)


def _groups(model: Model, rate: float, value_scale: float) -> list[dict[str, Any]]:
    values = {id(one) for one in model.value_head()}
    if value_scale != 1.0 and not values:
        raise ConfigError(
            f"algo: a value learning rate of its own was asked for, {type(model).__name__} names no value_head()"
        )
    policy = [one for one in model.trainable().values() if id(one) not in values]
    head = [one for one in model.trainable().values() if id(one) in values]
    # On a GPU Adam hands many tensors of a group to one call, which takes whole or cut ones, not both.
    groups = [
        {"params": some, "lr": own_rate}
        for parameters, own_rate in ((policy, rate), (head, rate * value_scale))
        for some in _apart(parameters)
    ]
    return [group for group in groups if group["params"]]


def _apart(parameters: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return those that are whole on each rank, and those that are cut among ranks."""
    some = list(parameters)
    return [one for one in some if not isinstance(one, DTensor)], [one for one in some if isinstance(one, DTensor)]
