"""What the parts of a run take on a machine: seconds of a chunk step, a batch, a sample, a publication. Plain JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rlvla import devices
from rlvla.checks import Specs
from rlvla.configs import RunConfig, read_one
from rlvla.errors import ConfigError


@dataclass(frozen=True)
class Profile:
    """Seconds of each call, measured while nothing else ran.

    ``rlvla profile`` writes one; a run's timeline holds one too, with calls that disturbed each other.
    """

    machine: str
    """Cores and GPU."""
    cores: int
    """CPU cores that could be used."""
    sim: str
    """Name of the simulator plugin."""
    model: str
    """Name of the model plugin."""
    horizon: int
    """Actions in a chunk."""
    device: str
    """Of generator and trainer: ``cpu`` or ``cuda``."""
    simulate: dict[int, tuple[float, ...]]
    """Rows of a slot to seconds of single chunk steps of all of them."""
    generate: dict[int, float]
    """Rows of a batch to the median seconds of a call."""
    reset: float
    """Seconds of a reset, per row."""
    train_sample: float
    """Seconds of a forward and backward pass, per sample (chunk)."""
    snapshot: float
    """Seconds of copying the trainer's weights for a publication."""
    offer: float
    """Seconds of handing them to the generator."""
    parameters: int = 0
    """Of the model; 0: not known."""
    trainable: int = 0
    """Of these, trained ones."""
    core_share: float = 1.0
    """Of a core, that a slot keeps busy while it simulates: less where it waits for a GPU, or for a robot's clock."""

    def line(self) -> tuple[float, float]:
        """Return a and b of a call of n rows, a + b n seconds, by least squares, both at least 0."""
        points = sorted(self.generate.items())
        if len(points) == 1:
            return 0.0, points[0][1] / points[0][0]
        mean_n = sum(n for n, _ in points) / len(points)
        mean_s = sum(s for _, s in points) / len(points)
        spread = sum((n - mean_n) ** 2 for n, _ in points)
        slope = max(0.0, sum((n - mean_n) * (s - mean_s) for n, s in points) / spread)
        return max(0.0, mean_s - slope * mean_n), slope

    def chunk_steps(self, rows: int) -> tuple[float, ...]:
        """Return seconds of single chunk steps of a slot with ``rows``: those of the nearest measured number, scaled."""
        near = min(self.simulate, key=lambda one: (abs(one - rows), one))
        factor = self._mean_step(rows) / median(self.simulate[near])
        return tuple(factor * one for one in self.simulate[near])

    def _mean_step(self, rows: int) -> float:
        points = sorted((n, median(some)) for n, some in self.simulate.items())
        if len(points) == 1:
            return points[0][1] * rows / points[0][0]
        below = max((one for one in points[:-1] if one[0] <= rows), default=points[0])
        above = points[points.index(below) + 1]
        return max(1e-9, below[1] + (above[1] - below[1]) * (rows - below[0]) / (above[0] - below[0]))

    def write(self, path: Path) -> None:
        """Write JSON that :func:`read` takes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def read(path: str | Path) -> Profile:
    """Return a profile from its file.

    Raises:
        ConfigError: no such file, or not a profile.
    """
    path = Path(path).expanduser()
    try:
        found = read_one(Profile, json.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"--profile {path}: {error.strerror}; `rlvla profile` writes one") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--profile {path}: not a profile: {error}; `rlvla profile` writes one") from error
    except ConfigError as error:
        raise ConfigError([f"--profile {path}: {problem}" for problem in error.problems]) from error
    some = [*found.simulate.items(), ("generate", tuple(found.generate.values()))]
    if not found.simulate or any(not seconds or min(seconds) <= 0 for _, seconds in some):
        raise ConfigError(
            f"--profile {path}: got no chunk step or batch, or one of 0 s or less; measure with `rlvla profile`"
        )
    return found


def of_run(directory: Path) -> Profile:
    """Return what a run's timeline says; calls there disturbed each other, so they are longer than alone.

    Raises:
        ConfigError: it has no timeline, or too short a one.
    """
    from rlvla import configs, tracing
    from rlvla.checks import check

    config = configs.read(configs.read_file(directory / "config.yaml"))
    spans = [one for one in tracing.read(directory) if one.step > 1]
    by: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in spans:
        by[one.phase].append((one.rows, one.seconds))
    if missing := [phase for phase in ("simulate", "generate", "train") if not by[phase]]:
        raise ConfigError(
            f"{directory}: its timeline shows no {' and no '.join(missing)} after the first training step"
        )
    samples: defaultdict[int, list[float]] = defaultdict(list)
    batches: defaultdict[int, list[float]] = defaultdict(list)
    for rows, seconds in by["simulate"]:
        samples[rows].append(seconds)
    for rows, seconds in by["generate"]:
        batches[rows].append(seconds)
    specs = check(config)
    samples_per_unit = specs.samples_per_step / specs.units_per_step
    manifest = json.loads((directory / "manifest.json").read_text())
    return Profile(
        machine=str(manifest.get("machine", "the machine of the run")),
        cores=int(manifest.get("cores", 1)),
        sim=config.sim.name,
        model=config.model.name,
        horizon=specs.model.horizon,
        device=str(manifest.get("device", "cpu")),
        simulate={rows: tuple(some[-200:]) for rows, some in samples.items()},
        generate={rows: median(some) for rows, some in batches.items()},
        reset=median([seconds / max(1, rows) for rows, seconds in by["reset"]] or [0.0]),
        train_sample=median(
            [seconds / (units * samples_per_unit * specs.algo.passes) for units, seconds in by["train"] if units]
        ),
        snapshot=median([seconds for _, seconds in by["publish"]] or [0.0]),
        offer=median([seconds for _, seconds in by["offer"]] or [0.0]),
        core_share=core_share([(one.seconds, one.cpu_seconds) for one in spans if one.phase == "simulate"]),
    )


def core_share(calls: Sequence[tuple[float, float]]) -> float:
    """Return the share of a core that calls kept busy, of their (seconds, processor seconds); 1 where it is not known."""
    seconds, of_processor = (sum(some) for some in zip(*calls, strict=True))
    return min(1.0, of_processor / seconds) if of_processor else 1.0


def typical(config: RunConfig, specs: Specs) -> Profile | None:
    """Return what the plugins' authors measured, on as many cores as this machine has; None where one says nothing."""
    sim, model = specs.sim.cost, specs.model.cost
    if sim is None or model is None:
        return None
    horizon = specs.model.horizon
    return Profile(
        machine=f"{config.sim.name} as on {sim.machine}, {config.model.name} as on {model.machine}",
        cores=devices.usable_cores(),
        sim=config.sim.name,
        model=config.model.name,
        horizon=horizon,
        device=model.device,
        simulate={1: (horizon * sim.step,)},
        generate={rows: model.call + rows * model.row for rows in (1, 64)},
        reset=sim.reset,
        train_sample=model.sample,
        snapshot=0.0,
        offer=0.0,
        parameters=model.parameters,
        trainable=model.trainable,
    )


def mismatches(profile: Profile, config: RunConfig) -> list[str]:
    """Say what a profile was measured with that a run does not have."""
    wanted = {"sim": config.sim.name, "model": config.model.name, "horizon": config.model.describe().horizon}
    problems = [
        f"--profile: measured with {name} {getattr(profile, name)!r}, the run has {value!r}; measure it with `rlvla profile`"
        for name, value in wanted.items()
        if getattr(profile, name) != value
    ]
    device = config.run.device.partition(":")[0]
    if device not in ("auto", profile.device):
        problems.append(f"--profile: measured on {profile.device}, run.device is {config.run.device}; measure it there")
    return problems
