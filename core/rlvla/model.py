"""The model contract: a vision-language-action policy that can be acted with and trained.

Letters: N rows, H actions in a chunk, A action dimensions, K log-prob entries an action, V values a chunk
(1 at credit level ``chunk``, H at ``action``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rlvla.errors import ConfigError

if TYPE_CHECKING:
    from rlvla.batch import Action, Evaluation, ObservationBatch
    from rlvla.noise import Noise
    from rlvla.specs import AlgorithmSpec, ModelSpec, SimulatorSpec


class Model(nn.Module, ABC):
    """A policy. The generator and the trainer call it like this::

        model = MyModel(config, simulator_spec, algorithm_spec)
        inputs = model.preprocess(observation)                     # both
        action = model.act(inputs, noise)                          # generator, no gradients
        evaluation = model.evaluate(inputs, action.replay)         # trainer, gradients
        model.weights_changed(version)                             # generator, after weights were copied in place

    Three rules, each checked by :class:`rlvla.testing.ModelConformance`: at equal weights ``evaluate`` returns the
    log-probs and values that ``act`` returned; rows do not influence each other; what ``save`` writes, ``load`` reads.
    """

    spec: ModelSpec

    def __init__(
        self, config: Any, simulator: SimulatorSpec, algorithm: AlgorithmSpec | None, *, generator: torch.Generator
    ) -> None:
        """Build for a simulator's cameras, state and actions, and for the value head that an algorithm needs.

        Args:
            config: the plugin's own config; a checkpoint path in it is loaded here.
            simulator: what the simulator offers.
            algorithm: what the algorithm needs; None where the policy is only acted with.
            generator: the only source of randomness for fresh weights.
        """
        super().__init__()

    @abstractmethod
    def preprocess(self, observation: ObservationBatch) -> TensorDict:
        """Return what the network reads, batch ``[N]``, on the model's device; no gradients."""

    @abstractmethod
    def act(self, inputs: TensorDict, noise: Noise, greedy: bool = False) -> Action:
        """Choose a chunk for each row.

        Args:
            inputs: of :meth:`preprocess`.
            noise: random numbers of each row; all randomness comes from here.
            greedy: the most likely chunk instead of a sample; ``noise`` is not used.
        """

    @abstractmethod
    def evaluate(self, inputs: TensorDict, replay: TensorDict) -> Evaluation:
        """Return log-probs, entropy and values of chunks chosen earlier, with gradients."""

    def replay_of(self, inputs: TensorDict, actions: Tensor) -> TensorDict:
        """Return the replay under which :meth:`evaluate` gives the log-probs of given actions; needs ``spec.imitation``.

        Args:
            inputs: of :meth:`preprocess`.
            actions: float32 ``[N, H, A]`` in the simulator's units, from a demonstration; what the policy cannot produce
                exactly becomes the nearest that it can.
        """
        raise TypeError(f"{type(self).__name__} cannot be taught actions: its spec says imitation=False")

    def value(self, inputs: TensorDict) -> Tensor:
        """Return ``[N, V]`` values without choosing an action; cheap where the network allows it."""
        raise TypeError(f"{type(self).__name__} has no value head")

    def weights_changed(self, version: int) -> None:
        """Refresh what is derived from weights; called after they were replaced in place."""

    def reference(self) -> AbstractContextManager[None] | None:
        """Return a context in which ``evaluate`` is that of the policy that training started from (a LoRA adapter switched
        off), which costs no memory; None: the trainer keeps a frozen copy."""
        return None

    def value_head(self) -> Iterable[nn.Parameter]:
        """Return the parameters of the value head, which may have a learning rate of its own."""
        return ()

    def wrap_units(self) -> Iterable[nn.Module]:
        """Return the modules (transformer blocks) whose trainable matrices ``train.shard: fsdp`` gathers one at a time, while
        each computes; none: all that is trained is gathered for a pass. None lies in another, and nobody reads a matrix of one
        but its own ``forward``; vectors (norms, biases) stay whole."""
        return ()

    def count_tokens(self, observation: ObservationBatch) -> Tensor:
        """Return what each sample costs, int64 ``[S]``, for micro-batches by token budget; all alike by default."""
        return torch.ones(len(observation), dtype=torch.int64)

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write the weights and what is needed to read them again (safetensors and JSON, the model's public format)."""

    def export(self, directory: Path, dtype: Literal["bf16", "fp32"] | None = None) -> None:
        """Write a whole checkpoint in the model's public format, for whoever knows nothing of rlvla: what :meth:`save` leaves
        to a base is in it, adapters are merged. What ``save`` writes, where that is whole.

        Args:
            directory: made where it is not there.
            dtype: of all weights; None: as in the public files that they came from.

        Raises:
            ConfigError: a ``dtype`` that the model does not offer.
        """
        if dtype is not None:
            raise ConfigError(f"--dtype: got {dtype!r}, but {type(self).__name__} exports what it trains: leave it out")
        self.save(directory)

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote, in place.

        Raises:
            CheckpointError: another model, other shapes, missing or unexpected weights; all of them are named.
        """

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that training changes, by name. Only these (and buffers) travel to generators."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def manifest(self) -> Mapping[str, Any]:
        """Return what changes its numbers (checkpoint path, hash, revision, statistics key), for the run's manifest."""
        return {}
