"""A machine of a Ray cluster is lost: whoever lived there lives elsewhere, if there is room, and its work is done again."""

import time

import pytest

import rlvla
from rlvla import checkpoint
from rlvla.errors import SimulatorError
from rlvla.testing.scheduler import Recorder

pytestmark = [
    pytest.mark.timeout(600),
    # Ray's own: it forks with threads, and leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]
MIB = 2**20
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 500}
QUICK["health_check_failure_threshold"] = 2
"""Ray takes 20 s to notice that a machine is gone."""


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster within this machine, whose head has no GPU."""
    pytest.importorskip("ray")
    import rlvla.runtimes.ray  # noqa: F401  before Ray reads what it is told about tokens
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 200 * MIB}
    made = Cluster(initialize_head=True, head_node_args={**head, "_system_config": QUICK})
    ray.init(address=made.address, logging_level="error", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def machines(cluster, monkeypatch):
    """Return what adds machines of one GPU (that nobody looks for) and takes them away."""
    monkeypatch.setattr("rlvla.runtimes.on_gpus", lambda config: True)
    yield (found := Machines(cluster))
    for node in list(found.there.values()):
        cluster.remove_node(node)


class Machines:
    def __init__(self, cluster):
        self.cluster, self.there = cluster, {}

    def add(self, count):
        for _ in range(count):
            node = self.cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=100 * MIB)
            self.there[node.node_id] = node

    def lose(self, name):
        self.cluster.remove_node(self.there.pop(name), allow_graceful=False)


class Loser(Recorder):
    """Takes the machine of the simulators away, after the first training step."""

    def __init__(self, machines):
        super().__init__()
        self.machines, self.run = machines, None

    def home(self):
        return self.run._engine._runtime._bundles()[1]

    @rlvla.hookimpl
    def on_step(self, step, metrics):
        super().on_step(step, metrics)
        if step == 1:
            self.lost = self.home()
            self.machines.lose(self.lost)


def build(folder, machines, **run):
    """Return a run whose simulators are on one machine, with all else on another, and who takes the first one away."""
    loser = Loser(machines)
    options = {"directory": str(folder), "name": "run", "steps": 5, "slots": 2, "threads": 1, "device": "cpu", "devices": 2}
    options |= {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "save_every": 0}
    options |= {"placement": {"simulator": "1", "generator": "0", "trainer": "0"}, "runtime": "ray", "sim_hosts": 2}
    loser.run = rlvla.build(
        sim={"use": "tabletop", "num_envs": 4, "image_size": 256},  # more than Ray takes into the controller
        model="tiny",
        algo={"use": "ppo", "window": 3, "windows_per_step": 6, "minibatch_size": None},
        scheduler="full-async",
        run=options | run,
        listeners=[loser],
    )
    return loser


def test_simulators_of_a_lost_machine_live_on_another_one(tmp_path, machines):
    machines.add(3)
    loser = build(tmp_path, machines)
    with loser.run as run:
        run.train()
        assert loser.home() in machines.there, "their place is still where nobody is"
    assert loser.steps == [1, 2, 3, 4, 5]
    assert sum(one["workers/restarts"] for one in loser.metrics) >= 2
    assert sum(one["rollout/units_lost"] for one in loser.metrics) > 0


def test_where_no_machine_has_room_the_run_saves_and_says_for_what(tmp_path, machines, monkeypatch):
    monkeypatch.setattr("rlvla.runtimes.ray._RESERVE_S", 2.0)
    machines.add(2)
    loser = build(tmp_path, machines)
    with loser.run as run, pytest.raises(SimulatorError, match=r"sim-\d: lost with a machine, and for 2 s no other has had") as caught:
        run.train()
    assert caught.value.worker.startswith("sim-")
    assert checkpoint.read_state(checkpoint.find(run.directory))["graph"]["steps_done"] >= 1
