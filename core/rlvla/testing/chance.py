"""What a GPU's atomic counters do by chance, done by a seed on warp's CPU device: for tests of worlds that are to have equal bits.

There counters count in one order, so nothing would show what depends on it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


class Chance:
    """Shuffles the contacts of all worlds in their list, each world's rows, and the rows that the solver saw change.

    Args:
        worlds: ``rlvla.mujoco_warp.worlds.Worlds`` that are deterministic, on warp's CPU device.
        seed: of what is shuffled.
        ordered: put rows in order afterwards, as these worlds do; else leave them as they are.
    """

    def __init__(self, worlds: Any, seed: int, ordered: bool = True) -> None:
        self._random = np.random.default_rng(seed)
        self.contacts = self.rows = self.changes = 0
        """The most that were shuffled at once, of all worlds."""
        means = worlds._ordered
        order, sums = means._order, means._sums
        worlds.model.callback.contactfilter = self._shuffle_contacts

        def shuffled(model: Any, data: Any) -> None:
            self._shuffle_rows(data)
            if ordered:
                order(model, data)

        means._order = shuffled
        if sums is not None and not sums.sparse:
            incremental = sums.update_gradient_incremental

            def changed(model: Any, data: Any, ctx: Any, stable_fast: bool = False) -> None:
                self._shuffle_changes(ctx)
                incremental(model, data, ctx, stable_fast)

            sums.update_gradient_incremental = changed

    def _shuffle_contacts(self, model: Any, data: Any) -> None:
        count = min(int(data.nacon.numpy()[0]), data.naconmax)
        self.contacts = max(self.contacts, count)
        turn = self._random.permutation(count)
        for field in dataclasses.fields(data.contact):
            values = getattr(data.contact, field.name).numpy()
            if len(values):
                values[:count] = values[turn]

    def _shuffle_rows(self, data: Any) -> None:
        ends = np.stack([getattr(data, name).numpy() for name in ("ne", "nf", "nl", "nefc")], 1)
        ends[:, :3] = np.cumsum(ends[:, :3], 1)
        for world, (equality, friction, limit, end) in enumerate(np.minimum(ends, data.njmax).tolist()):
            self.rows = max(self.rows, end)
            source = np.arange(data.njmax)
            for first, last in ((0, equality), (equality, friction), (friction, limit)):
                source[first:last] = self._random.permutation(np.arange(first, last))
            number = data.efc.id.numpy()[world, limit:end]
            contacts = np.split(source[limit:end], 1 + np.flatnonzero(np.diff(number)))
            source[limit:end] = np.concatenate([contacts[one] for one in self._random.permutation(len(contacts))])
            self._move(data, world, source, limit, end)

    def _move(self, data: Any, world: int, source: np.ndarray, first: int, end: int) -> None:
        """Move rows, and all that points to them."""
        efc, rows = data.efc, data.njmax
        for field in dataclasses.fields(efc):
            array = getattr(efc, field.name)
            if (
                field.name not in ("jtdaj_adr", "jtdaj_nrow", "Ma", "J_colind")
                and array.ndim > 1
                and array.shape[1] >= rows
            ):
                values = array.numpy()[world]
                values[:rows] = values[source]
        target = np.argsort(source)
        friction = data.dof_frictionadr.numpy()[world]
        friction[friction >= 0] = target[friction[friction >= 0]]
        address = data.contact.efc_address.numpy()
        for contact in set(efc.id.numpy()[world, first:end].tolist()):
            own = address[contact]
            own[own >= 0] = target[own[own >= 0]]
        if count := int(efc.jtdaj_nblock.numpy()[world]):
            turn = self._random.permutation(count)
            row, size = efc.jtdaj_adr.numpy()[world], efc.jtdaj_nrow.numpy()[world]
            row[:count], size[:count] = target[row[turn]], size[turn]

    def _shuffle_changes(self, ctx: Any) -> None:
        for count, numbers in zip(ctx.quad_changed_count.numpy(), ctx.quad_changed_ids.numpy(), strict=True):
            self.changes = max(self.changes, int(count))
            numbers[:count] = self._random.permutation(numbers[:count])
