"""Backbone features that stay on their device between acting and training: replay carries a number, not 2 MB a chunk.

Through host memory 75 MB for each batch of 32 would be copied off the device, gathered, and copied back, by threads that the
actors need.

Letters: N rows, S tokens, C features.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

_ROWS = 1 << 16
"""Most rows of a batch: a handle is the batch's number times this, plus the row's."""


class FeatureBank:
    """Keeps the features of the last chunks; shared by all copies of a model in a process.

    Args:
        capacity: chunks.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._kept = capacity, 0
        self._batches: OrderedDict[int, Tensor] = OrderedDict()
        self._numbers = itertools.count(int.from_bytes(os.urandom(5)))  # handles of another process are found in none
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureBank:
        return self

    def put(self, features_NSC: Tensor) -> Tensor:
        """Keep a batch, dropping the oldest ones beyond the capacity; returns handles, int64 ``[N]``."""
        rows = len(features_NSC)
        with self._lock:
            number = next(self._numbers)
            self._batches[number] = features_NSC
            self._kept += rows
            while self._kept > self._capacity and len(self._batches) > 1:
                _, oldest = self._batches.popitem(last=False)
                self._kept -= len(oldest)
        return number * _ROWS + torch.arange(rows)

    def get(self, handle_N: Tensor) -> Tensor | None:
        """Return the features of rows, ``[N, S, C]``; None: not all of them are there."""
        wanted = [divmod(one, _ROWS) for one in handle_N.tolist()]
        with self._lock:
            found = {number: self._batches.get(number) for number, _ in wanted}
        if any(one is None for one in found.values()):
            return None
        parts: list[Tensor] = []
        order: list[int] = []
        for number, batch in found.items():
            places = [place for place, (one, _) in enumerate(wanted) if one == number]
            assert batch is not None
            rows = [wanted[place][1] for place in places]
            parts.append(batch[rows] if len(rows) < len(batch) or rows != list(range(len(batch))) else batch)
            if batch.is_cuda:  # made on the generator's stream, read on the trainer's
                batch.record_stream(torch.cuda.current_stream(batch.device))
            order += places
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        if order == sorted(order):
            return whole
        return whole[torch.tensor(order).argsort().to(whole.device)]
