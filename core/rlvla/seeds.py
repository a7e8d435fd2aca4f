"""Seeds as pure functions of what they are for: (run seed, purpose, unit, ...) and never of arrival order.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), here and, for whole tensors at once, in
:mod:`rlvla.noise`.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLY_1 = 0xBF58476D1CE4E5B9
MULTIPLY_2 = 0x94D049BB133111EB


def mix(value: int) -> int:
    """Return a well mixed 64-bit number of a 64-bit number."""
    value = (value + GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * MULTIPLY_1) & _MASK
    value = ((value ^ (value >> 27)) * MULTIPLY_2) & _MASK
    return value ^ (value >> 31)


def derive(seed: int, *path: int | str) -> int:
    """Return a seed below 2**63 for one purpose.

    Example:
        >>> derive(0, "episode", 3) == derive(0, "episode", 3) != derive(0, "episode", 4)
        True
    """
    return stem(seed, *path) >> 1


def stem(seed: int, *path: int | str) -> int:
    """Return what :func:`derived` continues, where many paths begin alike.

    Example:
        >>> derived(stem(0, "episode"), 3) == derive(0, "episode", 3)
        True
    """
    value = mix(seed & _MASK)
    for part in path:
        value = _with_word(value, part) if isinstance(part, str) else mix(value ^ (part & _MASK))
    return value


def derived(stem: int, number: int) -> int:
    """Return the seed of a path that goes on from a stem with one number."""
    return mix(stem ^ (number & _MASK)) >> 1


@lru_cache(maxsize=1024)
def _with_word(value: int, word: str) -> int:
    """Mix a word in: the same few, for every chunk of a run."""
    for byte in word.encode():
        value = mix(value ^ byte)
    return value
