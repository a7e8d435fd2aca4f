"""Which episodes an evaluation runs: a list that depends on its settings alone, and what came out of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvla.assembly import Entry
from rlvla.configs import EvalConfig
from rlvla.receipts import Ended, SlotReceipt, StepReceipt
from rlvla.results import EvalEpisode
from rlvla.rollout import Slot
from rlvla.seeds import derive
from rlvla.specs import SimulatorSpec, Start
from rlvla.timekeeping import Timekeeper
from rlvla.work import Work


def episodes_of(config: EvalConfig, spec: SimulatorSpec) -> list[tuple[int, Start]]:
    """Return (seed, start) of each episode: tasks in turn, and stored initial states in turn for each task."""
    tasks = config.tasks if config.tasks is not None else tuple(range(len(spec.tasks)))
    episodes = []
    for number in range(config.episodes):
        round_, place = divmod(number, len(tasks))
        states = spec.tasks[tasks[place]].initial_states
        episodes.append(
            (derive(config.seed, "episode", number), Start(tasks[place], round_ % states if states else None))
        )
    return episodes


class EvaluationSink:
    """Collects results, in the order of the list whatever the order of arrival."""

    def __init__(
        self, episodes: Sequence[tuple[int, Start]], spec: SimulatorSpec, times: Timekeeper | None = None
    ) -> None:
        self._episodes = episodes
        self._spec = spec
        self._times = times or Timekeeper()
        self._ended: dict[int, Ended] = {}
        self.videos: dict[int, Path] = {}

    @property
    def done(self) -> int:
        return len(self._ended)

    def played(self, slot: Slot, before: Any, outcome: Any, after: Any, entries: Sequence[Entry]) -> None:
        """Nothing is trained on."""

    def stepped(self, receipt: StepReceipt, entries: Sequence[Entry]) -> None:
        """Steps are counted by episode."""

    def finished(self, work: Work, ended: Ended | None) -> None:
        assert ended is not None, "an evaluation's work is a whole episode"
        self._ended[work.ticket] = ended

    def lost(self, work: Work) -> None:
        """The episode is played again."""

    def worked(self, actor: str, phase: str, receipt: SlotReceipt, slots: Sequence[Slot], rows: int) -> None:
        self._times.worked(actor, f"evaluate: {phase}", receipt.began_ns, receipt.seconds, rows=rows)

    def replaced(self, slot: Slot) -> None:
        self._times.restarted(slot.actor.name, asyncio.get_running_loop().time())

    def results(self) -> tuple[EvalEpisode, ...]:
        """Return one entry an episode."""
        found = []
        for number, (seed, start) in enumerate(self._episodes):
            one = self._ended[number]
            found.append(
                EvalEpisode(
                    index=number,
                    task=start.task,
                    task_name=self._spec.tasks[start.task].name,
                    state=start.state,
                    seed=seed,
                    success=one.success,
                    success_at_end=one.success_at_end,
                    steps=one.steps,
                    episode_return=one.episode_return,
                    video=str(self.videos[number]) if number in self.videos else None,
                )
            )
        return tuple(found)
