"""Distributions of what a training step saw many times: waits, batch sizes, staleness. Light: the standard library."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_FINEST_S = 1e-4
"""Upper edge of the first bin of seconds; each further one is twice as wide."""
_MOST_BINS = 32


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: ``counts[i]`` values lie in ``[edges[i], edges[i + 1])``; the last bin holds its upper edge too.

    Example:
        >>> Histogram.of_numbers([0, 1, 1]).to_dict()
        {'edges': [0.0, 1.0, 2.0], 'counts': [1, 2]}
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """Sum of the values."""
    squares: float
    """Sum of their squares."""

    @classmethod
    def of_seconds(cls, values: Iterable[float]) -> Histogram:
        """Count seconds (at least 0) in bins whose width doubles: below 0.1 ms, below 0.2 ms, ..."""
        counted = Counter(values)
        bins = max(0, math.ceil(math.log2(max(counted, default=0.0) / _FINEST_S + 1e-12))) + 1
        return cls._between((0.0, *(_FINEST_S * 2**number for number in range(bins))), counted)

    @classmethod
    def of_numbers(cls, values: Iterable[int] | Mapping[int, int]) -> Histogram:
        """Count whole numbers (at least 0), or take them with their counts; a bin each, wider ones beyond 32."""
        counted = Counter(values)
        highest = max((value for value, count in counted.items() if count), default=0)
        width = -(-(highest + 1) // _MOST_BINS)
        bins = highest // width + 1
        return cls._between(tuple(float(width * number) for number in range(bins + 1)), counted)

    @classmethod
    def _between(cls, edges: tuple[float, ...], counted: Mapping[Any, int]) -> Histogram:
        counts = [0] * (len(edges) - 1)
        for value, count in counted.items():
            counts[min(bisect_right(edges, value) - 1, len(counts) - 1)] += count
        total = sum(value * count for value, count in counted.items())
        squares = sum(value * value * count for value, count in counted.items())
        return cls(edges, tuple(counts), float(total), float(squares))

    @property
    def n(self) -> int:
        return sum(self.counts)

    def to_dict(self) -> dict[str, list[float] | list[int]]:
        """Return edges and counts as JSON-able data."""
        return {"edges": [float(f"{edge:.6g}") for edge in self.edges], "counts": list(self.counts)}


def summary(name: str, values: Iterable[float] | Mapping[int, int]) -> dict[str, float]:
    """Return ``name_mean``, ``_p50``, ``_p95`` (nearest rank) and ``_max`` of values, or of values with their counts."""
    counted = Counter(values)
    n = counted.total()
    if not n:
        return {}
    ranked = sorted((value, count) for value, count in counted.items() if count)
    return {
        f"{name}_mean": sum(value * count for value, count in ranked) / n,
        f"{name}_p50": _quantile(ranked, 0.5 * n),
        f"{name}_p95": _quantile(ranked, 0.95 * n),
        f"{name}_max": float(ranked[-1][0]),
    }


def _quantile(ranked: list[tuple[Any, int]], rank: float) -> float:
    seen = 0
    for value, count in ranked:
        seen += count
        if seen >= rank:
            return float(value)
    raise AssertionError("a rank beyond the number of values")
