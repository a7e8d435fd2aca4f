"""Backbone features that stay on their device between acting and training: replay carries a number, not 2 MB a chunk.

Through host memory 75 MB for each batch of 32 would be copied off the device, gathered, and copied back, by threads that the
actors need.

Letters: N rows, S tokens, C features.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

_ROWS = 1 << 16
"""Most rows of a batch: a handle is the batch's number times this, plus the row's."""
_TELL = 16
"""Requests in vain before that is said: what was acted before a run was resumed is not there, once."""


class FeatureBank:
    """Keeps the features of the last chunks; shared by all copies of a model in a process.

    Args:
        capacity: chunks.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._kept, self._missed = capacity, 0, 0
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
            self._miss()
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

    def _miss(self) -> None:
        self._missed += 1
        if self._missed == _TELL:
            log.warning(
                "model.keep_features: %d micro-batches had chunks of which the features are not here, and computed the backbone "
                "again: dropped (got room for %d chunks, wanted all from acting to training), or made by a generator that is "
                "not in the trainer's process (wanted placement 'collocated', and slots that divide evenly among GPUs); without that, "
                "keep_features 0 saves the memory",
                self._missed,
                self._capacity,
            )
