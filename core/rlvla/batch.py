"""What travels between simulator, generator and trainer: typed, shaped tensor containers.

Letters: N rows, H actions in a chunk, A action dimensions, K log-prob entries an action, V values a chunk, L bytes of
an instruction; U trajectories, T chunk steps, S samples (chunks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorClass, TensorDict
from torch import Tensor

from rlvla.simulator import Observation
from rlvla.text import decode_text, encode_text


class ObservationBatch(TensorClass["nocast"]):
    """Observations of N rows as tensors. Text is UTF-8 bytes, zero-padded, so that it can be cut and sent like a picture.

    Example:
        >>> ObservationBatch.of(observation, max_instruction_bytes=64).instructions()
        ['push the red block', 'push the blue block']
    """

    images: TensorDict
    """Camera name to uint8 ``[N, height, width, 3]``."""
    state: Tensor
    """float32 ``[N, S]``."""
    instruction: Tensor
    """uint8 ``[N, L]``."""

    @classmethod
    def of(cls, observation: Observation, max_instruction_bytes: int) -> ObservationBatch:
        """Copy a simulator's observation."""
        rows = len(observation.instruction)
        return cls(
            images=TensorDict(
                {name: torch.as_tensor(picture).clone() for name, picture in observation.images.items()},
                batch_size=[rows],
            ),
            state=torch.as_tensor(observation.state).clone(),
            instruction=torch.from_numpy(encode_text(observation.instruction, max_instruction_bytes)),
            batch_size=[rows],
        )

    @classmethod
    def like(cls, other: ObservationBatch, rows: int) -> ObservationBatch:
        """Return ``rows`` times the first row of another batch: filling for rows that show nothing yet."""
        return other[torch.zeros(rows, dtype=torch.int64)]

    @staticmethod
    def joined(parts: Sequence[ObservationBatch]) -> ObservationBatch:
        """Return the rows of several batches, one after another."""
        whole: Any = torch.cat(list(parts)) if len(parts) > 1 else parts[0]  # type: ignore[arg-type]
        return whole  # type: ignore[no-any-return]

    def instructions(self) -> list[str]:
        """Return the text of each row."""
        return decode_text(self.instruction.cpu().numpy())


class Action(TensorClass["nocast"]):
    """What a model chose for N rows."""

    actions: Tensor
    """float32 ``[N, H, A]``, in the units that the simulator's spec declares."""
    logp: Tensor
    """float32 ``[N, H, K]``, of what was sampled, before any clipping or conversion."""
    value: Tensor
    """float32 ``[N, V]``; ``[N, 0]`` without a value head."""
    replay: TensorDict
    """What ``Model.evaluate`` needs to compute the same log-probs again (token ids, a denoising chain, ...)."""


class Outcome(TensorClass["nocast"]):
    """What a chunk did to the n rows that were active, in the order of their actions."""

    reward: Tensor
    """float32 ``[n, H]``."""
    terminated: Tensor
    """bool ``[n, H]``."""
    truncated: Tensor
    """bool ``[n, H]``."""
    valid: Tensor
    """bool ``[n, H]``."""
    success: Tensor
    """bool ``[n]``."""

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], rows: int) -> Outcome:
        """Wrap a simulator's arrays."""
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(**tensors, batch_size=[rows])


class Evaluation(TensorClass["nocast"]):
    """What a model says now about S chunks chosen earlier, with gradients."""

    logp: Tensor
    """float32 ``[S, H, K]``."""
    entropy: Tensor
    """float32 ``[S, H, K]``, nats."""
    value: Tensor
    """float32 ``[S, V]``; ``[S, 0]`` without a value head."""


class Trajectories(TensorClass["nocast"]):
    """Finished units of one training step, in canonical (ticket) order; batch ``[U, T]``, padded where ``exists`` is false.

    A window is one trajectory of ``spec.window`` chunks; a group is G trajectories with one ``group`` number; a sample of a
    demonstration is a trajectory of one chunk, of which ``valid`` alone says something.
    """

    exists: Tensor
    """bool ``[U, T]``: this chunk was played. Where true, in row-major order, are the S samples."""
    reward: Tensor
    """float32 ``[U, T, H]``, as the simulator gave it."""
    terminated: Tensor
    """bool ``[U, T, H]``."""
    truncated: Tensor
    """bool ``[U, T, H]``."""
    valid: Tensor
    """bool ``[U, T, H]``: executed while its episode ran; the ending action counts."""
    success: Tensor
    """bool ``[U, T]``: the task was solved in this chunk."""
    logp: Tensor
    """float32 ``[U, T, H, K]``: behaviour log-probs."""
    value: Tensor
    """float32 ``[U, T, V]``: behaviour values."""
    final_value: Tensor
    """float32 ``[U, T]``: value of the observation after this chunk (before any reset), where the chunk ended an
    episode or the window; zero elsewhere."""
    version: Tensor
    """int64 ``[U, T]``: weights that produced the chunk."""
    group: Tensor
    """int64 ``[U, T]``: equal for rollouts of one task from one initial state."""
    reference_logp: Tensor | None = None
    """float32 ``[U, T, H, K]``: the same actions under the policy that training started from; only where
    ``spec.reference`` asks for it."""
    proximal_logp: Tensor | None = None
    """float32 ``[U, T, H, K]``: the same actions under the weights that the training step starts from; only where
    ``spec.proximal`` asks for it. NaN: as evaluated at the first visit (``spec.proximal_at_first_visit``)."""


@dataclass
class Loss:
    """A part's share of the loss of one optimizer step."""

    total: Tensor
    """Scalar with gradients: coefficients times sums over denominators."""
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Name to (sum, count) over the part's valid entries; the trainer adds them up over parts, passes and ranks and
    divides once. A count of 0 in all means that there is nothing to report."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Name to a maximum over the part."""
    distributions: dict[str, Tensor] = field(default_factory=dict)
    """Name to the counts of :func:`rlvla.rl.quantiles.counts` over the part's valid entries; the trainer adds them up like
    ``metrics`` and reports quantiles, ``<name>_p01`` to ``<name>_p99``."""
