"""Where simulators, generators and trainer ranks live: names and lists of devices, resolved before anything starts.

A device is a GPU of the machine or cluster, numbered machine by machine; without GPUs it is a part of the machine's cores that
a rank or a generator runs on, so that the same run can be tried anywhere. Light: no torch, no ray.

Nothing has to divide anything: slots are dealt out to the simulators' devices, units go to trainer ranks by ticket, and any generator of
a machine serves any of its slots, but where everything is even: there a slot has its own GPU (:class:`Routes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvla.errors import ConfigError

ROLES = ("simulator", "generator", "trainer")
NAMES = ("collocated", "disaggregated", "hybrid")


@dataclass(frozen=True)
class Placement:
    """Devices of each role, ascending."""

    devices: int = 1
    """How many there are."""
    simulator: tuple[int, ...] = (0,)
    """Where simulators render, and where batched ones compute."""
    generator: tuple[int, ...] = (0,)
    trainer: tuple[int, ...] = (0,)
    """One rank each."""
    shared: bool = False
    """The generators and the trainer rank of a device live in one process, with one copy of the frozen weights; else each has
    its own, so that a generator that dies can be replaced."""

    @property
    def ranks(self) -> int:
        """Trainer ranks."""
        return len(self.trainer)

    def __str__(self) -> str:
        """Return one line: who is where."""
        return ", ".join(f"{role} {written(getattr(self, role))}" for role in ROLES)


@dataclass(frozen=True)
class Process:
    """What one process holds beside its device: generators by number, and perhaps a trainer rank."""

    device: int
    generators: tuple[int, ...] = ()
    rank: int | None = None


def processes(placement: Placement, generators: int) -> list[Process]:
    """Return the processes of generators and trainer ranks.

    Args:
        placement: where they live.
        generators: on each of the generators' devices.
    """
    numbers = {
        device: tuple(range(place * generators, (place + 1) * generators))
        for place, device in enumerate(placement.generator)
    }
    ranks = {device: place for place, device in enumerate(placement.trainer)}
    if placement.shared:
        return [Process(device, numbers.get(device, ()), ranks.get(device)) for device in sorted({*numbers, *ranks})]
    alone = [Process(device, (number,)) for device, some in numbers.items() for number in some]
    return alone + [Process(device, (), rank) for device, rank in ranks.items()]


def cycle(rows: int, units: int, ranks: int) -> int:
    """Return the windows after which trainer ranks repeat, where ticket t is played by row t mod rows.

    A step's units are shared out as evenly as can be; where that allows it, all windows of a row are one rank's.

    Args:
        rows: environments.
        units: of a training step.
        ranks: how many there are.
    """
    return rows if units % rows == 0 and rows % ranks == 0 else units


def rank_of(ticket: int, ranks: int, cycle: int) -> int:
    """Return the trainer rank that a unit belongs to: as many neighbours as a cycle has are shared out evenly."""
    return ticket % cycle * ranks // cycle


class Routes:
    """Where each slot's simulator is, and which generators serve it: those of one station.

    Where each generator has a trainer rank beside it, and every rank trains on the windows of as many rows and of whole slots, a
    slot is served by the generators of its rank's device: what a model keeps there of a chunk (features, of GR00T) is found
    again in training. Its simulator is on that device too, where there are any. Everywhere else slots are dealt out to the simulators'
    devices one by one, and a station is a machine, whose generators share what its slots ask for; a machine that has none is given
    another's.

    Args:
        placed: where everybody is.
        nodes: machine of each device.
        slots: rows of each slot.
        cycle: units after which ranks repeat, of windows; 0: units go to ranks in turn.
        per_device: processes of simulators on each of their devices, at most.
    """

    def __init__(
        self, placed: Placement, nodes: Sequence[int], slots: Sequence[int], cycle: int, per_device: int = 1
    ) -> None:
        ranks = _owners(placed, slots, cycle)
        groups = [nodes[device] for device in placed.generator] if ranks is None else placed.generator
        names = sorted(set(groups))
        self.stations = len(names)
        """How many there are."""
        self.of_generators = dict(zip(placed.generator, (names.index(one) for one in groups), strict=True))
        """Station of each device with generators."""
        self.hosts: list[int] = []
        """Device of each process of simulators."""
        self.host_of: list[int] = []
        """Process of each slot's simulator, a place in ``hosts``."""
        if ranks is not None and placed.simulator == placed.trainer:
            self.host_of = [0] * len(slots)
            for rank, device in enumerate(placed.trainer):
                mine = [number for number, one in enumerate(ranks) if one == rank]
                first, count = len(self.hosts), min(per_device, len(mine))
                self.hosts += [device] * count
                for place, number in enumerate(mine):
                    self.host_of[number] = first + place % count
        else:
            count = min(per_device * len(placed.simulator), len(slots))
            self.hosts = [placed.simulator[host % len(placed.simulator)] for host in range(count)]
            self.host_of = [number % count for number in range(len(slots))]
        self.devices = [self.hosts[host] for host in self.host_of]
        """Of each slot's simulator."""
        own = sorted({nodes[device] for device in placed.simulator})
        served = {node: names.index(node) if node in names else place % len(names) for place, node in enumerate(own)}
        self.of_slot = [served[nodes[device]] for device in self.devices] if ranks is None else ranks
        """Station of each slot."""


def _owners(placed: Placement, slots: Sequence[int], cycle: int) -> list[int] | None:
    """Return the rank beside the generators that are to serve each slot; None: they are not to be told apart."""
    if not placed.shared or placed.generator != placed.trainer or not cycle or sum(slots) % cycle:
        return None
    rows = [rank_of(row, placed.ranks, cycle) for row in range(sum(slots))]
    found: list[int] = []
    first = 0
    for size in slots:
        mine = set(rows[first : first + size])
        first += size
        if len(mine) != 1:
            return None
        found += mine
    even = len({rows.count(rank) for rank in range(placed.ranks)}) == 1
    return found if even else None


def transport(placement: Placement, *, ray: bool, gpus: bool, chosen: str | None) -> str:
    """Return how weights travel (see :mod:`rlvla.transport`): as chosen, or by the shortest way that there is.

    Args:
        placement: where generators and ranks live.
        ray: they live in Ray workers; else in this process.
        gpus: their devices are GPUs.
        chosen: None: derived.

    Raises:
        ConfigError: that way is none here.
    """
    if not ray:
        if chosen is not None:
            raise ConfigError(
                f"run.transport: got {chosen!r}, wanted none: in one process generators are handed the weights"
            )
        return "reference"
    beside = placement.shared and set(placement.generator) <= set(placement.trainer)
    clashes = gpus and placement.trainer[0] in placement.generator
    if chosen == "process" and not beside:
        raise ConfigError(
            f"run.transport: got 'process', but generators ({written(placement.generator)}) do not all live with a trainer rank "
            f"({written(placement.trainer)}): take 'broadcast' or 'store'"
        )
    if chosen == "broadcast" and clashes:
        raise ConfigError(
            f"run.transport: got 'broadcast', but a generator shares GPU {placement.trainer[0]} with the first trainer rank, which "
            "NCCL cannot join: take 'process' where all do, else 'store'"
        )
    return chosen or ("process" if beside else "broadcast" if gpus and not clashes else "store")


def resolve(
    chosen: str | Mapping[str, Any] | None,
    devices: int,
    *,
    gpus: bool,
    simulates_on_gpu: bool = False,
    alternates: bool = False,
    one_rank: bool = False,
) -> Placement:
    """Return the devices of each role.

    Args:
        chosen: a name, ``{"simulator": "0-3", "generator": "4-7", "trainer": "all"}``, or None: ``hybrid`` where simulators
            on GPUs alternate with generators, ``collocated`` otherwise.
        devices: how many there are.
        gpus: they are GPUs.
        simulates_on_gpu: simulators compute on a device of theirs, so that sharing it costs both.
        alternates: the scheduler lets simulators and generators work in turn, which gains nothing on shared devices.
        one_rank: only one trainer rank is wanted, on the first of its devices.

    Raises:
        ConfigError: with everything that is wrong.
    """
    apart = simulates_on_gpu and alternates
    chosen = _mapping(chosen) if isinstance(chosen, str) and chosen.lstrip().startswith("{") else chosen
    derived = "hybrid" if apart and devices > 1 else "collocated"
    if isinstance(chosen, Mapping):
        lists = _explicit(chosen, devices)
    else:
        lists = _named(derived if chosen is None else chosen, devices, simulates_on_gpu)
    both = sorted(set(lists["simulator"]) & set(lists["generator"]))
    if apart and both and devices > 1:
        raise ConfigError(
            f"run.placement: simulators and generators both got device {written(both)}, wanted none in common: this scheduler "
            "lets them work in turn, and on one GPU they would only wait for each other; take placement 'hybrid' or "
            "'disaggregated', or the scheduler async-rollout"
        )
    if one_rank:
        lists["trainer"] = lists["trainer"][:1]
    return Placement(devices, **lists, shared=gpus or chosen is not None)


def _named(name: str, devices: int, simulates_on_gpu: bool) -> dict[str, tuple[int, ...]]:
    every = tuple(range(devices))
    if name == "collocated":
        return dict.fromkeys(ROLES, every)
    if name not in NAMES:
        raise ConfigError(
            f"run.placement: got {name!r}, wanted {', '.join(map(repr, NAMES))}, or devices for each role: "
            '{"simulator": "0-3", "generator": "4-7", "trainer": "all"}'
        )
    least = 3 if name == "disaggregated" and simulates_on_gpu else 2
    if devices < least:
        raise ConfigError(
            f"run.placement: got {name!r} on {_count(devices)}, wanted at least {least}: it keeps "
            f"{'simulators, generators and trainer' if least == 3 else 'roles'} on devices of their own; take 'collocated', or "
            "more devices (run.devices)"
        )
    if name == "hybrid":
        half = devices // 2
        return {"simulator": every[:half], "generator": every[half:], "trainer": every}
    training = devices // 3 if simulates_on_gpu else devices // 2
    rest, trainer = every[: devices - training], every[devices - training :]
    if not simulates_on_gpu:  # they run on cores, and render beside the generators
        return {"simulator": rest, "generator": rest, "trainer": trainer}
    half = len(rest) // 2
    return {"simulator": rest[:half], "generator": rest[half:], "trainer": trainer}


def _mapping(text: str) -> Mapping[str, Any]:
    """Return devices of each role as a command line gives them, in JSON."""
    try:
        found: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"run.placement: got {text!r}, which is no JSON ({error}): wanted for instance "
            '{"simulator": "0-3", "generator": "4-7", "trainer": "all"}'
        ) from error
    return found


def _explicit(chosen: Mapping[str, Any], devices: int) -> dict[str, tuple[int, ...]]:
    problems = [
        f"run.placement.{role}: no such role; there is {', '.join(ROLES)}" for role in chosen if role not in ROLES
    ]
    lists: dict[str, tuple[int, ...]] = {}
    for role in ROLES:
        if role not in chosen:
            problems.append(f'run.placement.{role}: missing; wanted devices, for instance "0-3", "0,2" or "all"')
            continue
        try:
            lists[role] = _read(str(chosen[role]), devices)
        except ValueError as error:
            problems.append(f"run.placement.{role}: got {chosen[role]!r}, {error}")
    if problems:
        raise ConfigError(problems)
    return lists


def _read(text: str, devices: int) -> tuple[int, ...]:
    """Return the devices in ``"0-3,6"`` or ``"all"``."""
    if text.strip() == "all":
        return tuple(range(devices))
    found: list[int] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError('wanted numbers and ranges of devices, for instance "0-3", "0,2" or "all"')
        end = int(last if dash else first)
        if end >= devices:
            raise ValueError(
                f"but device {end} is not there: wanted numbers below {devices} (run.devices, or all that there are)"
            )
        if end < int(first):
            raise ValueError(f"wanted the smaller number first: {end}-{first}")
        found += range(int(first), end + 1)
    if not found:
        raise ValueError('wanted at least one device, for instance "0" or "all"')
    if len(set(found)) < len(found):
        raise ValueError("wanted each device once")
    return tuple(sorted(found))


def written(devices: Sequence[int]) -> str:
    """Return ``0-3,6`` for (0, 1, 2, 3, 6)."""
    parts: list[list[int]] = []
    for one in devices:
        if parts and parts[-1][-1] == one - 1:
            parts[-1].append(one)
        else:
            parts.append([one])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _count(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"
