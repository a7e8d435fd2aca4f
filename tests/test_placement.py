"""Who lives where: names and lists become devices before anything starts, and nothing has to divide anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvla
from rlvla import configs, placement
from rlvla.checks import check
from rlvla.errors import ConfigError
from rlvla.placement import Placement, Process, Routes, cycle, processes, rank_of, resolve


@pytest.mark.parametrize(
    ("chosen", "devices", "on_gpu", "wanted"),
    [
        (None, 1, True, ((0,), (0,), (0,))),
        (None, 3, False, ((0, 1, 2),) * 3),
        ("collocated", 2, True, ((0, 1),) * 3),
        ("disaggregated", 2, False, ((0,), (0,), (1,))),
        ("disaggregated", 5, False, ((0, 1, 2), (0, 1, 2), (3, 4))),
        ("disaggregated", 8, True, ((0, 1, 2), (3, 4, 5), (6, 7))),
        ("hybrid", 2, True, ((0,), (1,), (0, 1))),
        ("hybrid", 5, False, ((0, 1), (2, 3, 4), (0, 1, 2, 3, 4))),
        ({"simulator": "0-1,3", "generator": 2, "trainer": "all"}, 4, True, ((0, 1, 3), (2,), (0, 1, 2, 3))),
    ],
)
def test_names_and_lists_become_devices(chosen, devices, on_gpu, wanted):
    found = resolve(chosen, devices, gpus=True, simulates_on_gpu=on_gpu)
    assert (found.simulator, found.generator, found.trainer) == wanted
    assert found.shared


def test_simulators_that_work_in_turn_with_generators_get_devices_of_their_own():
    assert resolve(None, 4, gpus=True, simulates_on_gpu=True, alternates=True).simulator == (0, 1)
    assert resolve(None, 4, gpus=True, simulates_on_gpu=False, alternates=True).simulator == (0, 1, 2, 3)
    with pytest.raises(ConfigError, match=r"both got device 1, wanted none in common"):
        shared = {"simulator": "0-1", "generator": "1-3", "trainer": "all"}
        resolve(shared, 4, gpus=True, simulates_on_gpu=True, alternates=True)


@pytest.mark.parametrize(
    ("chosen", "devices", "words"),
    [
        ("hybrid", 1, "got 'hybrid' on 1 device, wanted at least 2.*take 'collocated'"),
        ("disaggregated", 2, "wanted at least 3: it keeps simulators, generators and trainer"),
        ("colocated", 2, "got 'colocated', wanted 'collocated', 'disaggregated', 'hybrid'"),
        ({"simulator": "0"}, 1, "run.placement.generator: missing"),
        ({"simulator": "0", "generator": "0", "trainer": ""}, 1, "trainer: got '', wanted at least one device"),
        (
            {"simulator": "0-3", "generator": "4-7", "trainer": "all"},
            4,
            "device 7 is not there: wanted numbers below 4",
        ),
        ({"simulator": "0", "generator": "1-", "trainer": "0"}, 2, "generator: got '1-', wanted numbers and ranges"),
        ({"simulator": "0,0", "generator": "0", "trainer": "0"}, 1, "wanted each device once"),
        ({"simulator": "0", "generator": "0", "trainer": "0", "critic": "0"}, 1, "critic: no such role; there is"),
        ('{"simulator": "0", "generator": "0", "trainer": "4"}', 2, "trainer: got '4', but device 4 is not there"),
        ('{"simulator": "0"', 2, 'run.placement: got \'{"simulator": "0"\', which is no JSON'),
    ],
)
def test_what_cannot_be_is_named(chosen, devices, words):
    with pytest.raises(ConfigError, match=words):
        resolve(chosen, devices, gpus=True, simulates_on_gpu=True)


@given(
    devices=st.integers(2, 9),
    name=st.sampled_from(placement.NAMES),
    on_gpu=st.booleans(),
    generators=st.integers(1, 3),
    shared=st.booleans(),
    per_node=st.integers(1, 4),
)
def test_every_role_has_a_place_whatever_the_numbers(devices, name, on_gpu, generators, shared, per_node):
    """#91: simulators, generators and ranks in any numbers; each generator and rank lives once, each machine is served."""
    if devices == 2 and on_gpu and name == "disaggregated":
        return
    found = resolve(name, devices, gpus=shared, simulates_on_gpu=on_gpu)
    found = Placement(devices, found.simulator, found.generator, found.trainer, shared)
    made = processes(found, generators)
    assert sorted(one for process in made for one in process.generators) == list(
        range(generators * len(found.generator))
    )
    assert sorted(process.rank for process in made if process.rank is not None) == list(range(found.ranks))
    if shared:
        assert len({process.device for process in made}) == len(made)
    nodes = [device // per_node for device in range(devices)]
    routes = Routes(found, nodes, [2] * 7, 0, 2)
    assert set(routes.devices) == set(found.simulator[:7])
    assert set(routes.host_of) == set(range(len(routes.hosts)))
    able = {nodes[device] for device in found.generator}
    assert routes.stations == len(able)
    for device, station in zip(routes.devices, routes.of_slot, strict=True):
        by = {nodes[one] for one in found.generator if routes.of_generators[one] == station}
        assert by == {nodes[device]} or (nodes[device] not in able and len(by) == 1)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 120))
def test_ranks_get_as_many_of_a_steps_windows_as_can_be(ranks, rows, units):
    if ranks > units:
        return
    length = cycle(rows, units, ranks)
    assert length >= ranks
    for step in range(3):
        owners = [rank_of(ticket, ranks, length) for ticket in range(step * units, (step + 1) * units)]
        count = [owners.count(rank) for rank in range(ranks)]
        assert max(count) - min(count) <= 1


@given(
    devices=st.integers(1, 6),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    units=st.integers(1, 48),
    per_device=st.integers(1, 3),
)
def test_slots_are_told_apart_only_where_everybody_gets_as_much(devices, slots, units, per_device):
    """Every generator serves a slot, and rows are divided evenly, or a machine's generators share what they ask for."""
    if devices > units:
        return
    placed, rows = Placement(devices, *[tuple(range(devices))] * 3, shared=True), sum(slots)
    length = cycle(rows, units, devices)
    routes = Routes(placed, [0] * devices, slots, length, per_device)
    if routes.stations == 1:
        assert set(routes.of_slot) == {0}
        assert routes.devices == [
            number % (min(per_device * devices, len(slots))) % devices for number in range(len(slots))
        ]
        return
    assert routes.stations == devices
    served, simulated = [0] * devices, [0] * devices
    first = 0
    for size, station, device in zip(slots, routes.of_slot, routes.devices, strict=True):
        trained_by = {
            rank_of(t, devices, length) for row in range(first, first + size) for t in range(row, 9 * units, rows)
        }
        assert trained_by == {station}, "all its windows are that rank's"
        assert device == station
        served[station] += size
        simulated[device] += size
        first += size
    assert set(served) == set(simulated) == {rows // devices}
    assert all(routes.hosts.count(device) == min(per_device, routes.devices.count(device)) for device in range(devices))


def test_a_slot_is_served_beside_the_rank_that_trains_on_it():
    """What a model keeps of a chunk on its GPU is then there in training; else a slot is served by its machine."""
    beside = Placement(4, *[(0, 1, 2, 3)] * 3, shared=True)
    nodes, slots = [0, 0, 1, 1], [4] * 8
    routes = Routes(beside, nodes, slots, 32, 2)
    assert routes.of_slot == routes.devices == [0, 0, 1, 1, 2, 2, 3, 3]
    assert routes.of_generators == {0: 0, 1: 1, 2: 2, 3: 3}
    assert Routes(beside, nodes, slots, 16).of_slot == [0, 1, 2, 3, 0, 1, 2, 3], "a step is half of the rows"
    for other, sizes, length in (
        (beside, slots, 0),  # groups go to ranks in turn
        (beside, slots, 24),  # a row's windows are several ranks'
        (beside, [6, 6, 6, 6, 4, 4], 32),  # a slot is of two ranks
        (beside, [16, 4, 4, 4, 4], 32),
        (Placement(4, (0, 1, 2, 3), (2, 3), (0, 1, 2, 3), shared=True), slots, 32),
        (Placement(4, *[(0, 1, 2, 3)] * 3, shared=False), slots, 32),
    ):
        routes = Routes(other, nodes, sizes, length)
        assert routes.stations == len({nodes[device] for device in other.generator}), "one a machine"
        assert set(routes.of_slot) == set(range(routes.stations))


def test_actors_have_processes_of_their_own_unless_they_share_a_gpu():
    assert processes(Placement(2, (0,), (0, 1), (0, 1)), 1) == [
        Process(0, (0,)),
        Process(1, (1,)),
        Process(0, (), 0),
        Process(1, (), 1),
    ]
    assert processes(Placement(3, (0,), (0, 2), (0, 1), shared=True), 2) == [
        Process(0, (0, 1), 0),
        Process(1, (), 1),
        Process(2, (2, 3)),
    ]


def build(**run):
    algo = {"use": "ppo", "window": 2, "windows_per_step": 3, "minibatch_size": 2}
    return rlvla.build(sim={"use": "fake", "num_envs": 4}, model="fake", algo=algo, run=run)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            {"runtime": "local", "devices": 2},
            "run.devices: got 2, but run.runtime 'local' is one process on one device",
        ),
        ({"runtime": "ray", "device": "cuda", "devices": 3}, "got 3, but this machine has 2 GPUs that may be used"),
        (
            {"runtime": "ray", "device": "cuda:1"},
            "got 'cuda:1', wanted 'auto', 'cuda' or 'cpu' under run.runtime 'ray'",
        ),
        (
            {"runtime": "ray", "device": "cpu", "devices": 4},
            "4 trainer ranks share 3 windows a step, wanted at least one",
        ),
        ({"runtime": "ray", "device": "cpu", "devices": 3}, "algo.minibatch_size: got 2 for 3 trainer ranks"),
        ({"runtime": "ray", "device": "cpu", "placement": "hybrid"}, "got 'hybrid' on 1 device"),
    ],
)
def test_a_run_that_has_no_place_is_refused_before_anything_starts(monkeypatch, run, words):
    monkeypatch.setattr("rlvla.checks.visible_gpus", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=words):
        build(**run)


def test_a_run_takes_all_gpus_under_ray_and_must_be_told_how_many_of_a_cluster(monkeypatch):
    monkeypatch.setattr("rlvla.checks.visible_gpus", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert build(runtime="ray").specs.placement == Placement(2, (0, 1), (0, 1), (0, 1), shared=True)
    assert build(runtime="local").specs.placement == Placement(shared=True)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConfigError, match="run.devices: missing; the GPUs of the cluster"):
        build(runtime="ray", device="cuda")
    with pytest.raises(ConfigError, match="run.device: got 'auto', wanted 'cuda' or 'cpu': what the machines have"):
        build(runtime="ray", devices=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtime": "ray", "sim_hosts": 9}, r"run\.sim_hosts: got 9, but there are 4 slots to divide"),
        ({"sim_hosts": 2}, r"run\.sim_hosts: got 2, but only run\.runtime 'ray' has such workers"),
        ({"runtime": "ray", "generators": 9}, r"run\.generators: got 9, wanted at most sim\.num_envs \(8\)"),
    ],
)
def test_workers_that_would_be_idle_are_refused(options, words):
    recipe = {"sim": {"use": "fake", "num_envs": 8}, "model": "fake", "algo": "ppo", "scheduler": "sync"}
    with pytest.raises(ConfigError, match=words):
        check(configs.read({**recipe, "run": {"slots": 4, "device": "cpu", **options}}))
