"""Random numbers as a pure function of a row's key, for whole batches at once.

torch's generators draw in sequence, so what a row gets depends on who is beside it. Here each number is a hash of
(key, stream, index): the same row gets the same noise in any batch, on any device, under any scheduler. Keys come from
:func:`rlvla.seeds.derive` of (run seed, unit, member, chunk).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlvla import seeds


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit number."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN, _MULTIPLY_1, _MULTIPLY_2 = map(_signed, (seeds.GOLDEN, seeds.MULTIPLY_1, seeds.MULTIPLY_2))


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right, filling with zeros (torch fills with the sign)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = value + _GOLDEN  # int64 wraps
    value = (value ^ _shift(value, 30)) * _MULTIPLY_1
    value = (value ^ _shift(value, 27)) * _MULTIPLY_2
    return value ^ _shift(value, 31)


class Noise:
    """The random numbers of N rows; ``uniform`` and ``normal`` may be asked any number of times, in any order."""

    def __init__(self, keys: Tensor) -> None:
        """Take int64 ``[N]`` keys, on the device where the numbers are wanted."""
        if keys.dtype != torch.int64 or keys.ndim != 1:
            raise ValueError(f"keys are {keys.dtype} {tuple(keys.shape)}, wanted int64 [N]")
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """Return float32 ``[N, *shape]`` in the open interval (0, 1), on 2**23 levels; one ``stream`` a purpose."""
        index = torch.arange(math.prod(shape), device=self.keys.device)
        row_N1 = _mix(self.keys ^ stream)[:, None]
        bits = _shift(_mix(row_N1 ^ _mix(index)), 41)
        numbers = (bits.to(torch.float32) + 0.5) * 2.0**-23  # odd multiples of 2**-24: exact, never 0 or 1
        return numbers.reshape(len(self), *shape)

    def normal(self, *shape: int, stream: int = 1) -> Tensor:
        """Return standard normal float32 ``[N, *shape]``, by inverting the distribution function (|x| below 5.4)."""
        numbers: Tensor = torch.special.ndtri(self.uniform(*shape, stream=stream))
        return numbers
