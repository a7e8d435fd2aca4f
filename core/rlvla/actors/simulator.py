"""The simulator actor: one slot of environments, its present observation and the episodes that are running in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlvla.arrays import on_host
from rlvla.batch import Action, ObservationBatch, Outcome
from rlvla.errors import SimulatorError
from rlvla.receipts import CallReceipt, Ended, StepReceipt
from rlvla.simulator import ChunkResult, Observation
from rlvla.specs import SimulatorSpec, Start


class Runner(Protocol):
    """A simulator, here (:class:`rlvla.worker.Host`) or in a process (:class:`rlvla.worker.SubprocessSimulator`)."""

    spec: SimulatorSpec
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    videos: list[str]

    def wait_ready(self) -> Any: ...
    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation: ...
    def prepare(self, tasks: Sequence[int]) -> None: ...
    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult: ...
    def video(self, row: int, path: str) -> None: ...
    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]: ...
    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation: ...
    def versions(self) -> dict[str, str]: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class _Episode:
    steps: int = 0
    episode_return: float = 0.0
    success: bool = False


class SimulatorActor:
    """One slot.

    Args:
        slot: its number, for receipts.
        start: starts a runner (called again when a dead one is replaced).
        rows: N.
        horizon: H.
    """

    def __init__(self, slot: int, start: Callable[[], Runner], rows: int, horizon: int) -> None:
        self.slot = slot
        self.rows = rows
        self.horizon = horizon
        self._start = start
        self._runner = start()
        self._episodes = [_Episode() for _ in range(rows)]
        self._observation: ObservationBatch | None = None

    def ready(self) -> tuple[SimulatorSpec, dict[str, str]]:
        """Wait until the simulator stands; returns its spec and versions."""
        self._runner.wait_ready()
        return self._runner.spec, self._runner.versions()

    def reset(
        self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start], videos: Mapping[int, str]
    ) -> tuple[CallReceipt, ObservationBatch]:
        """Start episodes (``videos``: row to path of what to record); returns a receipt, and the observation of all rows."""
        began = time.monotonic_ns()
        for row, path in videos.items():
            self._runner.video(row, path)
        for row in rows:
            self._episodes[row] = _Episode()
        observation = self._show(rows, self._runner.reset(rows, seeds, starts))
        return CallReceipt(began, (time.monotonic_ns() - began) / 1e9, self._runner.cpu_seconds), observation

    def observe(self) -> tuple[None, ObservationBatch]:
        """Return the present observation of all rows once more."""
        assert self._observation is not None, "observed before a first reset"
        return None, self._observation

    def prepare(self, tasks: Sequence[int]) -> None:
        """Build tasks that rows will soon change to, while their next chunk is chosen."""
        self._runner.prepare(tasks)

    def step(
        self, action: Action, rows: Sequence[int], given_up: Collection[int] = ()
    ) -> tuple[StepReceipt, ObservationBatch, Outcome]:
        """Execute a chunk in ``rows``; returns what ended, the observation after it, and the outcome of those rows.

        Episodes in the rows ``given_up`` go no further: they count as ended, cut like at a step limit, in the receipt
        (the outcome says nothing of it).
        """
        began = time.monotonic_ns()
        picked = list(rows)
        active = np.zeros(self.rows, bool)
        active[picked] = True
        chunk = np.zeros((self.rows, self.horizon, action.actions.shape[-1]), np.float32)
        chunk[picked] = action.actions.cpu().numpy()
        result = self._runner.step(chunk, active)
        fields = {
            name: on_host(getattr(result, name))[picked]
            for name in ("reward", "terminated", "truncated", "valid", "success")
        }
        at_end = result.success if result.success_at_end is None else result.success_at_end
        ended = self._count(picked, fields, on_host(at_end)[picked], given_up)
        if not np.isfinite(fields["reward"]).all():
            broken = [row for row, one in zip(picked, fields["reward"], strict=True) if not np.isfinite(one).all()]
            raise SimulatorError(
                f"slot {self.slot}, rows {broken}: got a reward that is not finite: {fields['reward'].tolist()}; wanted "
                "numbers: look at the simulator's reward and at what its worker printed (workers/ in the run's folder)"
            )
        outcome = Outcome.of(fields, len(picked))
        observation = self._show(range(self.rows), result.observation)
        receipt = StepReceipt(
            slot=self.slot,
            env_steps=int(fields["valid"].sum()),
            ended=ended,
            seconds=(time.monotonic_ns() - began) / 1e9,
            videos=tuple(self._runner.videos),
            began_ns=began,
            cpu_seconds=self._runner.cpu_seconds,
            peak_bytes=self._runner.peak_bytes,
            counts=dict(result.counts),
        )
        return receipt, observation, outcome

    def _count(
        self, rows: Sequence[int], fields: Mapping[str, Any], at_end_n: Any, given_up: Collection[int]
    ) -> tuple[Ended, ...]:
        steps_n = fields["valid"].sum(1)
        return_n = np.where(fields["valid"], fields["reward"], 0.0).sum(1)
        terminated_n, truncated_n = fields["terminated"].any(1), fields["truncated"].any(1)
        ended = []
        for place, row in enumerate(rows):
            episode = self._episodes[row]
            episode.steps += int(steps_n[place])
            episode.episode_return += float(return_n[place])
            episode.success |= bool(fields["success"][place])
            if terminated_n[place] or truncated_n[place] or row in given_up:
                ended.append(
                    Ended(
                        row=row,
                        terminated=bool(terminated_n[place]),
                        success=episode.success,
                        success_at_end=bool(at_end_n[place]),
                        steps=episode.steps,
                        episode_return=episode.episode_return,
                    )
                )
        return tuple(ended)

    def _show(self, rows: Sequence[int], observation: Observation) -> ObservationBatch:
        """Take over new rows into a fresh batch: earlier ones were handed out and must not change."""
        fresh = ObservationBatch.of(observation, self._runner.spec.max_instruction_bytes)
        if len(rows) == self.rows:
            self._observation = fresh
        else:
            if self._observation is None:
                self._observation = ObservationBatch.like(fresh, self.rows)
            whole = self._observation.clone()
            whole[list(rows)] = fresh
            self._observation = whole
        return self._observation

    def save(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the live episodes of ``rows`` as arrays. A receipt with a payload in it: rare, and once a checkpoint."""
        states = self._runner.get_state(rows)
        for row, state in zip(rows, states, strict=True):
            one = self._episodes[row]
            state["_episode"] = np.array([one.steps, one.episode_return, one.success], np.float64)
        return states

    def restore(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> tuple[None, ObservationBatch]:
        """Continue saved episodes; returns the observation of all rows."""
        of_simulator = [{name: array for name, array in state.items() if name != "_episode"} for state in states]
        for row, state in zip(rows, states, strict=True):
            steps, episode_return, success = state["_episode"]
            self._episodes[row] = _Episode(int(steps), float(episode_return), bool(success))
        return None, self._show(rows, self._runner.set_state(rows, of_simulator))

    def restart(self) -> None:
        """Start the simulator again after its process died; all its episodes are gone."""
        self._runner.kill()
        self._runner.close()
        self._runner = self._start()

    def replace(self) -> None:
        """Start the simulator again, and wait until it stands."""
        self.restart()
        self._runner.wait_ready()

    def kill(self) -> None:
        """End the process, from any thread: a call that hangs in it then fails."""
        self._runner.kill()

    def close(self) -> None:
        """Free everything."""
        self._runner.close()
