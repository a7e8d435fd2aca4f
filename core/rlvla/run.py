"""``build``: from four names to a run that trains, evaluates and saves. Light until the run really starts."""

from __future__ import annotations

import fcntl
import json
import logging
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Any

from rlvla import checkpoint, configs, devices, preflight, versions
from rlvla.checks import Specs, check, check_demonstrations, fitted, measured_on
from rlvla.configs import Choice, EvalConfig, RunConfig
from rlvla.errors import ConfigError
from rlvla.hooks import Hooks
from rlvla.plugin import GROUPS
from rlvla.results import EvalResults, RunInfo

if TYPE_CHECKING:
    from rlvla.engine import Engine
    from rlvla.profile import Profile

log = logging.getLogger(__name__)


def build(
    *,
    sim: Any,
    model: Any,
    algo: Any,
    scheduler: Any = "sync",
    train: Mapping[str, Any] | None = None,
    eval: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    listeners: Sequence[object] = (),
    fit: bool = False,
) -> Run:
    """Return a run of four plugins.

    Example:
        >>> run = rlvla.build(sim={"use": "tabletop", "num_envs": 32}, model="tiny", algo="ppo", run={"seed": 1})
        >>> run.train(steps=100)

    Args:
        sim: a name, ``{"use": name, **options}``, or an instance of the plugin's config; likewise the next three.
        model: see ``sim``.
        algo: see ``sim``.
        scheduler: see ``sim``.
        train: options of :class:`rlvla.configs.TrainConfig`.
        eval: options of :class:`rlvla.configs.EvalConfig`.
        run: options of :class:`rlvla.configs.RunOptions`.
        listeners: modules, classes or objects with ``@rlvla.hookimpl`` methods, for this run alone.
        fit: change sizes that do not go together to the nearest that do, with a warning each.

    Raises:
        ConfigError: everything that is wrong, at once, before anything heavy is imported.
    """
    source = {
        "sim": sim,
        "model": model,
        "algo": algo,
        "scheduler": scheduler,
        "train": train,
        "eval": eval,
        "run": run,
    }
    return build_from(configs.read(source), listeners=listeners, fit=fit)


def build_from(config: RunConfig, listeners: Sequence[object] = (), fit: bool = False) -> Run:
    """Return a run of a checked config; see :func:`build`."""
    return Run(fitted(config) if fit else config, listeners=listeners)


def resume(path: str | Path, overrides: Mapping[str, Any] | None = None, listeners: Sequence[object] = ()) -> Run:
    """Return a run that goes on where a checkpoint ends.

    Args:
        path: a run's folder (its last complete checkpoint is taken) or one checkpoint.
        overrides: settings to change, nested as in a recipe: ``{"run": {"steps": 300}}``.
        listeners: as in :func:`build`.

    Raises:
        CheckpointError: no complete checkpoint there.
        ConfigError: overrides that cannot work.
    """
    place = checkpoint.find(path)
    if fixed := {"name", "directory"} & set((overrides or {}).get("run") or {}):
        raise ConfigError(
            f"run.{min(fixed)}: a resumed run goes on in its own folder, {checkpoint.run_of(place)}; leave it out"
        )
    source = configs.overridden(configs.read_file(place / "config.yaml"), overrides or {})
    source["run"] = {
        **source["run"],
        "name": checkpoint.run_of(place).name,
        "directory": str(checkpoint.run_of(place).parent),
    }
    return Run(configs.read(source), listeners=listeners, resume_from=place)


def evaluate(
    path: str | Path,
    *,
    eval: Mapping[str, Any] | None = None,
    sim: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    listeners: Sequence[object] = (),
) -> EvalResults:
    """Evaluate a training checkpoint; results go to ``evaluations/`` in its run's folder.

    Args:
        path: a run's folder or one checkpoint.
        eval: options of :class:`rlvla.configs.EvalConfig` to change.
        sim: options of the simulator to change.
        run: options of :class:`rlvla.configs.RunOptions` to change.
        listeners: as in :func:`build`.
    """
    overrides = {name: value for name, value in (("eval", eval), ("sim", sim), ("run", run)) if value}
    with resume(path, overrides, listeners) as one:
        return one.evaluate()


class Run:
    """One training run: made by :func:`build` or :func:`resume`; a context manager that closes it."""

    def __init__(self, config: RunConfig, *, listeners: Sequence[object] = (), resume_from: Path | None = None) -> None:
        self.config = config
        self.specs: Specs = check(config)
        if resume_from is None:
            check_demonstrations(config, self.specs)
        self.hooks = Hooks(config.run, listeners, [getattr(config, kind).plugin for kind in GROUPS])
        self.directory = Path(config.run.directory).expanduser() / (config.run.name or self._default_name())
        self._resume_from = resume_from
        self._engine: Engine | None = None
        self._closed = False
        self._lock: IO[str] | None = None
        self._looked_at: list[Choice] = []

    def _default_name(self) -> str:
        names = "-".join(getattr(self.config, kind).name for kind in ("model", "sim", "algo", "scheduler"))
        now = time.time()
        return f"{names}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now * 1000) % 1000:03d}"

    # ---- what users call ----------------------------------------------------------------------------------------

    def train(self, steps: int | None = None) -> RunInfo:
        """Train until ``steps`` training steps are done (counted from the run's first), saving on the way and at the end.

        Args:
            steps: None: ``run.steps``, which schedules (learning rate) also end at.

        Raises:
            RlvlaError: what went wrong; a checkpoint was saved before.
            KeyboardInterrupt: Ctrl-C; a checkpoint was saved before.
        """
        check_demonstrations(self.config, self.specs)
        until = self._until(steps)
        engine = self._started()
        if self._resume_from is not None:
            checkpoint.set_aside(self.directory, after=engine.graph.steps_done)
        info = self.info()
        self._write_manifest(info)
        self.hooks.call("on_run_start", run=info)
        error: BaseException | None = None
        try:
            with _sigterm_interrupts():
                engine.wait(engine.train(until))
        except BaseException as caught:
            error = caught
            if isinstance(caught, KeyboardInterrupt):
                engine.wait_idle()
            raise
        finally:
            self._note_end(info, error)
            try:
                self.hooks.call("on_run_end", run=info, error=error)
            finally:
                if error is not None:
                    self.close()
        return info

    def _until(self, steps: int | None) -> int:
        """Return the step to train to, known to lie ahead before anything starts."""
        until = self.config.run.steps if steps is None else steps
        if isinstance(until, bool) or not isinstance(until, int) or until < 1:
            raise ConfigError(f"steps: got {steps!r}, wanted a whole number of training steps, 1 or more")
        done = 0
        if self._engine is not None:
            done = self._engine.graph.steps_done
        elif self._resume_from is not None:
            with checkpoint.readable(self._resume_from):
                done = int(checkpoint.read_state(self._resume_from)["graph"]["steps_done"])
        if done >= until:
            raise ConfigError(
                f"run.steps: got {until}, but {done} steps are done: ask for more (--run.steps, or run.train(steps=...))"
            )
        return until

    def evaluate(self, **options: Any) -> EvalResults:
        """Measure success with the present weights.

        Args:
            options: of :class:`rlvla.configs.EvalConfig`, on top of the run's.
        """
        chosen = self.check_evaluation(**options)
        engine = self._started(simulators=False)
        results = engine.wait(engine.evaluate_now(chosen))
        checkpoint.write_results(self.directory, engine.graph.steps_done, results.to_dict())
        self.hooks.call("on_evaluation", step=engine.graph.steps_done, results=results)
        return results

    def check_evaluation(self, **options: Any) -> EvalConfig:
        """Return the settings of an evaluation that can be played; arguments as in :meth:`evaluate`.

        Raises:
            ConfigError: with every reason why not.
            SimulatorError: what this machine lacks for it.
        """
        chosen: EvalConfig = configs.read_section("eval", {**configs.plain(self.config.eval), **options})
        asked = replace(self.config, eval=chosen)
        check(asked)
        self._check_environment(measured_on(asked))
        return chosen

    def save(self) -> Path:
        """Write a checkpoint; returns its folder."""
        engine = self._started(simulators=False)
        return engine.wait(engine.save(live=True))

    def stop(self) -> None:
        """Let training end after the step at hand, with a checkpoint; callable from a listener or another thread."""
        if self._engine is not None:
            self._engine.graph.stopping = True

    def plan(self) -> str:
        """Say what the run will cost, after a short trial of each part."""
        self._until(None)
        engine = self._started()
        from rlvla.plan import cost_line  # torch, which nobody waits for before what is missing is known

        return cost_line(engine)

    def profile(self, repeats: int = 10) -> Profile:
        """Measure what the parts of the run take on this machine, each while nothing else runs.

        Args:
            repeats: chunk steps, and batches, of each size.

        Raises:
            ConfigError: episodes are under way, which must not be disturbed.
        """
        from rlvla.measuring import measure

        engine = self._started()
        measured = engine.wait(measure(engine, repeats))
        if measured is None:
            raise ConfigError("run: its episodes are under way; profile a new run")
        return measured

    def info(self) -> RunInfo:
        """Return name, folder, config and manifest."""
        manifest: dict[str, Any] = {
            "versions": versions.packages(self.config),
            "seed": self.config.run.seed,
            "machine": devices.machine(),
            "cores": devices.usable_cores(),
        }
        if self._engine is not None:
            manifest["versions"] |= self._engine.simulator_versions
            manifest["model"] = self._engine.model_manifest
            manifest["device"] = self._engine.device
        if self._resume_from is not None:
            manifest["resumed_from"] = str(self._resume_from)
        return RunInfo(name=self.directory.name, directory=self.directory, config=self.config, manifest=manifest)

    def close(self) -> None:
        """End all actors and worker processes; a second call does nothing."""
        self._closed = True
        engine, self._engine = self._engine, None
        if engine is not None:
            self._finalizer()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        lines = [f"Run {str(self.directory)!r}"]
        for kind in GROUPS:
            choice = getattr(self.config, kind)
            lines.append(f"  {kind:<10}{choice.name:<14}{choice.plugin.distribution}")
        specs, slots = self.specs, self.specs.slots
        done = f"{self._engine.graph.steps_done} of " if self._engine is not None else ""
        lines.append(f"  {'envs':<10}{specs.num_envs} in {len(slots)} slots of {min(slots)} to {max(slots)}")
        lines.append(
            f"  {'step':<10}{specs.units_per_step} {specs.algo.unit}s, up to {specs.samples_per_step} chunks of "
            f"{specs.model.horizon} actions; {done}{self.config.run.steps} steps"
        )
        return "\n".join(lines)

    # ---- inside -------------------------------------------------------------------------------------------------

    def _started(self, simulators: bool = True) -> Engine:
        if self._closed:
            raise ConfigError(f"{self.directory}: this run is closed; go on with rlvla.resume({str(self.directory)!r})")
        if simulators and self.specs.algo.unit != "demonstration":
            self._check_environment(self.config.sim)
        if simulators and self.config.eval.every:
            self._check_environment(measured_on(self.config))
        if simulators:
            self._claim()
        if self._engine is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self._resume_from is None and checkpoint.steps(self.directory):
                raise ConfigError(
                    f"run.name: {self.directory} already holds checkpoints; choose another name, or go on with "
                    f"rlvla.resume({str(self.directory)!r})"
                )
            from rlvla.engine import Engine

            with _sigterm_interrupts():  # Ray takes its time to start
                self._engine = Engine(self.config, self.specs, self.directory, self.hooks)
            # Whoever forgets close(): when the run is garbage, or else before the interpreter takes its threads away.
            self._finalizer = weakref.finalize(self, self._engine.close)
            try:
                with _sigterm_interrupts():
                    self._engine.wait(self._engine.start(self._resume_from, simulators))
            except BaseException:
                self.close()
                raise
        elif simulators:
            with _sigterm_interrupts():
                self._engine.wait(self._engine.start(None, True))
        return self._engine

    def _check_environment(self, choice: Choice) -> None:
        """Look, once, for what a simulator needs on this machine before a model's weights are loaded."""
        options = self.config.run
        if options.runtime == "local" and choice not in self._looked_at:
            preflight.check(choice, options.sim_python)
            self._looked_at.append(choice)

    def _claim(self) -> None:
        """Make sure that no other process trains in the run's folder."""
        if self._lock is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = (self.directory / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ConfigError(
                f"run.name: another process trains in {self.directory} right now; choose another name, or wait for it"
            ) from None
        self._lock = lock

    def _write_manifest(self, info: RunInfo, **more: Any) -> None:
        configs.write_file(self.directory / "config.yaml", self.config)
        (self.directory / "manifest.json").write_text(json.dumps({**info.manifest, **more}, indent=1))

    def _note_end(self, info: RunInfo, error: BaseException | None) -> None:
        """Add to the manifest how training ended, for the report."""
        words, worker = None, ""
        if error is not None:
            worker = getattr(error, "worker", "")
            words = "\n".join([f"{type(error).__name__}: {error}".rstrip(": "), *getattr(error, "__notes__", [])])
        try:
            self._write_manifest(info, ended={"error": words, "worker": worker})
        except OSError as second:  # a full disk must not hide what ended the run
            log.error("%s: how the run ended could not be noted: %s", self.directory, second)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (a closed terminal) end a run as Ctrl-C does, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
