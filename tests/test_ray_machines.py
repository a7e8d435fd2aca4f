"""A machine of a Ray cluster is lost: whoever lived there lives elsewhere, if there is room, and its work is done again."""

import re

import pytest
from ray_runs import MARKS

import rlvla
from rlvla import checkpoint
from rlvla.errors import SimulatorError
from rlvla.testing.scheduler import Recorder

pytestmark = [*MARKS, pytest.mark.e2e]
MACHINE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 500}
QUICK["health_check_failure_threshold"] = 2
"""Ray takes 20 s to notice that a machine is gone."""


@pytest.fixture(scope="module")
def played(shared_ray, tmp_path_factory):
    """Return who took the machine of the simulators of a run away, twice, and how the run ended: there was one in reserve."""
    shared_ray.end()
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={**MACHINE, "include_dashboard": False, "_system_config": QUICK}
    )
    for _ in range(3):
        cluster.add_node(**MACHINE, num_gpus=1)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    loser = Loser(cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlvla.runtimes.on_gpus", lambda config: True)  # nobody looks for them
        patch.setattr("rlvla.runtimes.ray._RESERVE_S", 2.0)
        with loser.of(tmp_path_factory.mktemp("machines")) as run, pytest.raises(SimulatorError) as ended:
            run.train()
    yield loser, ended.value
    ray.shutdown()
    cluster.shutdown()


class Loser(Recorder):
    """Takes the machine of the simulators away after the first training step, and after the fourth the one that came after."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster, self.run, self.homes = cluster, None, []

    @rlvla.hookimpl
    def on_step(self, step, metrics):
        super().on_step(step, metrics)
        if step in (1, 4):
            self.homes.append(self.run._engine._runtime._bundles()[1])
            nodes = {node.node_id: node for node in self.cluster.worker_nodes}
            self.cluster.remove_node(nodes[self.homes[-1]], allow_graceful=False)

    def of(self, folder):
        """Return a run whose simulators are on one machine, and all else on another."""
        options = {"directory": str(folder), "name": "run", "slots": 2, "threads": 1, "device": "cpu", "devices": 2}
        options |= {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "save_every": 0}
        options |= {"placement": {"simulator": "1", "generator": "0", "trainer": "0"}, "runtime": "ray"}
        self.run = rlvla.build(
            sim={"use": "tabletop", "num_envs": 4, "image_size": 256},  # more than Ray takes into the controller
            model="tiny",
            algo={"use": "ppo", "window": 3, "windows_per_step": 6, "minibatch_size": None},
            scheduler="full-async",
            run={**options, "steps": 1000},
            listeners=[self],
        )
        return self.run


def test_simulators_of_a_lost_machine_live_on_another_one_and_their_work_is_done_again(played):
    loser, _ = played
    assert len(set(loser.homes)) == 2, "their place stayed where nobody was"
    assert sum(one["workers/restarts"] for one in loser.metrics[:4]) >= 2
    assert sum(one["rollout/units_lost"] for one in loser.metrics[:4]) > 0


def test_where_no_machine_has_room_the_run_saves_and_says_for_what(played):
    loser, error = played
    assert re.match(
        r"sim-0, sim-1: lost with a machine, and for 2 s no other has had a free GPU and core for it", str(error)
    )
    assert error.worker.startswith("sim-")
    assert checkpoint.read_state(checkpoint.find(loser.run.directory))["graph"]["steps_done"] >= 4
