"""The generator actor: acts with its own copy of the trainable weights."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from rlvla.batch import Action, ObservationBatch
from rlvla.errors import NonFiniteError, TransportError
from rlvla.model import Model
from rlvla.noise import Noise
from rlvla.receipts import CallReceipt, GenerateReceipt
from rlvla.transport import Broadcast, Notice, Reference, Shelf, WeightTransport
from rlvla.turns import computing
from rlvla.weights import Weights, copy_into, products_in


class GeneratorActor:
    """Chooses chunks for any slots.

    Args:
        model: the acting copy.
        fixed_rows: deterministic mode: every batch has this many rows, each at its own place, since what else is in a
            batch changes the last bits of a row.
        precision: of matrix products, ``fp32`` or ``bf16``.
        shelf: where a trainer rank of this process leaves weights.
    """

    def __init__(
        self, model: Model, fixed_rows: int | None = None, precision: str = "fp32", shelf: Shelf | None = None
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.version = -1
        self._fixed_rows = fixed_rows
        self._device = next(model.parameters()).device
        self._precision = precision
        self._staged: tuple[Weights, int] | None = None
        self._ways: dict[str, WeightTransport] = {} if shelf is None else {"process": shelf}

    def connect(self, meeting: tuple[str, int], number: int, ends: int) -> None:
        """Become an end of the group that weights are broadcast in."""
        self._ways["broadcast"] = Broadcast(meeting, number, ends, self._device)

    def offer(self, told: Weights | Notice, version: int) -> CallReceipt:
        """Take new weights, or those that a notice announces; they are used from the next batch on.

        Raises:
            NonFiniteError: a weight is not a number; the old ones stay.
            TransportError: they did not come.
        """
        began = time.monotonic_ns()
        way = self._ways.get(told.via) if isinstance(told, Notice) else Reference()
        if way is None:
            raise TransportError(f"this generator has no way to receive weights by {told.via}")  # type: ignore[union-attr]
        weights = way.receive(told)
        for name, tensor in weights.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise NonFiniteError(f"version {version} of {name} has values that are not finite: not published")
        self._staged = (weights, version)
        return CallReceipt(began, (time.monotonic_ns() - began) / 1e9)

    def act(
        self,
        observations: Sequence[ObservationBatch],
        rows: Sequence[Sequence[int]],
        places: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        greedy: bool = False,
    ) -> tuple[GenerateReceipt | Action, ...]:
        """Choose a chunk for some rows of each slot, in one batch; returns the receipt, then the actions of each slot.

        Args:
            observations: of all rows of each slot.
            rows: which of them, for each slot.
            places: where each row lies in a batch of fixed shape, modulo its rows; of rows with one place the later ones go
                into a further batch.
            keys: noise key of each row.
            greedy: the most likely chunk instead of a sample.
        """
        began = time.monotonic_ns()
        self._swap()
        picked = [batch[list(some)] for batch, some in zip(observations, rows, strict=True)]
        observation = ObservationBatch.joined(picked)
        key_n = torch.tensor([key for some in keys for key in some], dtype=torch.int64)
        if self._fixed_rows is None:
            action = self._choose(observation, key_n, greedy)
        else:
            place_n = [place % self._fixed_rows for some in places for place in some]
            action = self._choose_in_place(observation, key_n, place_n, self._fixed_rows, greedy)
        seconds = (time.monotonic_ns() - began) / 1e9
        receipt = GenerateReceipt(rows=len(key_n), version=self.version, seconds=seconds, began_ns=began)
        return receipt, *action.split([len(some) for some in rows])

    def _choose(self, observation: ObservationBatch, key_n: Tensor, greedy: bool) -> Action:
        with computing(), torch.no_grad(), products_in(self._precision, self._device):
            inputs = self.model.preprocess(observation)
            return self.model.act(inputs, Noise(key_n.to(self._device)), greedy=greedy).cpu()

    def _choose_in_place(
        self, observation: ObservationBatch, key_n: Tensor, place_n: Sequence[int], fixed_rows: int, greedy: bool
    ) -> Action:
        """Choose in batches of one shape, each row at its place: both the shape and the place change its last bits."""
        batches: list[dict[int, int]] = []  # place to row of each
        for row, place in enumerate(place_n):
            free = next((one for one in batches if place not in one), None)
            if free is None:
                batches.append(free := {})
            free[place] = row
        parts: list[Action] = []
        order: list[int] = []
        for batch in batches:
            source = torch.zeros(fixed_rows, dtype=torch.int64)
            source[list(batch)] = torch.tensor(list(batch.values()))
            parts.append(self._choose(observation[source], key_n[source], greedy)[list(batch)])
            order += batch.values()
        whole: Action = torch.cat(parts) if len(parts) > 1 else parts[0]  # type: ignore[arg-type,assignment]
        return whole[torch.tensor(order).argsort()]

    def _swap(self) -> None:
        """Take over staged weights in place, between two batches."""
        if self._staged is not None:
            weights, version = self._staged
            assert version >= self.version, "published version went backwards"
            copy_into(self.model, weights)
            self.version, self._staged = version, None
            with computing():
                self.model.weights_changed(version)
