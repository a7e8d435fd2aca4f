"""Conformance of schedulers: runs on fakes, in real time, with real worker processes."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import rlvla
from rlvla.demonstrations import record
from rlvla.errors import RlvlaError
from rlvla.run import Run
from rlvla.testing.suite import Conformance, check


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
                    "without": ("tensorboard", "display"),
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


def check_scheduler(name: str, config: Mapping[str, Any] | None = None, **attributes: Any) -> None:
    """Run the suite on an installed scheduler, in a notebook; see :func:`rlvla.testing.check`."""
    logging.getLogger("rlvla").setLevel(logging.ERROR)
    check(SchedulerConformance, name, config, **attributes)
