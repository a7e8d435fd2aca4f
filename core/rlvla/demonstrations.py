"""Demonstrations: episodes of a simulator's scripted expert, recorded to a folder and read as samples for imitation.

A folder holds ``demonstrations.json`` (:mod:`rlvla.demonstration_header`) and safetensors shards with an observation and
an action of each env step. Any env step is the start of a chunk, of whatever length the model has.

Letters: S samples, H actions in a chunk, A action dimensions; n steps of a shard.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tensordict import TensorDict
from torch import Tensor

from rlvla import versions
from rlvla.arrays import on_host
from rlvla.batch import ObservationBatch
from rlvla.checks import environments
from rlvla.configs import plain, read_choice
from rlvla.demonstration_header import FORMAT, NAME, Header, RecordedEpisode, Shard, misfits, read
from rlvla.errors import ConfigError, SimulatorError
from rlvla.sampler import Sampler
from rlvla.seeds import derive
from rlvla.simulator import Observation
from rlvla.specs import SimulatorSpec, Start
from rlvla.text import encode_text
from rlvla.worker import Host, SubprocessSimulator

log = logging.getLogger(__name__)
SHARD_BYTES = 256 << 20
"""A shard is closed once it is larger."""
PATIENCE = 4
"""Attempts for each episode wanted, before recording gives up on an expert that fails."""


# ---- recording ------------------------------------------------------------------------------------------------------


def record(
    *,
    sim: Any,
    path: str | Path,
    episodes: int = 64,
    seed: int = 0,
    noise: float = 0.0,
    keep_failures: bool = False,
    python: str | None = None,
) -> Header:
    """Run a simulator's scripted expert in a worker process and write what it did to a new folder.

    Example:
        >>> record(sim="tabletop", episodes=64, path="demos")

    Args:
        sim: a simulator as in :func:`rlvla.build`; it is stepped in one worker with ``num_envs`` environments.
        path: folder to make.
        episodes: episodes to keep.
        seed: of episodes and noise; never those of training or evaluation, whatever their seeds.
        noise: standard deviation of what is added to each executed action, in half-ranges of the action. What is kept is
            the expert's own action, so a policy learns how to come back.
        keep_failures: keep episodes that the expert did not solve, too.
        python: interpreter of the worker; None: this one.

    Raises:
        ConfigError: no expert, nothing to record, or the folder is there.
        SimulatorError: the expert fails so often that ``episodes`` solved ones are not to be had.
    """
    if episodes < 1 or noise < 0:
        raise ConfigError(f"episodes: got {episodes}, wanted 1 or more; noise: got {noise}, wanted 0 or more")
    choice = read_choice("sim", sim)
    spec: SimulatorSpec = choice.describe()
    if not spec.expert:
        raise ConfigError(f"sim: {choice.name} has no scripted expert (its spec says expert=False)")
    place = Path(path).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"path: {path} is there and not empty; give a folder that is to be made")
    rows = min(environments(choice.config), episodes, spec.rows_per_worker or episodes)
    runner: Any = (
        Host(choice.plugin.load()(choice.config, rows), rows)
        if spec.in_process
        else SubprocessSimulator(choice, rows, 1, python=python, name=choice.name)
    )
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        runner.wait_ready()
        shards = _Shards(part)
        kept = []
        for one in _Recorder(runner, spec, rows, seed, noise).run(episodes, keep_failures):
            shards.add(one)
            kept.append(one.summary)
        header = Header(
            format=FORMAT,
            simulator={"use": choice.name, **plain(choice.config)},
            spec=spec,
            seed=seed,
            noise=noise,
            versions={**versions.installed([choice.plugin.distribution]), **runner.versions()},
            episodes=tuple(kept),
            shards=tuple(shards.close()),
        )
        header.write(part)
        if place.exists():
            place.rmdir()
        os.rename(part, place)
    finally:
        runner.close()
        shutil.rmtree(part, ignore_errors=True)
    return header


@dataclass
class _Episode:
    number: int
    seed: int
    start: Start
    random: np.random.Generator
    arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    success: bool = False
    episode_return: float = 0.0

    def keep(self, arrays: dict[str, np.ndarray]) -> None:
        """Add one env step; arrays are copied."""
        for name, array in arrays.items():
            self.arrays.setdefault(name, []).append(np.array(array))

    @property
    def summary(self) -> RecordedEpisode:
        return RecordedEpisode(
            number=self.number,
            seed=self.seed,
            task=self.start.task,
            state=self.start.state,
            success=self.success,
            steps=len(self.arrays["action"]),
            episode_return=self.episode_return,
        )


class _Recorder:
    """The expert at work in N rows; which episodes are kept does not depend on N."""

    def __init__(self, runner: Any, spec: SimulatorSpec, rows: int, seed: int, noise: float) -> None:
        self._runner, self._spec, self._noise = runner, spec, noise
        self._seed = derive(seed, "demonstrations")
        self._sampler = Sampler(spec, derive(self._seed, "sampler"))
        self._rows: list[_Episode | None] = [None] * rows
        self._shown: list[dict[str, np.ndarray]] = [{}] * rows
        self._attempts = 0
        self._low = np.array([part.low for part in spec.action for _ in range(part.size)], np.float32)
        self._high = np.array([part.high for part in spec.action for _ in range(part.size)], np.float32)

    def run(self, episodes: int, keep_failures: bool) -> Iterator[_Episode]:
        """Yield the first ``episodes`` attempts that are kept, in order."""
        done: dict[int, _Episode | None] = {}
        kept = passed_on = 0
        while passed_on < episodes:
            running = sum(one is not None for one in self._rows)
            # as many attempts as are enough if all of them succeed: then none is started in vain
            self._begin(min(episodes - kept - running, PATIENCE * episodes - self._attempts))
            if not any(self._rows):
                raise SimulatorError(
                    f"the expert solved {kept} of {self._attempts} episodes, {episodes} solved ones were asked for: record "
                    "fewer, lower the noise, or keep failures"
                )
            for one in self._step():
                done[one.number] = one if one.success or keep_failures else None
                kept += one.success or keep_failures
            while (number := min(done, default=-1)) >= 0 and number < self._oldest():
                if (finished := done.pop(number)) is not None:
                    passed_on += 1
                    yield finished

    def _oldest(self) -> int:
        return min((one.number for one in self._rows if one is not None), default=self._attempts)

    def _begin(self, most: int) -> None:
        fresh = [row for row, one in enumerate(self._rows) if one is None][: max(0, most)]
        if not fresh:
            return
        for row in fresh:
            number = self._attempts
            self._attempts += 1
            self._rows[row] = _Episode(
                number,
                derive(self._seed, "episode", number),
                self._sampler.start(number),
                np.random.default_rng(derive(self._seed, "noise", number)),
            )
        started = [one for one in (self._rows[row] for row in fresh) if one is not None]
        observation = self._runner.reset(fresh, [one.seed for one in started], [one.start for one in started])
        for row, shown in zip(fresh, self._split(observation), strict=True):
            self._shown[row] = shown

    def _step(self) -> list[_Episode]:
        """Execute one action in each running row; returns the episodes that ended."""
        rows = [row for row, one in enumerate(self._rows) if one is not None]
        chosen_nA = on_host(self._runner.expert(rows, 1))[:, 0]
        active = np.zeros(len(self._rows), bool)
        active[rows] = True
        chunk = np.zeros((len(self._rows), 1, len(self._low)), np.float32)
        for place, row in enumerate(rows):
            episode = self._rows[row]
            assert episode is not None, "a row without episode was picked"
            episode.keep({**self._shown[row], "action": chosen_nA[place].astype(np.float32)})
            disturbance = self._noise * (self._high - self._low) / 2 * episode.random.standard_normal(len(self._low))
            chunk[row, 0] = np.clip(chosen_nA[place] + disturbance, self._low, self._high)
        result = self._runner.step(chunk, active)
        done = np.logical_or(on_host(result.terminated), on_host(result.truncated)).any(axis=1)
        reward, success = on_host(result.reward), on_host(result.success)
        ended = []
        for row, shown in enumerate(self._split(result.observation)):
            episode = self._rows[row]
            if episode is None:
                continue
            self._shown[row] = shown
            episode.episode_return += float(reward[row].sum())
            episode.success |= bool(success[row])
            if done[row]:
                ended.append(episode)
                self._rows[row] = None
        return ended

    def _split(self, observation: Observation) -> list[dict[str, np.ndarray]]:
        text = encode_text(observation.instruction, self._spec.max_instruction_bytes)
        images = {f"image/{name}": on_host(picture) for name, picture in observation.images.items()}
        state = on_host(observation.state)
        return [
            {
                **{name: one[row].copy() for name, one in images.items()},
                "state": state[row].copy(),
                "instruction": text[row],
            }
            for row in range(len(text))
        ]


class _Shards:
    """Writes episodes to files of some size."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[_Episode] = []
        self._bytes = 0
        self._closed: list[Shard] = []

    def add(self, episode: _Episode) -> None:
        self._open.append(episode)
        self._bytes += sum(array.nbytes for arrays in episode.arrays.values() for array in arrays)
        if self._bytes >= SHARD_BYTES:
            self.close()

    def close(self) -> list[Shard]:
        """Write what is open; returns all shards."""
        if self._open:
            names = self._open[0].arrays
            tensors = {name: np.stack([array for one in self._open for array in one.arrays[name]]) for name in names}
            shard = Shard(f"shard_{len(self._closed):04d}.safetensors", len(tensors["action"]))
            save_file(tensors, self._folder / shard.file)
            self._closed.append(shard)
            self._open, self._bytes = [], 0
        return self._closed


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass
class Samples:
    """S chunks of demonstrations."""

    observations: ObservationBatch
    """Before the chunk, ``[S]``."""
    actions: Tensor
    """float32 ``[S, H, A]``; zero where not valid."""
    valid: Tensor
    """bool ``[S, H]``: the episode was still running."""


class Demonstrations:
    """A folder of demonstrations. Shards are mapped, not read: only what is drawn is copied.

    Example:
        >>> demonstrations = Demonstrations("demos")
        >>> samples = demonstrations.samples(demonstrations.drawn(seed=0, first=0, count=256), horizon=4)
    """

    def __init__(self, path: str | Path, simulator: SimulatorSpec | None = None) -> None:
        """Open a folder.

        Args:
            path: that :func:`record` made.
            simulator: of the run, which the recording must fit; None: any.

        Raises:
            ConfigError: there is none, it does not fit, or a shard is missing or broken.
        """
        self.path = Path(path).expanduser()
        self.header = read(path)
        if simulator is not None and (problems := misfits(path, self.header.spec, simulator)):
            raise ConfigError(problems)
        if not self.header.episodes:
            raise ConfigError(f"{path}: {NAME} lists no episode; record some")
        self._shards = [self._load(shard) for shard in self.header.shards]
        steps = torch.tensor([one.steps for one in self.header.episodes])
        self._end = steps.cumsum(0).repeat_interleave(steps)
        """For each step, the step after its episode's last."""
        self._order: tuple[int, int, Tensor] | None = None

    def _load(self, shard: Shard) -> dict[str, Tensor]:
        file = self.path / shard.file
        try:
            tensors = load_file(file)
        except Exception as error:
            raise ConfigError(f"{file}: cannot be read: {type(error).__name__}: {error}; record again") from error
        if any(len(one) != shard.steps for one in tensors.values()):
            raise ConfigError(f"{file}: got {len(tensors['action'])} steps, {NAME} says {shard.steps}; record again")
        return tensors

    def __len__(self) -> int:
        """Count env steps: each is the start of a sample."""
        return len(self._end)

    def drawn(self, seed: int, first: int, count: int) -> Tensor:
        """Return samples ``first`` to ``first + count`` of an endless sequence that has each step once an epoch."""
        parts, at = [], first
        while at < first + count:
            epoch, place = divmod(at, len(self))
            taken = min(len(self) - place, first + count - at)
            parts.append(self._epoch(seed, epoch)[place : place + taken])
            at += taken
        return torch.cat(parts)

    def _epoch(self, seed: int, epoch: int) -> Tensor:
        if self._order is None or self._order[:2] != (seed, epoch):
            generator = torch.Generator().manual_seed(derive(seed, "epoch", epoch))
            self._order = seed, epoch, torch.randperm(len(self), generator=generator)
        return self._order[2]

    def samples(self, index_S: Tensor, horizon: int) -> Samples:
        """Return the chunks of ``horizon`` actions that start at these steps."""
        step_SH = index_S[:, None] + torch.arange(horizon)
        end_S1 = self._end[index_S][:, None]
        valid_SH = step_SH < end_S1
        action_SHA = self._rows("action", step_SH.minimum(end_S1 - 1).flatten()).view(*step_SH.shape, -1)
        images = {name: self._rows(name, index_S) for name in self._shards[0] if name.startswith("image/")}
        return Samples(
            observations=ObservationBatch(
                images=TensorDict(
                    {name.removeprefix("image/"): one for name, one in images.items()}, batch_size=[len(index_S)]
                ),
                state=self._rows("state", index_S),
                instruction=self._rows("instruction", index_S),
                batch_size=[len(index_S)],
            ),
            actions=torch.where(valid_SH[..., None], action_SHA, 0.0),
            valid=valid_SH,
        )

    def _rows(self, name: str, index_S: Tensor) -> Tensor:
        like = self._shards[0][name]
        out = like.new_empty((len(index_S), *like.shape[1:]))
        begin = 0
        for shard in self._shards:
            here_S = (index_S >= begin) & (index_S < begin + len(shard[name]))
            if here_S.any():
                out[here_S] = shard[name][index_S[here_S] - begin]
            begin += len(shard[name])
        return out
