"""Makes the actors of a run from its config, in whichever process they are to live."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from rlvla.actors.generator import GeneratorActor
from rlvla.actors.simulator import Runner, SimulatorActor
from rlvla.actors.trainer import TrainerActor
from rlvla.algorithm import Algorithm
from rlvla.checks import Specs
from rlvla.configs import Choice, RunConfig
from rlvla.devices import usable_cores
from rlvla.errors import ConfigError
from rlvla.model import Model
from rlvla.offload import PARAMETERS, OnDemand
from rlvla.ranks import Rank
from rlvla.seeds import derive
from rlvla.transport import Shelf
from rlvla.weights import acting_copy
from rlvla.worker import Host, SubprocessSimulator

_MAKING = threading.Lock()
_ALONE = Rank()


def device_of(name: str) -> torch.device:
    """Return the device that ``run.device`` means."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"run.device: got {name!r}, wanted 'auto', 'cpu', 'cuda' or 'cuda:N'") from error
    there = torch.cuda.device_count()
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= there):
        raise ConfigError(f"run.device: got {name!r}; this machine has 'cpu' and {there} CUDA devices")
    return device


def make_model(choice: Choice, specs: Specs, seed: int, device: torch.device) -> Model:
    """Return a model with fresh (or its configured checkpoint's) weights."""
    generator = torch.Generator().manual_seed(derive(seed, "weights"))
    model: Model = choice.plugin.load()(choice.config, specs.sim, specs.algo, generator=generator)
    return model.to(device)


def make_algorithm(config: RunConfig) -> Algorithm:
    """Return the algorithm of a run."""
    algorithm: Algorithm = config.algo.plugin.load()(config.algo.config)
    return algorithm


class Learner:
    """Makes generators and a trainer rank; those made by one learner, in one process, share the frozen weights.

    Args:
        config: of the run.
        specs: of the run.
        rank: that the trainer is.
        generators: that will be made beside the trainer in a process of Ray: before it, since parameters that are cut among
            ranks cannot be copied.
    """

    def __init__(self, config: RunConfig, specs: Specs, rank: Rank = _ALONE, generators: int = 0) -> None:
        self.config = config
        self.specs = specs
        self.rank = rank
        self._generators = generators
        self._copies: list[Model] = []
        self._shelf = Shelf()
        self._model: Model | None = None
        self._weights: OnDemand | None = None

    def _made(self) -> Model:
        with _MAKING:  # actors are made in threads of their own
            if self._model is None:
                torch.set_num_threads(self.config.run.threads or min(8, usable_cores()))
                device = device_of(self.config.run.device)
                self._model = make_model(self.config.model, self.specs, self.config.run.seed, device)
                self._copies = [acting_copy(self._model) for _ in range(self._generators)]
                shared = self.config.run.runtime == "local" or self._generators > 0
                self._weights = OnDemand(self._model, self.config.train.offload in PARAMETERS, shared)
        return self._model

    def generator(self) -> GeneratorActor:
        """Return a generator with trainables of its own."""
        fixed_rows = self.specs.num_envs if self.config.run.deterministic else None
        model, copied = self._made(), self._copies.pop() if self._copies else None
        if copied is None:
            copied = self._copied(model)
        return GeneratorActor(copied, fixed_rows, self.config.train.precision, self._shelf)

    def _copied(self, model: Model) -> Model:
        """Return a copy to act with; the trainer's weights may be away at any time."""
        assert self._weights is not None, "made with the model"
        with self._weights.here():
            return acting_copy(model)

    def trainer(self) -> TrainerActor:
        """Return the trainer, or one rank of it once all have met."""
        config, model = self.config, self._made()
        self.rank.join(next(model.parameters()).device)
        return TrainerActor(
            model,
            make_algorithm(config),
            config.train,
            seed=config.run.seed,
            steps=config.run.steps,
            shelf=self._shelf,
            weights=self._weights,
        )


def make_simulator(
    config: RunConfig, specs: Specs, name: str, number: int, rows: int, directory: Path
) -> SimulatorActor:
    """Return the actor of a slot; its worker process is under way.

    Args:
        config: of the run.
        specs: of the run.
        name: of the slot, in errors and of its log.
        number: of the slot.
        rows: environments.
        directory: of the run.
    """
    start: Callable[[], Runner]
    if config.run.sim_in_process or specs.sim.in_process:
        start = partial(_host, config.sim, rows)
    else:
        start = partial(_worker, config, specs.model.horizon, name, rows, directory / "workers")
    return SimulatorActor(number, start, rows, specs.model.horizon)


def _host(choice: Choice, rows: int) -> Host:
    return Host(choice.plugin.load()(choice.config, rows), rows)


def _worker(config: RunConfig, horizon: int, name: str, rows: int, folder: Path) -> SubprocessSimulator:
    folder.mkdir(parents=True, exist_ok=True)
    python = config.run.sim_python
    return SubprocessSimulator(config.sim, rows, horizon, python=python, log=folder / f"{name}.log", name=name)
