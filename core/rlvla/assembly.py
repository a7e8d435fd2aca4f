"""From chunks, as they were played slot by slot, to the trajectories and samples of one training step.

Nothing is copied while playing: a chunk step keeps references to the slot's batches, and the training step gathers from
them once, in ticket order, whatever the order of arrival.

Letters: U trajectories, T chunk steps, S samples (chunks), n active rows of a chunk step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlvla.batch import Action, ObservationBatch, Outcome, Trajectories
from rlvla.errors import SimulatorError


@dataclass(frozen=True)
class Entry:
    """Where an active row's chunk belongs."""

    ticket: int
    member: int
    chunk: int
    row: int
    """In the slot's observations."""
    last: bool
    """Nothing of this trajectory follows: the episode (group) or the window ends here."""


@dataclass
class _Played:
    before: ObservationBatch
    action: Action
    outcome: Outcome
    after: ObservationBatch
    version: int
    entries: Sequence[Entry | None]


@dataclass
class _Trajectory:
    ticket: int
    chunks: list[tuple[_Played, int]] = field(default_factory=list)
    whole: bool = True
    """No chunk of it was lost on its way here."""


@dataclass
class Assembled:
    """A training step's data: trajectories, and their S chunks in row-major order of ``trajectories.exists``."""

    trajectories: Trajectories
    observations: ObservationBatch
    replay: Any
    final_observations: ObservationBatch | None
    """What chunks that ended an episode or a window led to; their values fill ``trajectories.final_value``."""
    final_index: tuple[Tensor, Tensor]
    """(trajectory, chunk) of each final observation."""


SAME_START = 0.01
"""Most that states of a group's first observations may differ by, in the units of the state: what is left of arithmetic."""


def check_groups(data: Assembled) -> None:
    """Make sure that rollouts of a group start from one scene: what they are compared by would be the luck of the start.

    Raises:
        SimulatorError: instructions or states of their first observations differ.
    """
    exists, group_U = data.trajectories.exists, data.trajectories.group[:, 0]
    first_U = torch.cumsum(exists.flatten(), 0).view(exists.shape)[:, 0] - 1
    for group in group_U.unique().tolist():
        members = first_U[group_U == group]
        first = data.observations[members]
        apart = float((first.state - first.state[:1]).abs().max()) if first.state.numel() else 0.0
        if apart > SAME_START or bool((first.instruction != first.instruction[:1]).any()):
            raise SimulatorError(
                f"group {group}: its {len(members)} rollouts start from different scenes (instructions "
                f"{sorted(set(first.instructions()))}, states up to {apart:.3g} apart, wanted at most {SAME_START}): "
                "the simulator's reset must be a function of (seed, start) alone"
            )


class Assembly:
    """Open and finished units, by ticket."""

    def __init__(self) -> None:
        self._units: dict[int, dict[int, _Trajectory]] = {}
        self._first: _Played | None = None

    def record(
        self,
        before: ObservationBatch,
        action: Action,
        outcome: Outcome,
        after: ObservationBatch,
        version: int,
        entries: Sequence[Entry | None],
    ) -> None:
        """Keep one chunk step of a slot.

        Args:
            before: observations of all rows of the slot.
            action: of the rows that were active.
            outcome: of those rows.
            after: observations of all rows.
            version: of the weights that chose the actions.
            entries: in the order of ``action``; None: of no interest here.
        """
        played = _Played(before, action, outcome, after, version, entries)
        self._first = self._first or played
        for place, entry in enumerate(entries):
            if entry is None:
                continue
            trajectory = self._units.setdefault(entry.ticket, {}).setdefault(entry.member, _Trajectory(entry.ticket))
            if not trajectory.whole:
                continue
            assert entry.chunk == len(trajectory.chunks), (
                f"ticket {entry.ticket}: chunk {entry.chunk} came out of order"
            )
            trajectory.chunks.append((played, place))

    def miss(self, entries: Sequence[Entry | None]) -> None:
        """Note a chunk step that was lost: what it belongs to is not whole until it is forgotten and played again."""
        for entry in entries:
            if entry is not None:
                self._units.setdefault(entry.ticket, {})[entry.member] = _Trajectory(entry.ticket, whole=False)

    def whole(self, tickets: Sequence[int]) -> list[int]:
        """Return the tickets of units of which nothing was lost, and forget the others."""
        kept = [ticket for ticket in tickets if all(one.whole for one in self._units[ticket].values())]
        for ticket in set(tickets).difference(kept):
            self.forget(ticket)
        return kept

    def forget(self, ticket: int, member: int | None = None) -> None:
        """Drop a unit that is not trained on, or a member that is played again."""
        if member is None:
            self._units.pop(ticket, None)
        else:
            self._units.get(ticket, {}).pop(member, None)

    def take(self, tickets: Sequence[int], final_values: bool, terminated_too: bool = False) -> Assembled:
        """Gather and forget the units of a training step, in the order given.

        Args:
            tickets: of the units; none: no sample, and one trajectory of which no chunk exists.
            final_values: keep the observations behind cut episodes and windows.
            terminated_too: and behind episodes that ended by themselves.
        """
        units = [self._units.pop(ticket) for ticket in tickets]
        trajectories = [unit[member] for unit in units for member in sorted(unit)]
        place = {id(one): number for number, one in enumerate(trajectories)}
        length = max((len(one.chunks) for one in trajectories), default=1)
        exists = torch.zeros(max(1, len(trajectories)), length, dtype=torch.bool)
        for number, one in enumerate(trajectories):
            exists[number, : len(one.chunks)] = True
        sample_UT = torch.cumsum(exists.flatten(), 0).reshape(exists.shape) - 1
        assert self._first is not None, "units were asked for before anything was played"
        gather = _Gather(self._first, _steps(trajectories), place, sample_UT)
        return gather.assemble(trajectories, exists, final_values, terminated_too)

    def spare(self) -> tuple[ObservationBatch, Any]:
        """Return the first row that was ever recorded, and its replay: something to evaluate where nothing else is."""
        assert self._first is not None, "nothing was played yet"
        entries = self._first.entries
        row = next((one.row for one in entries if one is not None), 0)
        return self._first.before[row : row + 1], self._first.action.replay[:1]


def _steps(trajectories: Sequence[_Trajectory]) -> list[tuple[_Played, list[tuple[int, _Trajectory, int]]]]:
    """Return each chunk step once, with (place in it, trajectory, chunk) of what is wanted from it."""
    wanted: dict[int, tuple[_Played, list[tuple[int, _Trajectory, int]]]] = {}
    for trajectory in trajectories:
        for chunk, (played, place) in enumerate(trajectory.chunks):
            wanted.setdefault(id(played), (played, []))[1].append((place, trajectory, chunk))
    return list(wanted.values())


class _Gather:
    def __init__(
        self,
        like: _Played,
        steps: list[tuple[_Played, list[tuple[int, _Trajectory, int]]]],
        number: dict[int, int],
        sample_UT: Tensor,
    ) -> None:
        self.steps = [
            (
                played,
                torch.tensor([place for place, _, _ in some]),
                torch.tensor([_entry(played, place).row for place, _, _ in some]),
                torch.tensor([number[id(trajectory)] for _, trajectory, _ in some]),
                torch.tensor([chunk for _, _, chunk in some]),
            )
            for played, some in steps
        ]
        self.sample_UT = sample_UT
        self.like = like

    def assemble(
        self, trajectories: Sequence[_Trajectory], exists: Tensor, final_values: bool, terminated_too: bool
    ) -> Assembled:
        samples = int(exists.sum())
        first = self.like
        observations = _empty(first.before, samples)
        replay = _empty(first.action.replay, samples)
        out = Trajectories(
            exists=exists,
            reward=_padded(exists, first.outcome.reward),
            terminated=_padded(exists, first.outcome.terminated),
            truncated=_padded(exists, first.outcome.truncated),
            valid=_padded(exists, first.outcome.valid),
            success=_padded(exists, first.outcome.success),
            logp=_padded(exists, first.action.logp),
            value=_padded(exists, first.action.value),
            final_value=torch.zeros(exists.shape),
            version=torch.zeros(exists.shape, dtype=torch.int64),
            group=torch.tensor([one.ticket for one in trajectories] or [-1])[:, None].expand(exists.shape).contiguous(),
            batch_size=exists.shape,
        )
        finals: list[tuple[ObservationBatch, Tensor, Tensor]] = []
        for played, place_n, row_n, unit_n, chunk_n in self.steps:
            sample_n = self.sample_UT[unit_n, chunk_n]
            observations[sample_n] = played.before[row_n]
            replay[sample_n] = played.action.replay[place_n]
            for name in ("reward", "terminated", "truncated", "valid", "success"):
                getattr(out, name)[unit_n, chunk_n] = getattr(played.outcome, name)[place_n]
            out.logp[unit_n, chunk_n] = played.action.logp[place_n]
            out.value[unit_n, chunk_n] = played.action.value[place_n]
            out.version[unit_n, chunk_n] = played.version
            if final_values:
                over_n = played.outcome.terminated.any(1)[place_n]
                cut_n = played.outcome.truncated.any(1)[place_n]
                last_n = torch.tensor([_entry(played, int(place)).last for place in place_n])
                wanted = cut_n | (last_n & ~over_n) | (over_n if terminated_too else torch.zeros_like(over_n))
                if wanted.any():
                    finals.append((played.after[row_n[wanted]], unit_n[wanted], chunk_n[wanted]))
        unit_n, chunk_n = _joined([one[1] for one in finals]), _joined([one[2] for one in finals])
        order_n = (unit_n * exists.shape[1] + chunk_n).argsort()  # whoever played together, values are computed alike
        return Assembled(
            trajectories=out,
            observations=observations,
            replay=replay,
            final_observations=ObservationBatch.joined([one[0] for one in finals])[order_n] if finals else None,
            final_index=(unit_n[order_n], chunk_n[order_n]),
        )


def _entry(played: _Played, place: int) -> Entry:
    entry = played.entries[place]
    assert entry is not None, "a row of another rank was asked for"
    return entry


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def _empty(like: Any, samples: int) -> Any:
    """Return an uninitialised container of ``samples`` rows shaped like another one's."""
    return like[:1].apply(lambda one: one.new_empty((samples, *one.shape[1:])), batch_size=[samples])


def _padded(exists: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros((*exists.shape, *like.shape[1:]))
