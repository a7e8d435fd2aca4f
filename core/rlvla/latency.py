"""What calls take, as measured while a run goes on; the batcher and schedulers decide by it, nobody has to tune it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FORGET = 0.97
"""Weight of a measurement when the next one comes."""


class LatencyCurve:
    """Seconds of a call as a + b n, by least squares over recent calls.

    Args:
        first: calls that are left out: a generator's first is slow (kernels are chosen, memory is allocated).
    """

    def __init__(self, first: int = 1) -> None:
        self._left_out = first
        self._sums = [0.0] * 5

    def add(self, rows: int, seconds: float) -> None:
        """Count a call."""
        if self._left_out:
            self._left_out -= 1
        else:
            new = (1.0, rows, rows * rows, seconds, rows * seconds)
            self._sums = [_FORGET * old + one for old, one in zip(self._sums, new, strict=True)]

    def fit(self) -> tuple[float, float] | None:
        """Return a and b, both at least 0; None before the first measurement.

        While all batches had one size, rows are taken to cost nothing: waiting for more then brings other sizes.
        """
        weight, n, nn, t, nt = self._sums
        if not weight:
            return None
        spread = weight * nn - n * n
        if spread <= 1e-6 * weight * nn:
            return t / weight, 0.0
        slope = min(max(0.0, (weight * nt - n * t) / spread), t / n)
        return max(0.0, t - slope * n) / weight, slope  # t / n times n may be more than t by a rounding


class DeviceTime:
    """How long chunk steps take on a device that several slots may share."""

    def __init__(self) -> None:
        self.steps = 0
        self.waited = 0.0
        """Seconds of all steps, each for itself."""
        self.busy = 0.0
        """Seconds in which a step was under way: what they take one after the other, where they share a device."""
        self._under_way = 0
        self._since = 0.0

    @contextmanager
    def step(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count what happens within as a chunk step."""
        began = clock()
        if not self._under_way:
            self._since = began
        self._under_way += 1
        try:
            yield
        finally:
            ended = clock()
            self._under_way -= 1
            if not self._under_way:
                self.busy += ended - self._since
            self.steps += 1
            self.waited += ended - began


def round_seconds(
    generate: tuple[float, float],
    generators: int,
    device: DeviceTime,
    devices: int,
    shared: bool,
    slots: int,
    rows: int,
    stages: int,
) -> float:
    """Predict how long every slot plays one chunk, where each device's slots alternate with the generators in stages.

    With p = max(1, generators / devices) generators for each stage, a call chooses chunks for n = rows / (devices p stages)
    rows and takes g(n) = a + b n. A round takes as long as the generators need (devices p stages g(n) / generators), as the
    simulators need, and as one stage needs (g(n), then its slots), whichever is longest.

    Args:
        generate: a and b, in seconds and seconds a row.
        generators: how many.
        device: the slowest of the simulators' devices; its last steps were counted before.
        devices: of simulators.
        shared: the slots of a device take turns on it; else each has cores of its own.
        slots: of all devices.
        rows: of all slots.
        stages: of each device.
    """
    parts = max(1.0, generators / devices)
    call = generate[0] + generate[1] * rows / (devices * parts * stages)
    on_device = -(-slots // devices)
    if shared:
        one = device.busy / device.steps
        stage, everybody = one * -(-on_device // stages), one * on_device
    else:
        stage = everybody = device.waited / device.steps
    return max(devices * parts * stages * call / generators, everybody, call + stage)
