"""CUDA graphs of one function, one for each shape of its inputs, where replaying is measured to be faster than calling.

A graph saves launching a thousand kernels one by one, which is most of the time of a small batch; at a large one nothing
is saved, and captured kernels have been seen to be slower. So a shape is timed both ways once, and the faster stays; once
a shape has gained nothing, larger ones are not tried. Weights may change in place: a replay reads them where they were.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvla import turns

log = logging.getLogger(__name__)

Inputs = tuple[Tensor | None, ...]
_WARM, _TIMED = 2, 3
"""Calls before a capture (kernels are compiled and chosen in them), and calls that are timed."""
_GAIN = 0.97
"""A graph that takes more of the time without it than this is not worth keeping."""


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Timing:
    """What one shape was measured at, in milliseconds a call."""

    shapes: tuple[tuple[int, ...], ...]
    eager_ms: float
    graph_ms: float


class Graphs:
    """Calls a function of tensors on a GPU, without gradients; outputs are the caller's own.

    Args:
        function: the same kernels for the same shapes, nothing on the host that depends on values.
        limit: graphs that are kept (each holds its inputs and outputs; what lies between shares memory); shapes that
            come later are called.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], limit: int = 64) -> None:
        self._function, self._limit = function, limit
        self.clear()

    def clear(self) -> None:
        """Forget all graphs: weights have moved in memory."""
        self._calls: dict[object, int] = {}
        self._captured: dict[object, _Captured | None] = {}
        self._large = math.inf
        self.timings: list[Timing] = []

    def __call__(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        key = tuple((tuple(one.shape), one.dtype) if one is not None else None for one in inputs)
        if key not in self._captured:
            self._calls[key] = self._calls.get(key, 0) + 1
            kept = sum(one is not None for one in self._captured.values())
            if self._calls[key] <= _WARM or kept >= self._limit or _size(inputs) > self._large:
                return self._function(*inputs)
            self._captured[key] = self._faster(inputs)
        chosen = self._captured[key]
        return self._function(*inputs) if chosen is None else self._replay(chosen, inputs)

    def _replay(self, captured: _Captured, inputs: Inputs) -> tuple[Tensor, ...]:
        for mine, given in zip(captured.inputs, inputs, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given, non_blocking=True)
        captured.graph.replay()
        return tuple(one.clone() for one in captured.outputs)

    def _faster(self, inputs: Inputs) -> _Captured | None:
        """Return a graph for inputs of these shapes; None where it does not pay."""
        with turns.alone():
            captured = self._capture(inputs)
            eager, graph = (
                _milliseconds(lambda: self._function(*inputs)),
                _milliseconds(lambda: self._replay(captured, inputs)),
            )
        self.timings.append(Timing(tuple(tuple(one.shape) for one in inputs if one is not None), eager, graph))
        log.info("shapes %s: %.1f ms by a CUDA graph, %.1f ms without", self.timings[-1].shapes, graph, eager)
        if graph < _GAIN * eager:
            return captured
        self._large = min(self._large, _size(inputs))
        return None

    def _capture(self, inputs: Inputs) -> _Captured:
        own = tuple(one.clone() if one is not None else None for one in inputs)
        graph = torch.cuda.CUDAGraph()
        # Memory is shared with a graph that lives: a pool whose graphs are all gone cannot be captured into.
        pool = next((one.graph.pool() for one in self._captured.values() if one is not None), None)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outputs = self._function(*own)
        return _Captured(graph, own, outputs)


def _size(inputs: Inputs) -> int:
    return sum(one.numel() for one in inputs if one is not None)


def _milliseconds(call: Callable[[], object]) -> float:
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_TIMED):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / _TIMED
