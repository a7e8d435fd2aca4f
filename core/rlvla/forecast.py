"""What a run will do with its time, before it starts: the chosen scheduler itself, in virtual time, with measured latencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlvla import configs, placement
from rlvla.checks import Specs, check, least_slots, split
from rlvla.configs import RunConfig
from rlvla.errors import ConfigError
from rlvla.plugin import names
from rlvla.profile import Profile
from rlvla.scheduler import Scheduler
from rlvla.testing.virtual import Kind, Latency, World, play

COUNTED = 6
"""Training steps that count: neither the first 1 + max_staleness, which fill pipes, nor as many at the end, beside which
less and less is played."""
_WORTH_SAYING = 1.05
"""A change is named if it makes a run this many times as fast."""
_CONTROLLER_S = {"local": (0.57e-3, 0.011e-3), "ray": (1.67e-3, 0.016e-3)}
"""Of the controller's core for each chunk step of a slot, and for each of its rows: lines through what slots of 4 to 32 (local) and of
16 and 32 (Ray, whose windows belong to one rank) took on a 2-core x86-64 CPU (``benchmarks/results/virtual_scaling.md``)."""


@dataclass(frozen=True)
class Forecast:
    """Of one run, at most: all episodes as long as they can be."""

    env_steps_per_second: float
    device_bound: float
    """Env steps/s if the busiest device never waited."""
    schedule_bound: float
    """Env steps/s if nobody waited but for what the schedule makes them wait for."""
    step_seconds: float
    """Of a training step."""
    busy: dict[str, float]
    """Device to the share of the time in which it works."""
    controller: float = 0.0
    """Cores that the controller, which has one, would be busy on if nothing waited for it. Above 1 it is the bound."""

    @property
    def bottleneck(self) -> str:
        shares = {**self.busy, "controller": self.controller}
        return max(shares, key=lambda name: shares[name])


@dataclass(frozen=True)
class Change:
    """Another setting, and how many times as fast the run is with it."""

    option: str
    factor: float
    optimisation: bool
    """It changes what is learned from, not speed alone."""


def forecast(
    profile: Profile, config: RunConfig, specs: Specs, slots: Sequence[int] | None = None, machines: int = 1
) -> Forecast:
    """Return what a run will do on the machine of a profile, or on several like it.

    What ranks take to add gradients up, and what the network takes, is left out. The controller's calls are too, but as many of them
    as it cannot make in time slow the run down.

    Args:
        profile: latencies.
        config: of the run.
        specs: of the run.
        slots: other sizes of slots than the run's.
        machines: that the run's devices are divided among, each with the profile's cores.
    """
    scheduler: Scheduler = config.scheduler.plugin.load()(config.scheduler.config)
    played = play(scheduler, world(profile, config, specs, slots or specs.slots, machines))
    uncounted = 1 + specs.scheduler.max_staleness
    counted = played.metrics[uncounted:-uncounted]
    seconds = sum(one["time/step_s"] for one in counted)
    horizon, busiest = profile.horizon, max(played.devices.values())
    # what is trained, not what is played: a schedule may play ahead, and then no more
    rate = horizon * len(counted) * specs.units_per_step * _chunks_of_unit(specs) / seconds
    device_bound = horizon * played.metrics[-1]["env_steps"] / busiest
    schedule_bound = rate / counted[-1].get("time/run_overlap_efficiency", 1.0)
    sizes = slots or specs.slots
    call, row = _CONTROLLER_S[config.run.runtime]
    controller = rate / horizon * (len(sizes) * call / sum(sizes) + row)
    slowed = max(1.0, controller)
    return Forecast(
        env_steps_per_second=rate / slowed,
        device_bound=max(rate, device_bound),  # of all steps, also of those that are not counted
        schedule_bound=max(rate, min(schedule_bound, device_bound)),
        step_seconds=slowed * seconds / len(counted),
        busy={name: one / played.seconds / slowed for name, one in played.devices.items() if one},
        controller=controller,
    )


def _chunks_of_unit(specs: Specs) -> int:
    """Return the chunks of a unit whose episodes are as long as they can be."""
    algo = specs.algo
    if algo.unit == "group":
        return algo.group_size * specs.max_chunks
    return algo.window if algo.partial_reset else min(algo.window, specs.max_chunks)


class _Places:
    """Where actors are: on GPUs, one for each device of the placement, or on the cores of its machine."""

    def __init__(self, profile: Profile, config: RunConfig, specs: Specs, slots: Sequence[int], machines: int) -> None:
        self._profile, self._specs, self._placed = profile, specs, specs.placement
        self._several = specs.placement.devices > 1
        self._per_device = config.run.generators
        self._threads = float(config.run.threads or min(8, profile.cores))
        self._nodes = machines_of(specs.placement.devices, machines)
        self._routes = placement.Routes(self._placed, self._nodes, slots, specs.cycle, config.run.sim_hosts)
        self.generators = len(self._placed.generator) * self._per_device
        self.stations = self._routes.stations
        self.capacities = {self._cores(node): float(profile.cores) for node in self._nodes}

    def on(self, kind: Kind, number: int) -> Sequence[tuple[str, float]]:
        """Return the devices of an actor, and its share of each."""
        devices = self._devices(kind, number)
        simulates = kind == "simulator"
        if self._profile.device != "cpu" and (not simulates or self._specs.sim.device == "gpu"):
            return [(f"gpu-{one}" if self._several else "gpu", 1.0) for one in devices]
        each = self._profile.core_share if simulates else self._threads
        used = Counter(self._cores(self._nodes[one]) for one in devices)
        return [(name, count * each) for name, count in used.items()]

    def station(self, kind: Kind, number: int) -> int:
        """Return the station whose generator an actor is, or by which it is served."""
        if kind == "simulator":
            return self._routes.of_slot[number]
        return self._routes.of_generators[self._devices(kind, number)[0]]

    def _devices(self, kind: Kind, number: int) -> Sequence[int]:
        if kind == "trainer":
            return self._placed.trainer
        if kind == "generator":
            return (self._placed.generator[number // self._per_device],)
        return (self._routes.devices[number],)

    def _cores(self, node: int) -> str:
        return "cores" if self._nodes[-1] == 0 else f"cores of machine {node}"


def machines_of(devices: int, machines: int) -> list[int]:
    """Return the machine of each device, as even as can be."""
    return [one * machines // devices for one in range(devices)]


def world(profile: Profile, config: RunConfig, specs: Specs, slots: Sequence[int], machines: int = 1) -> World:
    """Return a run without numbers: its slots, units and devices, and what everything takes."""
    steps = {rows: profile.chunk_steps(rows) for rows in set(slots)}
    call, row = profile.line()
    algo, places = specs.algo, _Places(profile, config, specs, slots, machines)
    of_rank = -(-specs.units_per_step // specs.placement.ranks) * (specs.samples_per_step // specs.units_per_step)

    def simulate(slot: int, step: int) -> float:
        drawn = steps[slots[slot]]
        return drawn[(31 * slot + step) % len(drawn)]

    return World(
        slots=slots,
        unit=algo.unit,
        window=algo.window,
        partial_reset=algo.partial_reset,
        group_size=algo.group_size,
        units_per_step=specs.units_per_step,
        steps=_steps(specs),
        latency=Latency(
            simulate=simulate,
            reset=profile.reset,
            generate_call=call,
            generate_row=row,
            train=lambda step: profile.train_sample * algo.passes * of_rank,
            snapshot=profile.snapshot,
            offer=profile.offer,
        ),
        episode=lambda slot, number: specs.max_chunks,
        batch_rows=config.run.batch_rows,
        generators=places.generators,
        stations=places.stations,
        station=places.station,
        on=places.on,
        capacities=places.capacities,
    )


def _steps(specs: Specs) -> int:
    return COUNTED + 2 * (1 + specs.scheduler.max_staleness)


def chunk_steps(specs: Specs) -> float:
    """Return about how many chunk steps of slots are played for a forecast: what it takes grows with them."""
    return _steps(specs) * specs.units_per_step * _chunks_of_unit(specs) / max(specs.slots)


def changes(profile: Profile, config: RunConfig, specs: Specs, machines: int = 1) -> list[Change]:
    """Return settings that would make the run faster, the best first: other schedulers, more or fewer slots."""
    now = forecast(profile, config, specs, machines=machines).env_steps_per_second
    found = []
    for name in names("scheduler"):
        if name == config.scheduler.name:
            continue
        try:
            other = replace(config, scheduler=configs.read_choice("scheduler", {"use": name}))
            other_specs = check(other, specs.elsewhere)
        except ConfigError:
            continue
        speed = forecast(profile, other, other_specs, machines=machines).env_steps_per_second
        found.append(Change(f"scheduler: {name}", speed / now, other_specs.scheduler.max_staleness > 0))
    for count in (len(specs.slots) // 2, 2 * len(specs.slots)):
        if not max(specs.scheduler.stages, least_slots(specs.num_envs, specs.sim)) <= count <= specs.num_envs:
            continue
        sizes = split(specs.num_envs, count)
        speed = forecast(profile, config, replace(specs, slots=sizes), sizes, machines).env_steps_per_second
        found.append(Change(f"run.slots: {count}", speed / now, False))
    worth = [one for one in found if one.factor >= _WORTH_SAYING and math.isfinite(one.factor)]
    return sorted(worth, key=lambda one: (-one.factor, one.option))
