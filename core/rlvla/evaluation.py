"""Evaluation: which episodes (a list that depends on its settings alone), played with fixed weights, and what came out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rlvla import versions
from rlvla.assembly import Entry
from rlvla.checks import Specs, least_slots, measured, split
from rlvla.configs import EvalConfig, RunConfig, plain
from rlvla.receipts import Ended, SlotReceipt, StepReceipt
from rlvla.results import EvalEpisode, EvalResults
from rlvla.rollout import Rollout, Slot, surviving
from rlvla.runtimes import Handle
from rlvla.seeds import derive
from rlvla.specs import SimulatorSpec, Start
from rlvla.timekeeping import Timekeeper
from rlvla.watch import Watch
from rlvla.work import EpisodeFeed, Work

log = logging.getLogger(__name__)


def episodes_of(config: EvalConfig, spec: SimulatorSpec) -> list[tuple[int, Start]]:
    """Return (seed, start) of each episode: tasks in turn, and stored initial states in turn for each task."""
    tasks = config.tasks if config.tasks is not None else tuple(range(len(spec.tasks)))
    episodes = []
    each = config.episodes_per_task
    for number in range(config.episodes if each is None else each * len(tasks)):
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
        self.episodes = episodes
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

    def worth_seeing(self, count: int) -> list[int]:
        """Return the tickets of ``count`` episodes: failures before successes, each in the order of the list."""
        return sorted(self._ended, key=lambda ticket: (self._ended[ticket].success, ticket))[:count]

    def take_videos(self, again: EvaluationSink) -> None:
        """Take over the videos of episodes that were played again, where they went the same way."""
        for ticket, path in again.videos.items():
            if replace(again._ended[ticket], row=0) == replace(self._ended[ticket], row=0):
                self.videos[ticket] = path
            else:
                path.unlink(missing_ok=True)
                log.warning(
                    "no video of episode %d: played again it went another way, since rounding depends on who shares a batch; "
                    "run.deterministic makes it the same, eval.videos_of='first' records at once",
                    ticket,
                )

    def worked(self, actor: str, phase: str, receipt: SlotReceipt, slots: Sequence[Slot], rows: int) -> None:
        self._times.worked(actor, f"evaluate: {phase}", receipt.began_ns, receipt.seconds, rows=rows)

    def replaced(self, slot: Slot) -> None:
        self._times.restarted(slot.actor.name, asyncio.get_running_loop().time())

    def results(self) -> tuple[EvalEpisode, ...]:
        """Return one entry an episode."""
        found = []
        for number, (seed, start) in enumerate(self.episodes):
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
                    suite=self._spec.tasks[start.task].suite,
                )
            )
        return tuple(found)


class Evaluator:
    """Plays evaluations in environments of their own, one at a time.

    Args:
        config: of the run.
        specs: of the run.
        directory: of the run, for videos.
        watch: of calls that take too long.
        open_slots: starts environments of a run's simulator, by the sizes of slots; returns them when they stand, and what they
            say of their versions.
        times: takes the spans of actors.
    """

    def __init__(
        self,
        config: RunConfig,
        specs: Specs,
        directory: Path,
        watch: Watch,
        open_slots: Callable[[RunConfig, Specs, Sequence[int]], Awaitable[tuple[list[Slot], dict[str, str]]]],
        times: Timekeeper,
    ) -> None:
        self.slots: list[Slot] = []
        self._run = config, specs
        self._config, self._specs = config, specs
        """The run on the simulator that success is measured on."""
        self._directory = directory
        self._watch = watch
        self._open_slots = open_slots
        self._versions: Mapping[str, str] = {}
        self._times = times
        self._turn = asyncio.Lock()
        self._weights: Callable[[], Awaitable[object]]
        """Brings the weights that are evaluated to a generator that was made again."""

    async def play(
        self,
        config: EvalConfig,
        step: int,
        generator: Handle,
        weights: Callable[[], Awaitable[object]],
        heard: Callable[[Callable[[], float]], None],
    ) -> EvalResults:
        """Run the evaluation's episodes with the weights that a generator holds; nobody else may change them meanwhile.

        Args:
            config: what to measure.
            step: training steps done, for the names of videos.
            generator: who chooses chunks.
            weights: brings the same weights to the generator that takes its place where it dies.
            heard: told, as episodes end, what gives the share that is done.
        """
        async with self._turn:
            self._weights = weights
            return await self._play(config, step, generator, heard)

    async def _play(
        self, config: EvalConfig, step: int, generator: Handle, heard: Callable[[Callable[[], float]], None]
    ) -> EvalResults:
        began = time.perf_counter()
        run, specs = self._run
        run, specs = measured(replace(run, eval=config), specs)
        episodes = episodes_of(config, specs.sim)
        rows = min(config.num_envs or specs.num_envs, len(episodes))
        if sum(len(slot.rows) for slot in self.slots) != rows or run.sim != self._config.sim:
            for slot in self.slots:
                await asyncio.to_thread(slot.actor.close)
            self.slots, self._config, self._specs = [], run, specs
            slots = max(min(rows, len(specs.slots)), least_slots(rows, specs.sim))
            self.slots, self._versions = await self._open_slots(run, specs, split(rows, slots))
        sink = EvaluationSink(episodes, self._specs.sim, self._times)
        at_once = range(config.videos) if config.videos_of == "first" else ()
        version = await self._play_list(config, step, generator, sink, None, at_once, heard)
        if config.videos and config.videos_of == "failures":
            again = EvaluationSink(episodes, self._specs.sim, self._times)
            chosen = sink.worth_seeing(config.videos)
            await self._play_list(config, step, generator, again, chosen, chosen, heard)
            sink.take_videos(again)
        return EvalResults(
            episodes=sink.results(),
            protocol=self._protocol(config),
            policy_version=version,
            seconds=time.perf_counter() - began,
        )

    async def _play_list(
        self,
        config: EvalConfig,
        step: int,
        generator: Handle,
        sink: EvaluationSink,
        only: Sequence[int] | None,
        recorded: Collection[int],
        heard: Callable[[Callable[[], float]], None],
    ) -> int:
        """Play episodes of the sink's list (``only`` some, by ticket), with videos of some; returns the weights' version."""

        def video(work: Work) -> Path | None:
            if work.ticket not in recorded:
                return None
            name = f"eval_step_{step:06d}_episode_{work.ticket:04d}.mp4"
            sink.videos[work.ticket] = self._directory / "videos" / name
            return sink.videos[work.ticket]

        def restarted() -> None:
            self._times.restarted(generator.name, asyncio.get_running_loop().time())

        episodes = sink.episodes
        slots = [len(slot.rows) for slot in self.slots] if self._specs.sim.builds_tasks else ()
        feed = EpisodeFeed(episodes, config.seed, slots, only)
        rollout = Rollout(self.slots, feed, sink, greedy=config.greedy, video=video)
        watch = self._watch
        total = len(episodes if only is None else only)
        while working := await watch("evaluation: reset", rollout.begin(self.slots)):
            choosing = surviving(generator, partial(rollout.generate, working, generator), restarted, self._weights)
            receipt = await watch("evaluation: generate", choosing, generator.name)
            steps = (watch("evaluation: simulate", rollout.step(slot), slot.actor.name) for slot in working)
            await asyncio.gather(*steps)
            heard(lambda: sink.done / total)
        version: int = receipt.version
        return version

    def _protocol(self, config: EvalConfig) -> Mapping[str, Any]:
        sim = self._specs.sim
        return {
            "simulator": {"use": self._config.sim.name, **plain(self._config.sim.config)},
            "max_episode_steps": sim.max_episode_steps,
            "horizon": self._specs.model.horizon,
            "notes": list(sim.notes),
            **plain(config),
            "versions": {**versions.packages(self._config), **self._versions},
        }
