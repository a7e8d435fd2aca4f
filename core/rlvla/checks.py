"""Do the chosen four fit together? Answered from specs alone, before torch or a simulator is imported."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvla import configs, demonstration_header, placement
from rlvla.configs import Choice, RunConfig, RunOptions
from rlvla.devices import cluster_address, usable_cores, visible_gpus
from rlvla.environments import runs_apart
from rlvla.errors import ConfigError, Fit
from rlvla.placement import Placement
from rlvla.specs import AlgorithmSpec, ModelSpec, Need, SchedulerSpec, SimulatorSpec

log = logging.getLogger(__name__)
_ONE_DEVICE = Placement()


@dataclass(frozen=True)
class Specs:
    """What the four chosen plugins say of themselves, and what follows from it."""

    sim: SimulatorSpec
    model: ModelSpec
    algo: AlgorithmSpec
    scheduler: SchedulerSpec
    num_envs: int
    slots: tuple[int, ...]
    """Environments of each slot."""
    units_per_step: int
    placement: Placement = _ONE_DEVICE
    transport: str = "reference"
    """Of weights to generators."""
    elsewhere: bool = False
    """Its GPUs need not be here: it is planned, or a cluster is joined."""

    @property
    def max_chunks(self) -> int:
        """Most chunk steps of an episode."""
        return -(-self.sim.max_episode_steps // self.model.horizon)

    @property
    def samples_per_step(self) -> int:
        """Most samples (chunks) of a training step."""
        return self.units_per_step * self.algo.group_size * self.trajectory_chunks

    @property
    def cycle(self) -> int:
        """Units after which trainer ranks repeat (:func:`rlvla.placement.cycle`); 0: units go to them in turn."""
        windows = self.algo.unit == "window" and self.algo.partial_reset
        return placement.cycle(sum(self.slots), self.units_per_step, self.placement.ranks) if windows else 0

    @property
    def trajectory_chunks(self) -> int:
        """Most chunk steps of a window, of a rollout, or of a demonstration's sample."""
        if self.algo.unit == "window":
            return self.algo.window if self.algo.partial_reset else min(self.algo.window, self.max_chunks)
        return self.max_chunks if self.algo.unit == "group" else 1


def check(config: RunConfig, elsewhere: bool = False) -> Specs:
    """Return the specs of a run whose parts fit.

    Args:
        config: of the run.
        elsewhere: it is not to run here, so its GPUs need not be here.

    Raises:
        ConfigError: with every reason why they do not.
    """
    problems: list[str] = []
    found = {}
    for kind in ("sim", "model", "algo", "scheduler"):
        try:
            found[kind] = getattr(config, kind).describe()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    sim, model, algo, scheduler = found["sim"], found["model"], found["algo"], found["scheduler"]
    problems += _model_and_simulator(config, sim, model) + _model_and_algorithm(config, model, algo)
    problems += _idle_options(config, sim, model, algo)
    if not model.imitation and (taught := folders(config, algo)):
        problems.append(
            f"model: {config.model.name} cannot be taught demonstrated actions (its spec says imitation=False): leave out "
            f"{' and '.join(taught)}"
        )
    num_envs = environments(config.sim.config)
    fits = _misfits(config, sim, scheduler, num_envs)
    problems += [fit.problem for fit in fits]
    problems += _task_sampling(config, sim, algo)
    problems += _simulation(config, sim)
    units_per_step = algo.units_per_step or max(1, num_envs // algo.group_size)
    try:
        elsewhere = elsewhere or cluster_address() is not None
        placed = _placed(config, sim, scheduler, elsewhere)
        problems += _ranks(config, algo, units_per_step, placed.ranks)
        way = placement.transport(
            placed, ray=config.run.runtime == "ray", gpus=on_gpus(config), chosen=config.run.transport
        )
    except ConfigError as error:
        problems += error.problems
        placed, way = _ONE_DEVICE, "reference"
    if algo.critic_warmup >= config.run.steps:
        problems.append(
            f"algo.critic_warmup: got {algo.critic_warmup}, wanted fewer than run.steps ({config.run.steps}): the policy would "
            "never be trained"
        )
    if Path(config.run.name).name != config.run.name:
        problems.append(
            f"run.name: got {config.run.name!r}, wanted the name of a folder in run.directory, without separators"
        )
    problems += _evaluation(config, sim)
    if algo.max_staleness < scheduler.max_staleness:
        problems.append(
            f"scheduler: {config.scheduler.name} trains on units up to {scheduler.max_staleness} versions old, "
            f"{config.algo.name} takes {algo.max_staleness} at most: lower the scheduler's staleness"
        )
    if not model.acts_as_trained and algo.proximal == "stale":
        problems.append(
            f"algo.proximal: got 'stale', which takes the log-probs of fresh chunks from acting, and {config.model.name} acts by "
            "other products than it trains by: wanted 'recompute', or a model that acts as it trains"
        )
    specs = Specs(
        sim=sim,
        model=model,
        algo=algo,
        scheduler=scheduler,
        num_envs=num_envs,
        slots=split(num_envs, min(num_envs, config.run.slots or derived_slots(num_envs, sim, scheduler))),
        units_per_step=units_per_step,
        placement=placed,
        transport=way,
        elsewhere=elsewhere,
    )
    if config.eval.weights == "ema" and config.train.ema_decay is None:
        problems.append("eval.weights: got 'ema', but train.ema_decay is not set: no running average is kept")
    if problems:
        raise ConfigError(problems, fits)
    if config.run.save_every > config.run.steps and config.run.save_every != RunOptions().save_every:
        log.warning(
            "run.save_every (%d) lies beyond the last step (%d): only the end is saved",
            config.run.save_every,
            config.run.steps,
        )
    if config.run.deterministic and config.run.device not in ("cpu", "auto"):
        log.warning(
            "run.deterministic promises equal bits on the CPU only; on %s kernels may differ", config.run.device
        )
    return specs


def fitted(config: RunConfig) -> RunConfig:
    """Return a run whose sizes fit, with the changes that an error of :func:`check` announces; they are logged.

    Raises:
        ConfigError: with what no such change mends.
    """
    try:
        check(config)
    except ConfigError as error:
        left = [problem for problem in error.problems if problem not in {fit.problem for fit in error.fits}]
        if left or not error.fits:
            raise ConfigError(left or error.problems) from None
        overrides: dict[str, dict[str, Any]] = {}
        for fit in error.fits:
            log.warning("--fit sets %s", fit)
            section, _, option = fit.option.partition(".")
            overrides.setdefault(section, {})[option] = fit.value
        for change in overrides.values():
            if "use" in change:  # another plugin does not have the options of this one
                for option in set(change) - {"use"}:
                    del change[option]
        return fitted(configs.read(configs.overridden(config.to_dict(), overrides)))
    return config


def _simulation(config: RunConfig, sim: SimulatorSpec) -> list[str]:
    """Return what the simulator does not do where it is to run."""
    found = _filming("run.video_every", config.run.video_every, config.sim, sim)
    if sim.first_call_timeout_s is not None and config.run.first_call_s <= sim.first_call_timeout_s:
        found.append(
            f"run.first_call_s: got {config.run.first_call_s:g}, wanted more than the {sim.first_call_timeout_s:g} s that "
            f"{config.sim.name} gives a worker's first call: the run would end before"
        )
    if config.run.sim_in_process and runs_apart(config.sim.plugin, config.sim.config):
        found.append(
            f"run.sim_in_process: {config.sim.name} runs in an environment of its own (rlvla simulators list): leave it out"
        )
    return found


def _filming(option: str, wanted: int, choice: Choice, sim: SimulatorSpec) -> list[str]:
    if sim.films or not wanted:
        return []
    return [f"{option}: got {wanted}, but {choice.name} draws nothing with these settings: set it to 0, or let it draw"]


def _evaluation(config: RunConfig, sim: SimulatorSpec) -> list[str]:
    """Return why success cannot be measured like this."""
    if config.eval.tasks == ():
        return ["eval.tasks: empty; give at least one number, or None for all tasks"]
    try:
        choice = measured_on(config)
    except ConfigError as error:
        return error.problems
    try:
        spec: SimulatorSpec = sim if choice is config.sim else choice.describe()
    except ConfigError as error:
        return [f"eval.sim: {one}" for one in error.problems]
    problems = []
    if choice is not config.sim:
        problems += _simulation(replace(config, sim=choice, run=replace(config.run, video_every=0)), spec)
        problems += _differences(config.sim.name, sim, choice.name, spec)
    problems += _filming("eval.videos", config.eval.videos, choice, spec)
    if beyond := [task for task in config.eval.tasks or () if task >= len(spec.tasks)]:
        problems.append(f"eval.tasks: got {beyond}, wanted numbers below {len(spec.tasks)} (tasks of {choice.name})")
    return problems


def _differences(trained: str, sim: SimulatorSpec, measured: str, spec: SimulatorSpec) -> list[str]:
    """Return what a policy of one simulator would see or do otherwise on another."""
    found = []
    for what in ("cameras", "state", "action", "control_hz", "execute_horizon"):
        before, here = getattr(sim, what), getattr(spec, what)
        if what == "cameras":  # each simulator has names of its own for them
            before, here = (tuple(replace(one, name="") for one in some) for some in (before, here))
            if set(before) == set(here):
                continue
        if before != here:
            found.append(
                f"eval.sim: {what.replace('_', ' ')} of {measured} are not those of {trained}, which the policy is made for "
                f"(got {_but(here, before)}, wanted {_but(before, here)}): set them alike, or measure on {trained} "
                f"(eval.sim: {trained})"
            )
    return found


def _but(some: Any, others: Any) -> str:
    """Say what is in one specification and not in another; numbers as they are."""
    if not isinstance(some, tuple):
        return str(some)
    return ", ".join(str(one) for one in some if one not in others) or "none"


def measured_on(config: RunConfig) -> Choice:
    """Return the simulator that success is measured on (``eval.sim``); ``config.sim`` itself where that is the same.

    Raises:
        ConfigError: no such simulator, or not with these options.
    """
    trained, asked = config.sim, config.eval.sim
    options = {"use": asked} if isinstance(asked, str) else dict(asked or {})
    name = str(options.pop("use", trained.plugin.measured_by or trained.name))
    try:
        plugin = trained.plugin if name == trained.name else configs.choose("sim", None, name)[0]
        shared = configs.shared(trained.config, plugin.config)
        choice = configs.checked("sim", plugin, {**shared, **plugin.when_measuring, **options})
    except ConfigError as error:
        raise ConfigError(
            [f"eval.{one}" if one.startswith("sim.") else f"eval.sim: {one}" for one in error.problems]
        ) from error
    return trained if choice.name == trained.name and choice.config == trained.config else choice


def measured(config: RunConfig, specs: Specs) -> tuple[RunConfig, Specs]:
    """Return a run as its evaluations see it: on the simulator that success is measured on."""
    choice = measured_on(config)
    if choice is config.sim:
        return config, specs
    sim: SimulatorSpec = choice.describe()
    num_envs = environments(choice.config)
    slots = split(num_envs, derived_slots(num_envs, sim, specs.scheduler))
    return replace(config, sim=choice), replace(specs, sim=sim, num_envs=num_envs, slots=slots)


def _misfits(config: RunConfig, sim: SimulatorSpec, scheduler: SchedulerSpec, num_envs: int) -> list[Fit]:
    """Return sizes that do not go together, each with the nearest that do."""
    found = []
    slots, rows, name = config.run.slots, config.run.batch_rows, config.scheduler.name
    if slots is not None and slots > num_envs:
        problem = (
            f"run.slots: got {slots}, wanted at most sim.num_envs ({num_envs}): a slot holds an environment or more"
        )
        found.append(Fit(problem, "run.slots", num_envs, "speed"))
    elif slots is not None and slots < (least := least_slots(num_envs, sim)):
        problem = (
            f"run.slots: got {slots}, wanted at least {least}: a worker of {config.sim.name} holds {sim.rows_per_worker} "
            f"of the {num_envs} environments at most"
        )
        found.append(Fit(problem, "run.slots", least, "speed"))
    if config.run.generators > num_envs:
        problem = f"run.generators: got {config.run.generators}, wanted at most sim.num_envs ({num_envs}): the others are idle"
        found.append(Fit(problem, "run.generators", num_envs, "speed"))
    if config.run.sim_hosts > 1 and config.run.runtime != "ray":
        problem = f"run.sim_hosts: got {config.run.sim_hosts}, but only run.runtime 'ray' has such workers"
        found.append(Fit(problem, "run.sim_hosts", 1, "speed"))
    elif config.run.sim_hosts > (count := min(num_envs, slots or derived_slots(num_envs, sim, scheduler))):
        problem = f"run.sim_hosts: got {config.run.sim_hosts}, but there are {count} slots to divide: the others would be idle"
        found.append(Fit(problem, "run.sim_hosts", count, "speed"))
    if rows is not None and rows > num_envs:
        problem = f"run.batch_rows: got {rows}, wanted at most sim.num_envs ({num_envs}): there are no more rows"
        found.append(Fit(problem, "run.batch_rows", num_envs, "speed"))
    if scheduler.stages > num_envs:
        problem = f"scheduler.stages: got {scheduler.stages}, wanted at most sim.num_envs ({num_envs})"
        found.append(Fit(problem, "scheduler.stages", num_envs, "speed"))
    elif slots is not None and slots < scheduler.stages:
        problem = f"run.slots: got {slots}, wanted at least scheduler.stages ({scheduler.stages}): a stage holds a slot or more"
        found.append(Fit(problem, "run.slots", scheduler.stages, "speed"))
    if scheduler.alternates and sim.device == "gpu" and config.run.device != "cpu" and visible_gpus() == 1:
        problem = (
            f"scheduler: {name} alternates between simulators on a GPU and generators on another; got 1 GPU, on which they "
            "would only wait for each other: take async-rollout, or more GPUs"
        )
        found.append(Fit(problem, "scheduler.use", "async-rollout", "speed"))
    if config.run.runtime == "ray" and config.run.device not in ("cpu", "auto", "cuda"):
        problem = (
            f"run.device: got {config.run.device!r}, wanted 'auto', 'cuda' or 'cpu' under run.runtime 'ray': which GPUs is said by "
            "run.devices and run.placement"
        )
        found.append(Fit(problem, "run.device", "auto", "speed"))
    if config.run.runtime == "local" and (config.run.devices or 1) > 1:
        problem = f"run.devices: got {config.run.devices}, but run.runtime 'local' is one process on one device: take run.runtime 'ray'"
        found.append(Fit(problem, "run.devices", 1, "speed"))
    return found


def on_gpus(config: RunConfig) -> bool:
    """Say whether generators and trainer run on GPUs, as far as this machine knows: a cluster that is joined may have more."""
    elsewhere = config.run.runtime == "ray" and cluster_address() is not None
    return config.run.device.startswith("cuda") or (
        config.run.device == "auto" and not elsewhere and visible_gpus() > 0
    )


def _placed(config: RunConfig, sim: SimulatorSpec, scheduler: SchedulerSpec, elsewhere: bool) -> Placement:
    """Return who lives where.

    Raises:
        ConfigError: there are not so many devices, or they are not to be shared like that.
    """
    options, gpus = config.run, on_gpus(config)
    there = visible_gpus()
    devices = options.devices or 1
    if options.runtime == "ray" and gpus and not elsewhere:
        devices = options.devices or max(1, there)
        if devices > there:
            raise ConfigError(
                f"run.devices: got {devices}, but this machine has {there} GPUs that may be used: lower it, look at "
                "CUDA_VISIBLE_DEVICES, or join a cluster (RAY_ADDRESS)"
            )
    elif options.runtime == "ray" and elsewhere and options.device == "auto":
        raise ConfigError(
            "run.device: got 'auto', wanted 'cuda' or 'cpu': what the machines have that RAY_ADDRESS names is not known here"
        )
    elif options.runtime == "ray" and gpus and options.devices is None:
        raise ConfigError(
            "run.devices: missing; the GPUs of the cluster that RAY_ADDRESS names are not known here: say how many to take"
        )
    return placement.resolve(
        options.placement,
        devices,
        gpus=gpus,
        simulates_on_gpu=sim.device == "gpu",
        alternates=scheduler.alternates,
        one_rank=config.train.shard == "none",
    )


def _ranks(config: RunConfig, algo: AlgorithmSpec, units_per_step: int, ranks: int) -> list[str]:
    """Return why so many trainer ranks cannot share a training step."""
    problems = []
    if ranks > units_per_step:
        problems.append(
            f"run.placement: {ranks} trainer ranks share {units_per_step} {algo.unit}s a step, wanted at least one each: take "
            "more of them a step, fewer devices for the trainer, or train.shard none"
        )
    if algo.minibatch_size is not None and ranks > algo.minibatch_size:
        problems.append(
            f"algo.minibatch_size: got {algo.minibatch_size} for {ranks} trainer ranks, wanted at least one sample each"
        )
    if config.train.demonstrations is not None and ranks > config.train.imitation_batch:
        problems.append(
            f"train.imitation_batch: got {config.train.imitation_batch} for {ranks} trainer ranks, wanted at least one sample each"
        )
    return problems


def folders(config: RunConfig, algo: AlgorithmSpec) -> dict[str, str]:
    """Return the folders of demonstrations that a run trains on, by the option that names them."""
    named = {"algo.path": algo.demonstrations, "train.demonstrations": config.train.demonstrations}
    return {option: path for option, path in named.items() if path is not None}


def check_demonstrations(config: RunConfig, specs: Specs) -> None:
    """Look at the demonstrations that a run is about to train on. Who only evaluates or loads a policy needs none.

    Raises:
        ConfigError: with every reason why they cannot be used.
    """
    problems: list[str] = []
    for option, path in folders(config, specs.algo).items():
        try:
            header = demonstration_header.read(path)
        except ConfigError as error:
            problems += [f"{option}: {problem}" for problem in error.problems]
        else:
            problems += [
                f"{option}: {problem}" for problem in demonstration_header.misfits(path, header.spec, specs.sim)
            ]
    if problems:
        raise ConfigError(problems)


def _task_sampling(config: RunConfig, sim: SimulatorSpec, algo: AlgorithmSpec) -> list[str]:
    """Return why tasks cannot be chosen like this, and warn of what changes nothing."""
    options, tasks = config.run, len(sim.tasks)
    problems = []
    if options.task_weights is not None and len(options.task_weights) != tasks:
        problems.append(
            f"run.task_weights: got {len(options.task_weights)} numbers, wanted one for each of the {tasks} tasks that "
            f"{config.sim.name} offers"
        )
    elif options.task_weights is not None and not any(options.task_weights):
        problems.append("run.task_weights: got nothing but zeros, wanted a number above 0 for at least one task")
    chosen = [
        name
        for name in ("task_sampling", "task_weights", "task_episodes")
        if getattr(options, name) != getattr(RunOptions(), name)
    ]
    if chosen and algo.unit == "demonstration":
        log.warning("run.%s ignored: %s plays no episodes", chosen[0], config.algo.name)
    elif options.task_episodes > 1 and (algo.unit == "group" or not algo.partial_reset):
        log.warning("run.task_episodes ignored: %s plays whole episodes, each by whoever is free", config.algo.name)
    elif options.task_sampling == "adaptive" and tasks == 1:
        log.warning("run.task_sampling ignored: there is one task")
    return problems


def _model_and_simulator(config: RunConfig, sim: SimulatorSpec, model: ModelSpec) -> list[str]:
    problems = []
    offered = {camera.role for camera in sim.cameras}
    if missing := [role for role in model.cameras if role not in offered]:
        problems.append(
            f"model: {config.model.name} looks at cameras {', '.join(model.cameras)}; {config.sim.name} offers "
            f"{', '.join(sorted(offered)) or 'none'}: add {', '.join(missing)} to the simulator or drop it from the model"
        )
    if model.state and sim.state_dim == 0:
        problems.append(f"model: {config.model.name} reads a proprioceptive state, {config.sim.name} offers none")
    elif model.state_dim not in (None, sim.state_dim):
        problems.append(
            f"model: {config.model.name} reads states of {model.state_dim} dimensions, {config.sim.name} gives {sim.state_dim} "
            f"({', '.join(f'{part.name}: {part.size}' for part in sim.state)}): take a checkpoint, or statistics in it, of this "
            "simulator's robot"
        )
    if model.action_dim is not None and model.action_dim != sim.action_dim:
        problems.append(
            f"model: {config.model.name} gives actions of {model.action_dim} dimensions, {config.sim.name} takes "
            f"{sim.action_dim} ({', '.join(f'{part.name}: {part.size}' for part in sim.action)}): take a checkpoint, or statistics in it, of this "
            "simulator's robot"
        )
    return problems


def _model_and_algorithm(config: RunConfig, model: ModelSpec, algo: AlgorithmSpec) -> list[str]:
    problems = []
    if algo.ratio_level not in model.ratio_levels:
        problems.append(
            f"algo.ratio_level: got {algo.ratio_level!r}, wanted {' or '.join(map(repr, model.ratio_levels))}, "
            f"which {config.model.name} has"
        )
    if algo.values and algo.credit_level not in model.value_levels:
        has = f"has them at level {' or '.join(model.value_levels)}" if model.value_levels else "has none"
        problems.append(
            f"algo: {config.algo.name} needs values at level {algo.credit_level}; {config.model.name} {has}"
        )
    if algo.entropy_bonus and not model.entropy:
        problems.append(
            f"algo: an entropy bonus changes nothing for {config.model.name}, whose entropy is constant: set it to 0"
        )
    return problems


_NEEDS: dict[Need, str] = {
    "values": "a value head ({algo} asks for none)",
    "gripper": "a gripper ({sim} has none)",
    "rotation": "a rotation delta ({sim} takes none)",
    "delta": "position or rotation deltas ({sim} takes none)",
}


def _idle_options(config: RunConfig, sim: SimulatorSpec, model: ModelSpec, algo: AlgorithmSpec) -> list[str]:
    """Return which options of the model change nothing beside this simulator and algorithm."""
    deltas = [part for part in sim.action if part.kind == "delta"]
    there: dict[Need, bool] = {
        "values": algo.values,
        "gripper": any(part.kind == "gripper" for part in sim.action),
        "rotation": any(part.rotation != "none" for part in deltas),
        "delta": bool(deltas),
    }
    named = {"algo": config.algo.name, "sim": config.sim.name}
    return [
        problem
        for need, options in model.options_for.items()
        for problem in configs.without_effect(
            "model", config.model.config, dict.fromkeys(options, (_NEEDS[need].format(**named), there[need]))
        )
    ]


def environments(config: Any) -> int:
    """Return how many environments a simulator's config asks for.

    Raises:
        ConfigError: its plugin forgot the option that every simulator has.
    """
    if not hasattr(config, "num_envs"):
        raise ConfigError(f"sim: {type(config).__name__} has no option num_envs; a simulator's config needs it")
    return int(config.num_envs)


def derived_slots(num_envs: int, sim: SimulatorSpec, scheduler: SchedulerSpec) -> int:
    """Return how many slots the environments are split in.

    As many as the scheduler wants at least; where they run on cores, one a core: each is a worker process. Slots that share
    a GPU pay the part of its calls that does not shrink with their rows again and again.
    """
    on_cores = usable_cores() if sim.device == "cpu" else 1
    return min(num_envs, max(on_cores, scheduler.min_slots, least_slots(num_envs, sim)))


def least_slots(num_envs: int, sim: SimulatorSpec) -> int:
    """Return how many slots it takes at least, each a worker."""
    return 1 if sim.rows_per_worker is None else -(-num_envs // sim.rows_per_worker)


def split(num_envs: int, slots: int) -> tuple[int, ...]:
    """Return the sizes of slots as even as they can be, larger ones first."""
    small, larger = divmod(num_envs, slots)
    return tuple(small + (number < larger) for number in range(slots))
