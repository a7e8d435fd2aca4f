"""The simulator contract.

Nothing here imports torch, so a simulator runs in an interpreter that has none. Arrays are numpy arrays, or torch
tensors where a simulator keeps its batch on a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvla.specs import SimulatorSpec, Start

Array = Any
"""A numpy array; a torch tensor where a simulator keeps its batch on a GPU."""


@dataclass
class Observation:
    """What N environments show.

    Example:
        >>> Observation(
        ...     images={"front": np.zeros((2, 64, 64, 3), np.uint8)},
        ...     state=np.zeros((2, 3), np.float32),
        ...     instruction=["push the red block", "push the blue block"],
        ... )
    """

    images: Mapping[str, Array]
    """Camera name to uint8 ``[N, height, width, 3]``."""
    state: Array
    """float32 ``[N, S]``, the parts of ``spec.state`` in order."""
    instruction: Sequence[str]
    """What each row is asked to do; N strings, none of them empty."""


@dataclass
class ChunkResult:
    """What happened while a chunk ran. Entries of rows that were not active are zero and not valid.

    Example:
        A row that succeeds on the second of four actions has ``valid = [1, 1, 0, 0]``,
        ``terminated = [0, 1, 0, 0]`` and its picture taken after that second action.
    """

    observation: Observation
    """After the last executed action of each row, before any reset; of every row, active or not."""
    reward: Array
    """float32 ``[N, H]``; zero where not valid."""
    terminated: Array
    """bool ``[N, H]``: the episode ended by itself with this action (success or failure)."""
    truncated: Array
    """bool ``[N, H]``: the episode ran into its step limit with this action; never together with ``terminated``."""
    valid: Array
    """bool ``[N, H]``: this action was executed. A prefix; the ending action counts."""
    success: Array
    """bool ``[N]``: the task was solved in this chunk."""
    frames: Sequence[Array] | None = None
    """With video on, for each row the uint8 ``[n, height, width, 3]`` pictures of its n executed actions."""
    success_at_end: Array | None = None
    """bool ``[N]``: it is solved after the last executed action, where an episode may go on after success; None: ``success``."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What this chunk had that a reader of results should know (contacts left out, ...); a run sums each up in each training
    step, as the metric ``sim/<name>``."""


class Simulator(ABC):
    """N environments stepped together. A worker calls it like this::

        simulator = MySimulator(config, rows=N)
        observation = simulator.reset(range(N), seeds, starts)
        while True:
            result = simulator.step(chunk_NHA, active_N)
            done = (result.terminated | result.truncated).any(1)
            simulator.reset(np.flatnonzero(done), seeds, starts)      # only when whoever schedules says so
        simulator.close()

    Five rules, each checked by :class:`rlvla.testing.SimulatorConformance`:

    * a reset is a function of (seed, start): never of arrival order, of the row, or of what ran before;
    * a reset touches only its rows;
    * nothing is executed after a row has ended, and a row that has ended waits for its reset;
    * an observation shows each row after its last executed action, also where that action ended the episode;
    * arrays that are handed out may be reused by the next call: who needs them longer copies them.
    """

    spec: SimulatorSpec

    @abstractmethod
    def __init__(self, config: Any, rows: int) -> None:
        """Make N = ``rows`` environments.

        Raises:
            SimulatorError: something is missing (assets, a renderer, a driver); the message says what to do.
        """

    @abstractmethod
    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        """Start new episodes in ``rows``, one seed and one start each; returns the observation of those rows, in order."""

    @abstractmethod
    def step(self, chunk_NHA: Array, active_N: Array) -> ChunkResult:
        """Execute up to H actions in each active row (float32, in the units of ``spec.action``; bool)."""

    @abstractmethod
    def close(self) -> None:
        """Free everything; a second call does nothing."""

    def prepare(self, tasks: Sequence[int]) -> None:
        """Do now, while nobody waits, what a reset to these tasks would have to do first (compile, load).

        Called between two calls with tasks that rows will soon change to, where ``spec.builds_tasks``; changes nothing else.
        """

    def record_video(self, rows: Sequence[int]) -> None:
        """From the next reset or step on, return ``frames`` of these rows (and of no others)."""

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Array]]:
        """Return all that continues the live episodes of ``rows`` exactly, as arrays; needs ``spec.restorable``."""
        raise TypeError(f"{type(self).__name__} cannot save live episodes: its spec says restorable=False")

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Array]]) -> Observation:
        """Continue saved episodes in ``rows``; returns their observation."""
        raise TypeError(f"{type(self).__name__} cannot restore live episodes: its spec says restorable=False")

    def expert(self, rows: Sequence[int], horizon: int) -> Array:
        """Return the next ``horizon`` actions of a scripted expert in live ``rows``; needs ``spec.expert``.

        The expert may know what no camera shows. It decides from the present state alone, so it takes over from anybody.

        Returns:
            float32 ``[n, horizon, A]``, within the bounds of ``spec.action``.
        """
        raise TypeError(f"{type(self).__name__} has no scripted expert: its spec says expert=False")

    def versions(self) -> dict[str, str]:
        """Return what changes its numbers (packages, renderer, driver), for the run's manifest and an evaluation's protocol.

        Asked once, when the simulator stands. What stands under ``warning`` is said aloud, too.
        """
        return {}
