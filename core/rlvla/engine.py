"""Makes the actor graph of a run and drives it: actors, controller thread, checkpoints, evaluation.

The heavy half of :class:`rlvla.run.Run`; imported when a run really starts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlvla import checkpoint, placement
from rlvla.actors import making
from rlvla.checks import Specs, measured, on_gpus
from rlvla.configs import EvalConfig, RunConfig, write_file
from rlvla.devices import usable_cores
from rlvla.errors import RlvlaError, StallError, WorkerDied
from rlvla.evaluation import Evaluator
from rlvla.graph import Graph
from rlvla.hooks import Hooks
from rlvla.ranks import Meeting, Rank
from rlvla.results import EvalResults
from rlvla.rollout import MAX_RESTARTS, Row, Slot, surviving
from rlvla.runtimes import Handle, runtime_of
from rlvla.scheduler import Scheduler
from rlvla.timekeeping import Timekeeper
from rlvla.tracing import SpanFile
from rlvla.trainers import TrainerGroup
from rlvla.watch import Watch
from rlvla.work import training_feed

log = logging.getLogger(__name__)
T = TypeVar("T")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended a group of tasks: a user's error before others; the others are named in a note."""
    leaves: list[BaseException] = []
    for one in group.exceptions:
        leaves.append(_first(one) if isinstance(one, BaseExceptionGroup) else one)
    chosen = next((one for one in leaves if isinstance(one, RlvlaError)), leaves[0])
    for other in leaves:
        if other is not chosen:
            chosen.add_note(f"beside it: {type(other).__name__}: {other}")
    return chosen


class Engine:
    """Actors and controller of one run."""

    def __init__(self, config: RunConfig, specs: Specs, directory: Path, hooks: Hooks) -> None:
        self.config = config
        self.specs = specs
        self.directory = directory
        self._hooks = hooks
        self._slots: list[Slot] = []
        self._runtime = runtime_of(config, specs)
        self._learner = making.Learner(config, specs)
        self.generators, self.trainer = self._start_learners()
        self._second_generator: Handle | None = None
        """Acts with pinned weights, for evaluations beside training."""
        self._evaluating: asyncio.Task[None] | None = None
        self._pinned_step: int | None = None
        """Whose evaluation is under way: its checkpoint may be the best one."""
        self.simulator_versions: dict[str, str] = {}
        self._warned: set[str] = set()
        """What simulators' versions warn of and was said."""
        self.model_manifest: dict[str, Any] = {}
        self.parameters = self.trainable = 0
        self._scheduler: Scheduler = config.scheduler.plugin.load()(config.scheduler.config)
        self._plays = specs.algo.unit != "demonstration"
        """False: the trainer draws its own samples, and simulators are started for evaluation alone."""
        limits = [one.sim.call_timeout_s for one in (specs, measured(config, specs)[1]) if one.sim.call_timeout_s]
        self._watch = Watch(first_call_s=config.run.first_call_s, call_limit_s=max(limits, default=None))
        times = self._timekeeper()
        self._evaluator = Evaluator(config, specs, directory, self._watch, self._open_eval_slots, times)
        self.graph = Graph(
            slots=self._slots,
            generators=self._by_station(),
            trainer=self.trainer,
            algorithm=making.make_algorithm(config),
            feed=training_feed(specs.algo, specs.sim, specs.slots, config.run.seed, config.run, specs.units_per_step),
            hooks=hooks,
            watch=self._watch,
            until=config.run.steps,
            units_per_step=specs.units_per_step if self._plays else 0,
            max_staleness=specs.scheduler.max_staleness,
            batch_rows=config.run.batch_rows,
            shared_devices=specs.sim.device == "gpu",
            periodic=self._periodic,
            video=self._training_video,
            times=times,
            transport=specs.transport,
        )
        self._live: list[bool] = []
        self._idle = threading.Event()
        self._resumed: Path | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="controller", daemon=True)
        self._thread.start()

    # ---- life ---------------------------------------------------------------------------------------------------

    def wait(self, making: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the controller's thread and wait for it here; Ctrl-C cancels it and is passed on."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(making, self._loop)
        while True:
            try:
                return future.result(timeout=0.5)  # a wait without end would not hear Ctrl-C
            except TimeoutError:
                if future.done():
                    raise
                if not self._thread.is_alive():
                    raise StallError("the controller's thread ended in the middle of a call") from None
            except BaseException:
                future.cancel()
                raise

    def wait_idle(self, seconds: float = 300.0) -> None:
        """After a cancelled :meth:`wait`: wait until it has saved."""
        if self._thread.is_alive():
            self._idle.wait(seconds)

    def _start_learners(self) -> tuple[list[Handle], Handle]:
        """Start generators and trainer ranks, in the processes that the placement says."""
        placed, per_device = self.specs.placement, self.config.run.generators
        world = placed.ranks
        self._meeting = Meeting(self._runtime.address) if world > 1 else None
        names = self._generator_names()
        generators: dict[int, Handle] = {}
        ranks: dict[int, Handle] = {}
        for one in placement.processes(placed, per_device):
            learner = self._learner
            if one.rank is not None and self.config.run.runtime == "ray":
                rank = Rank() if self._meeting is None else Rank(one.rank, world, self._meeting.place)
                learner = making.Learner(self.config, self.specs, rank, len(one.generators))
            makers: dict[str, Callable[[], Any]] = {names[number]: learner.generator for number in one.generators}
            if one.rank is not None:
                makers["trainer" if world == 1 else f"trainer-{one.rank}"] = learner.trainer
            started = self._runtime.start(makers, replaceable=one.rank is None, device=one.device)
            generators |= dict(zip(one.generators, started, strict=False))
            if one.rank is not None:
                ranks[one.rank] = started[-1]
        trainer = (
            ranks[0]
            if world == 1
            else TrainerGroup(
                [ranks[number] for number in range(world)], self.config.train.shard == "fsdp", self.specs.cycle
            )
        )
        return [generators[number] for number in sorted(generators)], trainer

    def _by_station(self) -> list[list[Handle]]:
        """Return the generators of each station."""
        routes = self._routes(self.specs.slots)
        found: list[list[Handle]] = [[] for _ in range(routes.stations)]
        for device, handle in zip(self._generator_devices(), self.generators, strict=True):
            found[routes.of_generators[device]].append(handle)
        return found

    def _routes(self, slots: Sequence[int]) -> placement.Routes:
        placed, per_device = self.specs.placement, self.config.run.sim_hosts
        return placement.Routes(placed, self._runtime.nodes(), slots, self.specs.cycle, per_device)

    def _generator_devices(self) -> list[int]:
        return [device for device in self.specs.placement.generator for _ in range(self.config.run.generators)]

    def _generator_names(self) -> list[str]:
        count = len(self._generator_devices())
        return ["generator"] if count == 1 else [f"generator-{number}" for number in range(count)]

    def _timekeeper(self) -> Timekeeper:
        config = self.config
        elsewhere = config.run.runtime == "ray" and on_gpus(config)  # this process may have no GPU
        device = self.device = "cuda" if elsewhere else str(making.device_of(config.run.device))
        return Timekeeper(
            self.specs.scheduler,
            SpanFile(self.directory, round(1e6 * config.run.timeline_mb)),
            devices=self._busy_devices(device) if device != "cpu" else None,
            cores=usable_cores() if config.run.runtime == "local" else None,  # else actors are in other processes
            cpu=time.process_time,
        )

    def _busy_devices(self, device: str) -> dict[str, list[str]]:
        """Return the GPUs that each actor works on."""
        placed = self.specs.placement
        names = [device] if placed.devices == 1 else [f"cuda:{number}" for number in range(placed.devices)]
        found = {
            name: [names[one]] for name, one in zip(self._generator_names(), self._generator_devices(), strict=True)
        }
        found["trainer"] = [names[one] for one in placed.trainer]
        if self.specs.sim.device == "gpu":
            devices = self._routes(self.specs.slots).devices
            found |= {f"sim-{number}": [names[device]] for number, device in enumerate(devices)}
        return found

    async def start(self, resume_from: Path | None, simulators: bool) -> None:
        """Take over a checkpoint, and start the simulators of training, all side by side.

        Args:
            resume_from: checkpoint to continue.
            simulators: False where only evaluation is wanted: live episodes then wait in the checkpoint.
        """
        (about,) = await self.trainer.call("describe")
        self.model_manifest, self.parameters, self.trainable = about
        if self.specs.transport == "broadcast":
            await self._connect()
        if resume_from is not None:
            self._live = await self._load(resume_from)
            self._resumed = resume_from
        if simulators and self._plays and not self._slots:
            self._slots += self._make_slots(self.config, self.specs, self.specs.slots, "sim")
            self.simulator_versions = await self._watched(self._ready(self._slots))
            if any(self._live):
                assert self._resumed is not None, "live episodes without a checkpoint"
                with checkpoint.readable(self._resumed):
                    episodes = checkpoint.read_episodes(self._resumed)
                await self._restore(episodes, self._live)

    async def _connect(self) -> None:
        """Make one group of the first trainer rank and the generators, for weights."""
        self._weights_meeting = Meeting(self._runtime.address)
        place, ends = self._weights_meeting.place, len(self.generators) + 1
        connecting = [one.call("connect", place, number, ends) for number, one in enumerate(self.generators, 1)]
        await asyncio.gather(self.trainer.call("connect", place, ends), *connecting)

    def _make_slots(self, config: RunConfig, specs: Specs, sizes: Sequence[int], name: str) -> list[Slot]:
        directory = self.directory.absolute()
        makers = {
            (own := f"{name}-{number}"): partial(making.make_simulator, config, specs, own, number, size, directory)
            for number, size in enumerate(sizes)
        }
        names, nodes, routes = list(makers), self._runtime.nodes(), self._routes(sizes)
        actors: dict[str, Handle] = {}
        for host, device in enumerate(routes.hosts):
            part = [one for one, at in zip(names, routes.host_of, strict=True) if at == host]
            started = self._runtime.start({own: makers[own] for own in part}, replaceable=True, device=device)
            actors |= dict(zip(part, started, strict=True))
        slots, first = [], 0
        for number, (size, actor) in enumerate(zip(sizes, (actors[own] for own in names), strict=True)):
            device = routes.devices[number]
            shares = device if specs.sim.device == "gpu" else nodes[device]
            rows = [Row(first + place) for place in range(size)]
            slots.append(Slot(number, actor, rows, shares, routes.of_slot[number]))
            first += size
        return slots

    async def _ready(self, slots: Sequence[Slot], restarts: int = 0) -> dict[str, str]:
        """Wait until simulators stand; one whose worker dies meanwhile is started again so often. Returns their versions."""
        began = time.monotonic_ns()

        async def standing(slot: Slot) -> Any:
            for left in reversed(range(restarts + 1)):
                try:
                    (found,) = await slot.actor.call("ready")
                    return found
                except WorkerDied as error:
                    if not left:
                        raise
                    log.warning("%s; it is started again", error)
                    await slot.actor.call("restart", returns=0)
            raise AssertionError("the last try raises or returns")

        async def ready(slot: Slot) -> dict[str, str]:
            name = slot.actor.name
            _, found = await self._watch("start", standing(slot), name)
            self.graph.meter.times.worked(name, "start", began, (time.monotonic_ns() - began) / 1e9)
            return found  # type: ignore[no-any-return]

        versions: dict[str, str] = (await asyncio.gather(*map(ready, slots)))[-1]
        if (warning := versions.get("warning")) and warning not in self._warned:
            self._warned.add(warning)
            log.warning("%s", warning)
        return versions

    def close(self) -> None:
        """End every actor, worker process and thread; what hangs is killed."""
        self.graph.meter.times.flush()
        for slot in (*self._slots, *self._evaluator.slots):
            slot.actor.close()
        for handle in (*self.generators, self.trainer, self._second_generator):
            if handle is not None:
                handle.close()
        self._runtime.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()

    # ---- training -----------------------------------------------------------------------------------------------

    async def train(self, until: int) -> None:
        """Let the scheduler run; saves at the end and when something goes wrong."""
        self.graph.start(until)
        self._idle.clear()
        try:
            await self._watched(self._run(until))
        except BaseException as error:
            self.graph.abandon()
            await self._save_after(error)
            raise
        finally:
            self.graph.meter.times.flush()
            self._idle.set()

    async def _run(self, until: int) -> None:
        """Let the scheduler run, and evaluations beside it, whichever fails ends both; then save."""
        async with asyncio.TaskGroup() as self._beside:
            await self._scheduler.run(self.graph, until)
        await self.save(live=True)

    async def _watched(self, running: Coroutine[Any, Any, T]) -> T:
        """Run beside the stall detector; whichever fails first ends both."""
        task = asyncio.ensure_future(running)
        detector = asyncio.ensure_future(self._watch.run())
        try:
            await asyncio.wait([task, detector], return_when=asyncio.FIRST_COMPLETED)
            if detector.done():
                self._kill_simulators()
                detector.result()
            if task.done() and isinstance(group := task.exception(), BaseExceptionGroup):
                raise _first(group)
            return task.result()
        finally:
            for one in (task, detector):
                one.cancel()
            await asyncio.gather(task, detector, return_exceptions=True)

    def _kill_simulators(self) -> None:
        for slot in (*self._slots, *self._evaluator.slots):
            slot.actor.kill()

    async def _save_after(self, error: BaseException) -> None:
        """Save what can be saved: the weights, and which units were not trained on yet."""
        try:
            await asyncio.wait_for(self.save(live=False), timeout=300)
        except Exception as second:
            log.error("could not save after %s: %s: %s", type(error).__name__, type(second).__name__, second)

    async def _periodic(self, step: int) -> None:
        """Do what is due after a training step."""
        config, save_every = self.config.eval, self.config.run.save_every
        evaluates = config.every and (step % config.every == 0 or step == self.graph.until)
        saves = save_every and step % save_every == 0 and step < self.graph.until
        if evaluates and not config.pause:
            while self._evaluating is not None:  # one at a time: who evaluates more than there is time for waits
                await asyncio.wait([self._evaluating])
            await self.save(live=True)  # perhaps the best one
            weights = await self._pinned(config)
            self._pinned_step = step
            self._evaluating = self._beside.create_task(self._evaluate_at(step, *weights), name=f"evaluation-{step}")
        elif evaluates:
            async with self.graph.paused():
                results = await self._evaluate_present(config)
                best = self._note(step, results)
                if best or saves:
                    await self.save(live=True)
                if best:
                    checkpoint.mark_best(self.directory, step, results.success)
        elif saves:
            await self.save(live=True)

    async def _evaluate_at(self, step: int, version: int, weights: Any) -> None:
        """Evaluate a training step's weights, whose checkpoint stands, while the next steps go on."""
        try:
            results = await self._evaluate_beside(self.config.eval, step, version, weights)
            if self._note(step, results):
                checkpoint.mark_best(self.directory, step, results.success)
        finally:
            self._evaluating = self._pinned_step = None

    def _note(self, step: int, results: EvalResults) -> bool:
        """Write down and tell what an evaluation of the run found; returns whether it is the best so far."""
        checkpoint.write_results(self.directory, step, results.to_dict())
        self._hooks.call("on_evaluation", step=step, results=results)
        return checkpoint.is_best(self.directory, results.success)

    def _training_video(self, episode: int) -> Path | None:
        every = self.config.run.video_every
        if not every or episode % every:
            return None
        return self.directory / "videos" / f"train_episode_{episode:06d}.mp4"

    # ---- evaluation ---------------------------------------------------------------------------------------------

    async def evaluate_now(self, config: EvalConfig) -> EvalResults:
        """Evaluate the trainer's present weights, or their average."""
        with self._watch.excused():
            return await self._watched(self._evaluate_present(config))

    async def _evaluate_present(self, config: EvalConfig) -> EvalResults:
        """Evaluate with the generator where nobody else needs it, else with an own one."""
        step = self.graph.steps_done
        if not config.pause and self._slots:
            return await self._evaluate_beside(config, step, *await self._pinned(config))
        async with self.graph.paused():
            await self.graph.publish(config.weights)
            first, told = self.generators[0], partial(self.graph.report, "evaluate")
            results = await self._evaluator.play(config, step, first, partial(self.graph.offer, first), told)
            if config.weights != "latest":  # rollouts that go on do so with the weights as trained
                await self.graph.publish()
        self._tell_of_videos(step, results)
        return results

    async def _pinned(self, config: EvalConfig) -> tuple[int, Any]:
        """Return the version of the trainer's present weights, and a reference to a copy of them."""
        way = "reference" if self.specs.transport == "reference" else "store"
        publishing = self.trainer.call("publish", config.weights, way, returns=1)
        made, weights = await self._watch("publish", publishing, self.trainer.name)
        return made.version, weights

    async def _evaluate_beside(self, config: EvalConfig, step: int, version: int, weights: Any) -> EvalResults:
        """Evaluate pinned weights with a generator of its own; rollouts and training go on."""
        if self._second_generator is None:
            start = partial(self._runtime.start, {"evaluator": self._learner.generator}, replaceable=True)
            (self._second_generator,) = await asyncio.to_thread(start)
        generator = self._second_generator
        pinned = partial(generator.call, "offer", weights, version)
        await self._watch("publish", surviving(generator, pinned, lambda: None), generator.name)

        def heard(done: Callable[[], float]) -> None:
            if self.graph.steps_done >= self.graph.until:  # else a display shows what training does
                self.graph.report("evaluate", done)

        results = await self._evaluator.play(config, step, generator, pinned, heard)
        self._tell_of_videos(step, results)
        return results

    def _tell_of_videos(self, step: int, results: EvalResults) -> None:
        for episode in results.episodes:
            if episode.video is not None:
                self._hooks.call("on_video", step=step, path=Path(episode.video))

    async def _open_eval_slots(
        self, config: RunConfig, specs: Specs, sizes: Sequence[int]
    ) -> tuple[list[Slot], dict[str, str]]:
        slots = self._make_slots(config, specs, sizes, "eval")
        # A run is not to end after hours with one worker that dies.
        return slots, await self._ready(slots, MAX_RESTARTS)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    async def save(self, live: bool) -> Path:
        """Write a checkpoint; ``live`` episodes too, where the simulator can save them. Rollouts pause meanwhile."""
        if not live:
            return await self._save(live=False)
        async with self.graph.paused():
            return await self._save(live=True)

    async def _save(self, live: bool) -> Path:
        began = time.monotonic_ns()
        trainer = self.trainer.name
        # an aborted run's last training step may just end
        (version,) = await self._watch("settle", self.trainer.call("settled"), trainer)
        state = self.graph.state(version)
        live = live and bool(self._slots)  # a resumed run that only evaluated has left its episodes where they are
        numbers_place = checkpoint.path_of(self.directory, state["steps_done"])
        if not live and (numbers_place / "state.json").is_file():
            return numbers_place  # of the same weights, and with the live episodes: what an abort can save is less
        with checkpoint.Writer(numbers_place) as writer:
            write_file(writer.folder / "config.yaml", self.config)
            (written,) = await self._watch("save", self.trainer.call("save", writer.folder.absolute()), trainer)
            episodes = await self._live_episodes() if live and self.specs.sim.restorable else {}
            state["live"] = [number in episodes for number in range(self.specs.num_envs)]
            if episodes:
                checkpoint.write_episodes(writer.folder, episodes)
            writer.commit({"graph": state, "trainer": written})
        self.graph.meter.times.worked("controller", "save", began, (time.monotonic_ns() - began) / 1e9, version=version)
        checkpoint.prune(self.directory, self.config.run.keep_last, self._pinned_step)
        self._hooks.call("on_checkpoint", step=state["steps_done"], path=numbers_place)
        return numbers_place

    async def _live_episodes(self) -> dict[int, dict[str, Any]]:
        episodes: dict[int, dict[str, Any]] = {}
        for slot in self._slots:
            places = [place for place, row in enumerate(slot.rows) if row.live]
            if places:
                try:
                    (states,) = await self._watch("save", slot.actor.call("save", places), slot.actor.name)
                except WorkerDied as error:
                    await self.graph.replace(slot, error)
                    continue
                episodes |= {slot.rows[place].number: state for place, state in zip(places, states, strict=True)}
        return episodes

    async def _load(self, place: Path) -> list[bool]:
        """Continue from a checkpoint; returns which rows have a live episode in it.

        Raises:
            CheckpointError: it is of another model, or has another number of environments.
        """
        state = checkpoint.read_state(place)
        with checkpoint.readable(place):
            live: list[bool] = state["graph"]["live"]
            await self.trainer.call("load", place.absolute(), state["trainer"])
        if self._plays and len(live) != self.specs.num_envs:
            log.warning(
                "%s had %d environments, now %d: live episodes are given up, new ones start",
                place,
                len(live),
                self.specs.num_envs,
            )
            live = [False] * self.specs.num_envs
        self.graph.load_state(state["graph"])
        return live

    async def _restore(self, episodes: dict[int, dict[str, Any]], live: Sequence[bool]) -> None:
        for slot in self._slots:
            places = [place for place, row in enumerate(slot.rows) if live[row.number]]
            if places:
                states = [episodes[slot.rows[place].number] for place in places]
                _, slot.observation = await slot.actor.call("restore", places, states, returns=1)
                for place in places:
                    slot.rows[place].live = True
