"""The algorithm contract: how finished units become a loss. Blind to Ray, sharding and simulators.

Letters: U trajectories (windows, or rollouts of groups), T chunk steps, H actions in a chunk, K log-prob entries an
action, V values a chunk, S samples (chunks) of a training step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlvla.batch import Evaluation, Loss, Trajectories
    from rlvla.receipts import UnitReport
    from rlvla.specs import AlgorithmSpec


class Algorithm(ABC):
    """What the trainer calls in a training step::

        batch = algorithm.prepare(trajectories)                     # once; [S], one entry a chunk
        for _ in range(spec.passes):
            for minibatch in shuffled(batch):
                denominators = algorithm.denominators(minibatch)     # summed over ranks
                for part in micro_batches(minibatch):
                    loss = algorithm.loss(part, model.evaluate(...), denominators)
                    loss.total.backward()                           # parts add up to the minibatch's loss exactly
            if algorithm.stop(metrics): break

    ``prepare`` returns a TensorDict ``[S]`` of whatever columns ``loss`` wants (advantage, mask, old log-probs, ...):
    the trainer only cuts and permutes its rows, in step with the observations and replays of the same chunks.
    """

    spec: AlgorithmSpec

    @abstractmethod
    def __init__(self, config: Any) -> None: ...

    @abstractmethod
    def prepare(self, trajectories: Trajectories) -> TensorDict:
        """Return advantages, returns, masks and old log-probs of each chunk, batch ``[S]``."""

    @abstractmethod
    def denominators(self, batch: TensorDict) -> dict[str, Tensor]:
        """Return by what each term of the loss is divided, for one optimizer step: sums over ``batch``, so that they
        can be added over ranks."""

    @abstractmethod
    def loss(self, batch: TensorDict, evaluation: Evaluation, denominators: Mapping[str, Tensor]) -> Loss:
        """Return this part's share of the loss: sums divided by ``denominators``, never means of the part."""

    def keep(self, report: UnitReport) -> bool:
        """Say whether a finished unit is trained on. One that is not gives up its place and the next moves up."""
        return True

    def stop(self, metrics: Mapping[str, float]) -> bool:
        """Say whether the remaining passes over the data are left out, given the metrics of the pass just done."""
        return False

    def progress(self, step: int, steps: int) -> None:
        """Called before each training step, for what changes with it (schedules, critic warm-up).

        Args:
            step: the step's number, from 0: also the version of the weights that it starts from, so that a chunk's lag is
                ``step - version``.
            steps: training steps wanted.
        """

    def state(self) -> dict[str, Any]:
        """Return JSON-able state for an exact resume."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned."""
