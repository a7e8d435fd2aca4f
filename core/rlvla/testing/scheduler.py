"""Conformance of schedulers: runs on fakes, in real time with real worker processes, and in virtual time."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import rlvla
from rlvla.demonstrations import record
from rlvla.errors import RlvlaError
from rlvla.run import Run
from rlvla.specs import Activity
from rlvla.testing.suite import Conformance, check

if TYPE_CHECKING:
    from rlvla.scheduler import Scheduler
    from rlvla.testing.virtual import World


class Recorder:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.metrics: list[Mapping[str, float]] = []
        self.versions: list[int] = []
        self.errors: list[BaseException | None] = []

    @rlvla.hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)
        self.metrics.append(metrics)

    @rlvla.hookimpl
    def on_weights_published(self, policy_version: int) -> None:
        self.versions.append(policy_version)

    @rlvla.hookimpl
    def on_run_end(self, error: BaseException | None) -> None:
        self.errors.append(error)


class SchedulerConformance(Conformance):
    """Checks of a scheduler plugin with windows (PPO) and groups (GRPO)."""

    kind = "scheduler"
    steps: ClassVar[int] = 3
    algorithms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "windows": {"use": "ppo", "window": 3, "minibatch_size": None},
        "fixed-length": {"use": "ppo", "window": 3, "minibatch_size": None, "partial_reset": False},
        "groups": {"use": "grpo", "group_size": 3, "groups_per_step": 3},
    }

    @contextmanager
    def run(self, unit: str, **overrides: Any) -> Iterator[tuple[Run, Recorder]]:
        """Yield a run on fakes, with a listener."""
        heard = Recorder()
        sim = {"use": "fake", "num_envs": 5, **overrides.pop("sim", {})}
        options = {"slots": 2, "device": "cpu", "threads": 1, "steps": self.steps, **overrides.pop("run", {})}
        with tempfile.TemporaryDirectory() as folder:
            made = rlvla.build(
                sim=sim,
                model="fake",
                algo=self.algorithms[unit],
                scheduler={"use": self.name, **self.config},
                run={
                    "directory": folder,
                    "name": "run",
                    "without": ("tensorboard", "display", "report"),
                    "strict_listeners": True,
                    **options,
                },
                listeners=[heard],
                **overrides,
            )
            with made:
                yield made, heard

    def exercise(self, config: Any) -> None:
        """Train on fakes."""
        with self.run("windows") as (run, _):
            run.train()

    # --- checks ---

    def test_trains_the_steps_asked_for(self) -> None:
        """Each step trains once on its units, in order; versions go up; the end is saved."""
        for unit in self.algorithms:
            with self.run(unit) as (run, heard):
                run.train()
                assert heard.steps == list(range(1, self.steps + 1)), f"{unit}: on_step heard {heard.steps}"
                wanted = run.specs.units_per_step
                units = [one["rollout/units"] for one in heard.metrics]
                assert units == [wanted] * self.steps, f"{unit}: units trained {units}, wanted {wanted} each"
                assert heard.versions == sorted(heard.versions), f"published versions went backwards: {heard.versions}"
                assert (run.directory / "checkpoints" / f"step_{self.steps:06d}" / "state.json").is_file(), (
                    "the end is not saved"
                )

    def test_staleness_is_bounded(self) -> None:
        """No unit is older than the scheduler's spec says."""
        bound = self.plugin().describe(self.made()).max_staleness
        for unit in self.algorithms:
            with self.run(unit) as (run, heard):
                run.train()
                lags = [one["train/staleness_max"] for one in heard.metrics]
                assert max(lags) <= bound, f"{unit}: staleness {lags}, the spec promises at most {bound}"

    def test_phases_name_each_activity_once(self) -> None:
        """``spec.phases`` says what comes in turn; what it leaves out or names twice makes the schedule bound wrong."""
        phases = self.plugin().describe(self.made()).phases
        named = sorted(one for phase in phases for one in phase)
        assert named == sorted(get_args(Activity)), f"phases {phases} name {named}"

    def test_uneven_counts_work(self) -> None:
        """Environments that slots do not divide, and more or fewer units than environments."""
        for unit, algo in (("windows", {"windows_per_step": 7}), ("groups", {"groups_per_step": 1})):
            self_algorithms = {**self.algorithms[unit], **algo}
            changed = type("Changed", (type(self),), {"algorithms": {**self.algorithms, unit: self_algorithms}})
            with changed().run(unit, sim={"num_envs": 4}, run={"slots": 3}) as (run, heard):
                run.train()
                assert [one["rollout/units"] for one in heard.metrics] == [float(run.specs.units_per_step)] * self.steps

    def test_batched_device_simulator(self) -> None:
        """A simulator inside this process, with torch tensors, runs like one in workers."""
        for unit in self.algorithms:
            with self.run(unit, sim={"batched": True}) as (run, heard):
                run.train()
                assert len(heard.steps) == self.steps

    def test_a_dead_worker_is_replaced(self) -> None:
        """Its episodes are lost and counted, the run goes on, and every unit is trained on once."""
        for unit in self.algorithms:
            with tempfile.TemporaryDirectory() as folder:
                fault = {"fault": "die", "fault_step": 2, "fault_file": str(Path(folder) / "done")}
                with self.run(unit, sim=fault) as (run, heard):
                    run.train()
                    assert heard.steps == list(range(1, self.steps + 1))
                    assert sum(one["rollout/units_lost"] for one in heard.metrics) > 0, "nothing was counted as lost"

    def test_a_failing_simulator_ends_the_run(self) -> None:
        """The error names the worker and carries its words; what was trained is saved."""
        with self.run("windows", sim={"fault": "raise", "fault_step": 5}) as (run, heard):
            directory = run.directory
            try:
                run.train()
            except RlvlaError as error:
                assert "told to raise" in str(error), f"the worker's own words are missing: {error}"
                assert "sim-" in str(error), f"the worker is not named: {error}"
            else:
                raise AssertionError("a simulator raised and the run went on")
            assert isinstance(heard.errors[0], RlvlaError)
            assert list((directory / "checkpoints").glob("step_*/state.json")), "nothing was saved when the run failed"

    def test_demonstrations_need_no_rollout(self) -> None:
        """Where an algorithm has nothing to roll out, each step trains on what the trainer draws, and the end is saved."""
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "demonstrations")
            record(sim={"use": "fake", "num_envs": 4}, episodes=6, path=path)
            algo = {"use": "bc", "path": path, "minibatch_size": 8, "minibatches_per_step": 2}
            changed = type("Changed", (type(self),), {"algorithms": {"demonstrations": algo}})
            with changed().run("demonstrations") as (run, heard):
                run.train()
                assert heard.steps == list(range(1, self.steps + 1)), f"on_step heard {heard.steps}"
                assert [one["train/samples"] for one in heard.metrics] == [16.0] * self.steps
                assert heard.metrics[-1]["env_steps"] == 0, "something was rolled out"
                last = run.directory / "checkpoints" / f"step_{self.steps:06d}" / "state.json"
                assert last.is_file(), "the end is not saved"

    def test_stops_when_asked(self) -> None:
        """``graph.stopping`` ends the run after the step at hand, with a checkpoint."""

        class Stopper:
            run: Run

            @rlvla.hookimpl
            def on_step(self, step: int) -> None:
                if step == 2:
                    self.run.stop()

        stopper = Stopper()
        with self.run("windows", run={"steps": 50}) as (run, heard):
            stopper.run = run
            run.hooks.add(stopper)
            run.train()
            assert len(heard.steps) < 50, "the scheduler does not look at graph.stopping"
            state = json.loads(next((run.directory / "checkpoints").glob("step_*/state.json")).read_text())
            assert state["graph"]["steps_done"] == len(heard.steps)

    # --- in virtual time ---

    def test_time_and_order_come_from_the_loop(self) -> None:
        """No clocks, no time-outs, no sets of tasks, no task that nobody waits for: virtual time would not be exact."""
        source = inspect.getsource(sys.modules[type(self.scheduler()).__module__])
        found = {
            ast.unparse(node)
            for node in ast.walk(ast.parse(source))
            if (isinstance(node, ast.Attribute) and ast.unparse(node).startswith("asyncio.") and node.attr in _BANNED)
            or (
                isinstance(node, ast.ImportFrom) and node.module == "asyncio" and _BANNED & {a.name for a in node.names}
            )
            or (isinstance(node, ast.Import) and {"time", "threading"} & {alias.name for alias in node.names})
            or (isinstance(node, ast.ImportFrom) and node.module in ("time", "threading"))
        }
        assert not found, f"{', '.join(sorted(found))}: use graph's waits, gather and TaskGroup"

    def test_any_latencies_in_virtual_time(self) -> None:
        """Nothing stalls; no unit is lost, doubled, out of order or too old; the actors' sum of work is not exceeded."""
        from rlvla.testing.virtual import play

        for seed in range(20):
            world = _world(seed)
            played = play(self.scheduler(), world)
            where = f"seed {seed}: {world}"
            trained = [ticket for tickets in played.tickets for ticket in tickets]
            kept = [ticket for ticket in range(trained[-1] + 1) if ticket not in world.dropped]
            assert trained == kept, f"{where}: trained on {trained}, wanted {kept}"
            assert len(played.tickets) == world.steps, f"{where}: {len(played.tickets)} steps"
            bound = self.plugin().describe(self.made()).max_staleness
            assert max(played.staleness) <= bound, f"{where}: staleness {played.staleness}, promised {bound}"
            assert played.versions == sorted(played.versions), f"{where}: versions went backwards: {played.versions}"
            longest = max((one.seconds for one in played.spans), default=0.0)
            for step in played.metrics:
                over = (longest if bound else 0.0) / step["time/step_s"] if step["time/step_s"] else 0.0
                assert step.get("time/overlap_efficiency", 0.0) <= 1 + over + 1e-9, (
                    f"{where}: a step is faster than the schedule bound: do phases overlap that spec.phases puts in turn?"
                )
            in_turn = sum(played.busy.values())
            assert played.seconds <= in_turn + 1e-6, (
                f"{where}: {played.seconds} s, in turn {in_turn} s: who waits for what?"
            )

    def scheduler(self) -> Scheduler:
        """Return a scheduler of the suite's config."""
        made: Scheduler = self.plugin().load()(self.made())
        return made


_BANNED = {"wait", "as_completed", "wait_for", "timeout", "create_task", "ensure_future", "run_coroutine_threadsafe"}


def _world(seed: int) -> World:
    from rlvla.testing.virtual import Latency, World

    draw = random.Random(seed)
    seconds = [draw.choice([1.0, draw.lognormvariate(0, 1)]) for _ in range(97)]
    chunks = [draw.choice([1, 2, 3, 12]) for _ in range(97)]
    deaths = {place for place in range(0, 97, 3) if draw.random() < (0.2 if seed % 5 > 2 else 0.0)}
    return World(
        slots=[draw.randint(1, 3) for _ in range(draw.randint(1, 4))],
        unit="group" if seed % 2 else "window",
        partial_reset=seed % 3 > 0,
        units_per_step=draw.randint(1, 6),
        steps=4,
        latency=Latency(
            simulate=lambda slot, step: seconds[(31 * slot + step) % 97],
            reset=draw.choice([0.0, 1.0]),
            generate_call=draw.choice([0.0, 2.0]),
            generate_row=draw.choice([0.0, 0.5]),
            train=lambda step: 3 * seconds[step],
            snapshot=draw.choice([0.0, 0.2]),
            offer=draw.choice([0.0, 0.3]),
            restart=1.5,
        ),
        dies=lambda slot, call: (12 * slot + call) % 99 in deaths,
        episode=lambda slot, number: chunks[(31 * slot + number) % 97],
        dropped=frozenset(ticket for ticket in range(1000) if draw.random() < (0.25 if seed % 4 > 1 else 0.0)),
    )


def check_scheduler(name: str, config: Mapping[str, Any] | None = None, **attributes: Any) -> None:
    """Run the suite on an installed scheduler, in a notebook; see :func:`rlvla.testing.check`."""
    logging.getLogger("rlvla").setLevel(logging.ERROR)
    check(SchedulerConformance, name, config, **attributes)
