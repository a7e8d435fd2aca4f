"""Configuration: frozen dataclasses, and three ways in that mean the same.

``build(sim={"use": "libero", "num_envs": 4})``, a YAML file with those keys and ``rlvla train --sim libero
--sim.num-envs 4`` all become one :class:`RunConfig`. Values are checked before torch, Ray or a simulator is imported,
and every problem is reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt

from rlvla import flags as flags_
from rlvla.errors import ConfigError
from rlvla.plugin import GROUPS, Kind, Plugin, find, find_by_config

T = TypeVar("T")
_STRICT: dict[str, Any] = {"extra": "forbid", "revalidate_instances": "always", "allow_inf_nan": False}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a config class: a frozen keyword-only dataclass whose unknown keys and bad values pydantic refuses.

    Document each option with a string below it; the command line shows it. Bounds go in ``Annotated[int, Ge(1)]``.
    """
    cls.__pydantic_config__ = _STRICT  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True, slots=True)(cls)


@config
class TrainConfig:
    """How weights are changed."""

    learning_rate: Annotated[float, Ge(0)] = 3e-4
    """Adam step size at the start."""
    final_learning_rate: Annotated[float, Ge(0), Le(1)] = 1.0
    """Fraction of the learning rate left at the last step; 1 keeps it constant."""
    schedule: Literal["linear", "cosine"] = "linear"
    """Shape of the way from the learning rate to its final fraction, over the run's training steps."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Training steps over which the learning rate rises from zero, linearly."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Decoupled weight decay (AdamW)."""
    adam_beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Decay of Adam's first moment, each optimizer step."""
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """Decay of Adam's second moment."""
    adam_eps: Annotated[float, Gt(0)] = 1e-5
    """Added to the root of Adam's second moment."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """Gradients are scaled down to this global norm."""
    micro_batch: Annotated[int, Ge(1)] | None = None
    """Samples (chunks) in one forward and backward pass; None: the whole minibatch. Changes memory, not results."""
    micro_batch_tokens: Annotated[int, Ge(1)] | None = None
    """Tokens in one forward and backward pass, padding included; None: no bound. A single longer sample still passes."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of matrix products, in acting and training alike; weights, log-probs and the optimizer stay in fp32."""
    shard: Literal["none", "ddp", "fsdp"] = "ddp"
    """How several devices train together: ``ddp``, a rank on each with all weights, gradients added up; ``fsdp``, what is
    trained, its gradients and the optimizer's state cut among the ranks (frozen weights stay whole); ``none``: one rank."""
    offload: Literal["none", "optimizer", "parameters", "all"] = "none"
    """What waits in host memory while nothing is trained, for copies there and back each training step; gradients are freed.
    ``optimizer``: Adam's moments and the running average (8 bytes a trained parameter, 12 with an average). ``parameters``: the
    trainer's weights, but not frozen ones that a generator of its process acts with, too. ``all``: both."""
    generator_gap_limit: Annotated[float, Gt(0)] = 0.1
    """Mean difference of log-probs between generator and trainer at equal weights, per entry in nats, beyond which a
    warning names it (``train/generator_gap``); it should be rounding alone."""
    ema_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    """Keep a running average of the weights with this decay for each optimizer step, for ``eval.weights``; None: none."""
    demonstrations: str | None = None
    """Folder of recorded demonstrations to imitate beside what the algorithm does; None: none."""
    imitation_weight: Annotated[float, Ge(0)] = 0.1
    """What the mean of ``-log prob`` of demonstrated actions (nats a log-prob entry) is multiplied by in the loss."""
    imitation_batch: Annotated[int, Ge(1)] = 64
    """Demonstration samples (chunks) in an optimizer step."""
    max_bad_steps: Annotated[int, Ge(1)] = 5
    """Optimizer steps in a row with a loss or gradient that is not finite (each is skipped) before the run stops."""
    max_empty_steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps in a row without any gradient (all groups filtered, all outcomes equal, no action valid; a warning
    says so) before the run stops; None: it goes on collecting."""


@config
class EvalConfig:
    """How success is measured."""

    every: Annotated[int, Ge(0)] = 0
    """Training steps between evaluations; 0: only when asked."""
    episodes: Annotated[int, Ge(1)] = 100
    """Episodes, spread evenly over the tasks and their initial states."""
    episodes_per_task: Annotated[int, Ge(1)] | None = None
    """Episodes of each task, over its stored initial states in their order, in place of ``episodes``."""
    tasks: tuple[Annotated[int, Ge(0)], ...] | None = None
    """Task numbers; None: all that the simulator is configured for."""
    num_envs: Annotated[int, Ge(1)] | None = None
    """Environments; None: as many as in training (where ``sim`` is another: as it says), at most one an episode. Does not
    change which episodes are run."""
    sim: dict[str, Any] | str | None = None
    """Simulator that success is measured on: a name, or ``{"use": name, **options}``; without a name the one that the simulator
    of the training names as its measure, else itself. Its other options are as in training, as far as both have them."""
    pause: bool = False
    """Rollouts and training wait while it runs. Else it runs beside them, on pinned weights in a second copy of what is
    trained, and its result comes some steps later."""
    greedy: bool = True
    """The most likely chunk instead of a sample."""
    weights: Literal["latest", "ema"] = "latest"
    """Measure the weights as trained last, or their running average (``train.ema_decay``)."""
    seed: int = 1_000_000
    """Held out: episodes are seeded from it alone, never from the run's seed."""
    videos: Annotated[int, Ge(0)] = 0
    """Episodes recorded as video."""
    videos_of: Literal["failures", "first"] = "failures"
    """Which: failed episodes and then solved ones (known afterwards, so they are played a second time), or the first ones of
    the list."""


@config
class RunOptions:
    """Where a run lives and how it is executed."""

    name: str = ""
    """Folder below ``directory``; empty: model-sim-algo-scheduler and the time."""
    directory: str = "runs"
    """Folder that holds runs."""
    steps: Annotated[int, Ge(1)] = 100
    """Training steps."""
    seed: Annotated[int, Ge(0)] = 0
    """Of weights, episodes and action noise."""
    deterministic: bool = False
    """Fixed batch shapes and orders: equal bits on the same CPU for equal settings, under every scheduler and runtime."""
    runtime: Literal["local", "ray"] = "local"
    """Where actors live: threads of this process, or workers of Ray (extra ``rlvla[ray]``)."""
    device: str = "auto"
    """Of generator and trainer: ``cpu``, ``cuda``, ``cuda:1``; ``auto`` takes the first GPU there is. Under ``ray`` ``cuda``
    means GPUs, and ``placement`` says which."""
    devices: Annotated[int, Ge(1)] | None = None
    """GPUs that the run takes, of all machines; on the CPU, parts that its cores are thought to be, each for a rank or a
    generator. None: all GPUs under ``ray``, else 1."""
    placement: str | dict[str, str | int] | None = None
    """Which devices simulators, generators and trainer ranks live on: ``collocated`` (all on all), ``disaggregated`` (each on
    its own), ``hybrid`` (the trainer on all, the others on halves), or ``{"simulator": "0-3", "generator": "4-7", "trainer":
    "all"}``. None: ``hybrid`` where a scheduler lets simulators on GPUs work in turn with generators, else ``collocated``."""
    transport: Literal["store", "process", "broadcast"] | None = None
    """How new weights come to generators under ``ray``: through the object store, inside a process that a generator shares with
    a trainer rank, or from rank 0 to all at once (NCCL; gloo on the CPU). None: within processes where all generators share
    one, else broadcast between GPUs, else by the store."""
    generators: Annotated[int, Ge(1)] = 1
    """Generators on each of their devices that share the batches, each with weights of its own to act with. Under ``ray`` one
    that lives in a worker without the trainer and dies is replaced."""
    sim_hosts: Annotated[int, Ge(1)] = 1
    """Ray workers for each of the simulators' devices that the slots are divided among; one that dies is replaced."""
    threads: Annotated[int, Ge(1)] | None = None
    """CPU threads of torch; None: one a core, at most 8."""
    slots: Annotated[int, Ge(1)] | None = None
    """Parts that the environments are split in, each with a worker process; None: derived from cores and environments."""
    batch_rows: Annotated[int, Ge(1)] | None = None
    """Most environments that one call of the policy chooses chunks for; None: as many as wait for one. A bound on memory:
    a slot with more environments still goes whole."""
    sim_python: str | None = None
    """Interpreter of simulator workers; None: this one, or that of ``rlvla simulators install`` where a simulator needs an
    environment of its own."""
    sim_in_process: bool = False
    """Run simulators inside this process (debugging; batched GPU simulators)."""
    task_sampling: Literal["uniform", "adaptive"] = "uniform"
    """Tasks of a simulator with several: all equally often (or by ``task_weights``), or more often where the policy solves
    some episodes and not others (by the success of what was trained on)."""
    task_weights: tuple[Annotated[float, Ge(0)], ...] | None = None
    """How often each task is played relative to the others, one number a task; None: equally often, in rounds."""
    task_episodes: Annotated[int, Ge(1)] = 1
    """Episodes in a row that an environment plays of one task, for windows: a simulator that builds its tasks builds fewer.
    Groups are given to environments that have their task."""
    save_every: Annotated[int, Ge(0)] = 50
    """Training steps between checkpoints; 0: only at the end. One is always saved at the end and on abort."""
    keep_last: Annotated[int, Ge(1)] = 2
    """Checkpoints kept, besides the best one."""
    timeline_mb: Annotated[float, Ge(0)] = 64.0
    """Most megabytes of ``timeline.jsonl``, what every actor did when (about 130 bytes a call): when it is full, the older
    half goes. 0: none is written."""
    first_call_s: Annotated[float, Gt(0)] = 600.0
    """Seconds that the first call of each kind (a simulator's start, a reset, a batch, a training step) may take before it
    counts as a stall, since scenes are built and kernels compiled in it. Later ones: 60 s (10 s more than a
    limit that the simulator sets its calls, if that is longer) or ten times the slowest so far."""
    video_every: Annotated[int, Ge(0)] = 0
    """Every n-th training episode is recorded as video; 0: none."""
    without: tuple[str, ...] = ()
    """Installed listeners (entry points ``rlvla.hooks``) that are not to listen."""
    strict_listeners: bool = False
    """A listener that raises ends the run instead of being warned about."""


@dataclass(frozen=True)
class Choice:
    """A chosen plugin with its checked config."""

    plugin: Plugin[Any, Any]
    config: Any

    @property
    def name(self) -> str:
        return self.plugin.name

    def describe(self) -> Any:
        """Return the plugin's spec for this config."""
        return self.plugin.describe(self.config)


@dataclass(frozen=True)
class RunConfig:
    """A run, checked. ``to_dict`` gives the mapping that makes it again."""

    sim: Choice
    model: Choice
    algo: Choice
    scheduler: Choice
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    run: RunOptions = field(default_factory=RunOptions)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: what ``config.yaml`` beside a checkpoint holds."""
        data: dict[str, Any] = {}
        for kind in GROUPS:
            choice: Choice = getattr(self, kind)
            data[kind] = {"use": choice.name, **plain(choice.config)}
        return {**data, **{name: plain(getattr(self, name)) for name in SECTIONS}}


SECTIONS: dict[str, type[Any]] = {"train": TrainConfig, "eval": EvalConfig, "run": RunOptions}


def plain(value: object) -> Any:
    """Return a config (or anything in one) as dictionaries, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def shared(value: object, kind: type[Any]) -> dict[str, Any]:
    """Return the options of a config that another class has from the same config class (itself, or the nearest of both)."""
    common = next((one for one in type(value).__mro__ if one in kind.__mro__ and dataclasses.is_dataclass(one)), None)
    return {} if common is None else {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(common)}


def read(source: Mapping[str, Any] | RunConfig, flags: Sequence[str] = ()) -> RunConfig:
    """Check a mapping (and command-line flags on top of it) and return the run that it describes.

    Args:
        source: ``{"sim": ..., "model": ..., "algo": ..., "scheduler": ..., "train": {...}, "eval": {...}, "run": {...}}``;
            a plugin is a name, ``{"use": name, **options}``, or an instance of its config class.
        flags: ``["--sim", "libero", "--sim.num-envs", "4"]``.

    Raises:
        ConfigError: with every problem found.
    """
    if isinstance(source, RunConfig):
        source = {name: getattr(source, name) for name in (*GROUPS, *SECTIONS)}
    chosen, options, problems = flags_.split(flags, GROUPS)
    fields: dict[str, type[Any]] = {}
    data: dict[str, Any] = {}
    plugins: dict[Kind, Plugin[Any, Any]] = {}
    for key in source:
        if key not in GROUPS and key not in SECTIONS:
            problems.append(f"{key}: no such section.{_close(key, [*GROUPS, *SECTIONS])}")
    for kind in GROUPS:
        try:
            plugins[kind], data[kind] = choose(kind, source.get(kind), chosen.get(kind))
            fields[kind] = plugins[kind].config
        except ConfigError as error:
            problems += error.problems
    fields |= SECTIONS
    data |= {name: plain(source.get(name) or {}) for name in SECTIONS}
    given: dict[str, Any] = {}
    problems += flags_.merge(options, fields, given)
    for name, settings in given.items():
        if name in fields and isinstance(data[name], Mapping):
            data[name] = _merged(data[name], settings)
        elif name not in GROUPS and name not in SECTIONS:
            problems.append(f"--{name}.{next(iter(settings))}: no such section.{_close(name, [*GROUPS, *SECTIONS])}")
    checked = _validate(fields, data, problems)
    if problems:
        raise ConfigError(problems)
    choices = {kind: Choice(plugins[kind], getattr(checked, kind)) for kind in GROUPS}
    return RunConfig(**choices, **{name: getattr(checked, name) for name in SECTIONS})  # type: ignore[arg-type]


def overridden(source: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with some settings changed; another plugin's name drops the options of the old one."""
    result = dict(source)
    for section, change in overrides.items():
        if isinstance(change, str):
            change = {"use": change}
        before = result.get(section) or {}
        if "use" in change and change["use"] != before.get("use"):
            before = {}
        result[section] = {**before, **change}
    return result


def read_one(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return one checked config (or spec) of plain data."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(dict(data))
    except ValidationError as error:
        raise ConfigError([_message(item, {}) for item in error.errors(include_url=False)]) from error


def read_choice(kind: Kind, value: Any) -> Choice:
    """Return one plugin with its checked config: ``value`` as in :func:`read`.

    Raises:
        ConfigError: with every problem found.
    """
    return checked(kind, *choose(kind, value, None))


def checked(kind: Kind, plugin: Plugin[Any, Any], options: Mapping[str, Any]) -> Choice:
    """Return a plugin with the config that its options make.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[str] = []
    made = _validate({kind: plugin.config}, {kind: dict(options)}, problems)
    if problems:
        raise ConfigError(problems)
    return Choice(plugin, getattr(made, kind))


def read_section(name: str, data: Mapping[str, Any]) -> Any:
    """Return one checked section of the core (``train``, ``eval``, ``run``).

    Raises:
        ConfigError: with every problem found, each with its path.
    """
    problems: list[str] = []
    checked = _validate({name: SECTIONS[name]}, {name: dict(data)}, problems)
    if problems:
        raise ConfigError(problems)
    return getattr(checked, name)


def read_file(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, or the one that ``recipe()`` in a Python file returns, which may import what lies
    beside it.

    Raises:
        ConfigError: no such file, not a mapping, or no ``recipe``.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"{path}: {what}; give a .yaml file or a .py file with a function recipe()")
    if path.suffix == ".py":
        import runpy

        try:
            with _neighbours(path.resolve().parent):
                made = runpy.run_path(str(path)).get("recipe")
                data = made() if callable(made) else None
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error
        if isinstance(data, RunConfig):
            return data.to_dict()
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path}: has no function recipe() that returns the run's mapping")
        return dict(data)
    import yaml

    from rlvla import strict_yaml

    try:
        data = strict_yaml.load(path.read_text())
    except strict_yaml.RepeatedKey as error:
        raise ConfigError(f"{path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds a {type(data).__name__}, wanted a mapping with sim, model, algo, scheduler")
    return data


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Let code import the modules of a folder, and forget them after it: other folders may have others of these names."""
    before = set(sys.modules)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == folder:
                del sys.modules[name]


def without_effect(section: str, config: object, needs: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Return what is wrong with options that were set and change nothing beside the others.

    Args:
        section: of the options, as in a recipe.
        config: a ``@rlvla.config``.
        needs: option to what it needs, in words, and whether that is there.
    """
    defaults = {one.name: one.default for one in dataclasses.fields(config)}  # type: ignore[arg-type]
    return [
        f"{section}.{name}: got {getattr(config, name)!r}, which changes nothing without {wanted}: leave it out"
        for name, (wanted, there) in needs.items()
        if not there and getattr(config, name) != defaults[name]
    ]


def write_file(path: Path, run: RunConfig) -> None:
    """Write YAML that :func:`read_file` and :func:`read` turn into the same run."""
    import yaml

    path.write_text(yaml.safe_dump(run.to_dict(), sort_keys=False))


def choose(kind: Kind, value: Any, name: str | None) -> tuple[Plugin[Any, Any], dict[str, Any]]:
    """Return the plugin of one kind and its options as given, from what a file says and the name that a flag gives."""
    options: dict[str, Any] = {}
    plugin: Plugin[Any, Any] | None = None
    if isinstance(value, Plugin):
        plugin = value if value.name else replace(value, name=value.target.partition(":")[0].rpartition(".")[2])
    elif isinstance(value, Choice):
        plugin, options = value.plugin, plain(value.config)
    elif isinstance(value, str):
        name = name or value
    elif isinstance(value, Mapping):
        options = {key: item for key, item in value.items() if key != "use"}
        used = value.get("use")
        if name is not None and used is not None and name != used:
            options = {}  # another plugin by flag: the file's options are of the other one
        name = name or used
        if name is None:
            raise ConfigError(f"{kind}.use: missing; got {sorted(value)}, wanted the plugin's name under 'use'")
    elif value is not None:
        plugin, options = find_by_config(kind, value), plain(value)
    if plugin is not None and name is not None and name != plugin.name:
        plugin, options = None, {}
    if plugin is None:
        if name is None:
            raise ConfigError(f"{kind}: missing; wanted a plugin's name (for instance one that `rlvla plugins` lists)")
        plugin = find(kind, str(name))
    return plugin, options


def _validate(fields: Mapping[str, type[Any]], data: dict[str, Any], problems: list[str]) -> Any:
    from pydantic import TypeAdapter, ValidationError

    problems += _truth_for_numbers(fields, data)
    root = make_dataclass(
        "Run",
        [(name, kind) for name, kind in fields.items()],
        frozen=True,
        kw_only=True,
        namespace={"__pydantic_config__": _STRICT},
    )
    try:
        return TypeAdapter(root).validate_python(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            problems.append(_message(item, fields))
        return None


def _truth_for_numbers(fields: Mapping[str, type[Any]], data: Mapping[str, Any]) -> list[str]:
    """Refuse true and false where a number is wanted: pydantic would take them as 1 and 0."""
    found = []
    for section, kind in fields.items():
        values = data.get(section)
        if not dataclasses.is_dataclass(kind) or not isinstance(values, Mapping):
            continue
        for item in dataclasses.fields(kind):
            value = values.get(item.name)
            if isinstance(value, bool) and "bool" not in str(item.type):
                found.append(f"{section}.{item.name}: got {value!r}, wanted {item.type}")
    return found


def _message(item: Any, fields: Mapping[str, type[Any]]) -> str:
    """Say path, got, wanted and the close name of one pydantic error."""
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        owner: Any = fields.get(str(item["loc"][0]))
        for part in item["loc"][1:-1]:
            owner = flags_.hints(owner).get(str(part))
        return f"{where}: no such option.{_close(str(item['loc'][-1]), list(flags_.hints(owner)))}"
    if item["type"].startswith("missing"):
        return f"{where}: missing"
    if item["type"] == "value_error":  # from a config class's own __post_init__
        return f"{where}: {item['ctx']['error']}"
    wanted = item["msg"].removeprefix("Input should be ")
    close = difflib.get_close_matches(str(item["input"]), re.findall(r"'([^']+)'", wanted), n=1)
    hint = f". Did you mean {close[0]!r}?" if item["type"] == "literal_error" and close else ""
    return f"{where}: got {item['input']!r}, wanted {wanted}{hint}"


def _close(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word.replace("-", "_"), known, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" There is: {', '.join(known) or 'none'}"


def _merged(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with those of ``above`` in place of those of ``below``."""
    merged = dict(below) if isinstance(below, Mapping) else {}
    for key, value in above.items():
        merged[key] = _merged(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged
