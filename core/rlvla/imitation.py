"""Demonstrations on their way into a trainer: cut, and in the shape that played chunks have.

Letters: S samples (chunks), H actions in a chunk, K log-prob entries an action.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvla import ranks
from rlvla.assembly import Assembled
from rlvla.batch import Trajectories
from rlvla.demonstrations import Demonstrations
from rlvla.model import Model
from rlvla.seeds import derive

_FORWARD_BATCH = 256
"""Samples whose replays are made at once."""


class Teacher:
    """Draws samples of one folder for one model; what is drawn is a function of (seed, step, rank) alone.

    Args:
        path: folder of demonstrations.
        model: that is taught.
        seed: of the run.
    """

    def __init__(self, path: str, model: Model, seed: int) -> None:
        self._demonstrations = Demonstrations(path)
        self._model = model
        self._seed = seed

    def units(self, step: int, count: int, version: int) -> Assembled:
        """Return this rank's part of the ``count`` samples of training step ``step``: each sample once an epoch.

        They are shuffled before they are dealt out to ranks, so that n samples of each of R ranks, taken in order, are the
        next n * R samples of one rank: minibatches do not depend on the number of ranks.
        """
        index_S = self._demonstrations.drawn(derive(self._seed, "demonstrations"), step * count, count)
        shuffle = torch.Generator().manual_seed(derive(self._seed, "shuffle", step, 0))
        index_S = index_S[torch.randperm(count, generator=shuffle)]
        return self._assembled(index_S[ranks.rank() :: ranks.world()], version)

    def minibatch(self, count: int, *key: int) -> Assembled:
        """Return this rank's part of ``count`` samples drawn for one optimizer step."""
        random = torch.Generator().manual_seed(derive(self._seed, "imitation", *key))
        index_S = torch.randint(len(self._demonstrations), (count,), generator=random)
        return self._assembled(index_S[ranks.rank() :: ranks.world()], 0)

    @torch.no_grad()
    def _assembled(self, index_S: Tensor, version: int) -> Assembled:
        """Return samples as trajectories of one chunk each: nothing is rewarded, nothing ends."""
        spec = self._model.spec
        samples = self._demonstrations.samples(index_S, spec.horizon)
        parts = torch.arange(len(index_S)).split(_FORWARD_BATCH)
        replays: list[Any] = [
            self._model.replay_of(self._model.preprocess(samples.observations[part]), samples.actions[part]).cpu()
            for part in parts
        ]
        chunks, actions, entries = samples.actions.shape
        shape = (chunks, 1)
        none_STH = torch.zeros(*shape, actions, dtype=torch.bool)
        trajectories = Trajectories(
            exists=torch.ones(shape, dtype=torch.bool),
            reward=torch.zeros(*shape, actions),
            terminated=none_STH,
            truncated=none_STH.clone(),
            valid=samples.valid[:, None],
            success=torch.zeros(shape, dtype=torch.bool),
            logp=torch.zeros(*shape, actions, spec.tokens_per_action or entries),
            value=torch.zeros(*shape, 0),
            final_value=torch.zeros(shape),
            version=torch.full(shape, version),
            group=torch.arange(chunks)[:, None],
            batch_size=shape,
        )
        none = torch.zeros(0, dtype=torch.int64)
        return Assembled(
            trajectories=trajectories,
            observations=samples.observations,
            replay=torch.cat(replays),
            final_observations=None,
            final_index=(none, none),
        )
