"""What a cluster lacks is said in seconds, with what to do."""

import os
import resource
import socket
import time
from types import SimpleNamespace

import pytest

from rlvla import ranks
from rlvla.devices import cluster_address
from rlvla.errors import ConfigError
from rlvla.runtimes import cluster

GIB = 2**30


def test_a_machine_that_lacks_something_is_named_with_the_command():
    wanted = {"python": "3.11", "torch": "2.14.1+cu130", "rlvla-sim-libero": "0.1.0", "rlvla": "0.1.0"}
    found = {"python": "3.12", "torch": "2.14.1+cpu", "rlvla-sim-libero": None, "rlvla": "0.2.0"}
    assert cluster.misfits("10.0.0.7", wanted, wanted) == []
    assert cluster.misfits("10.0.0.7", wanted, found) == [
        "node 10.0.0.7: python 3.12, wanted 3.11 as on this machine",
        "node 10.0.0.7: rlvla-sim-libero is not installed, wanted 0.1.0: pip install rlvla-sim-libero==0.1.0 there",
        "node 10.0.0.7: rlvla 0.2.0, wanted 0.1.0 as on this machine",
    ]


def test_nobody_at_the_address_is_an_error_in_seconds(monkeypatch):
    """Ray itself looks for two minutes."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"nobody answers at RAY_ADDRESS=127\.0\.0\.1:9"):
        cluster.reach(cluster_address())
    assert time.monotonic() - began < 6
    with pytest.raises(ConfigError, match="got RAY_ADDRESS=ray://head:10001, wanted host:port"):
        cluster.reach("ray://head:10001")
    for unset in ("", "local"):
        monkeypatch.setenv("RAY_ADDRESS", unset)
        assert cluster_address() is None


def test_who_listens_but_is_not_ray_is_an_error():
    """Ray itself would try for ever."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        cluster.reach(place)
        with pytest.raises(
            ConfigError,
            match=rf"RAY_ADDRESS={place} has not answered as Ray does in 3 s; wanted host:port of `ray start",
        ):
            cluster.check_ray(place, seconds=3)


def test_a_cluster_that_does_not_let_one_in_may_want_a_token(monkeypatch):
    pytest.importorskip("ray")
    from rlvla.runtimes import ray as runtime

    def refused(**_):
        raise RuntimeError("Unauthenticated")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    asked = []
    monkeypatch.setattr(cluster, "reach", asked.append)
    monkeypatch.setattr(cluster, "check_ray", asked.append)
    monkeypatch.setattr(runtime.ray, "init", refused)
    with pytest.raises(ConfigError, match=r"Unauthenticated; wanted Ray .* RAY_AUTH_TOKEN \(or ~/\.ray/auth_token\)"):
        runtime._connect(0)
    assert asked == ["10.0.0.1:6379"] * 2


class _Answers:
    """Stands for Ray, with two machines at one address: what each says, or raises."""

    def __init__(self, *said):
        self._said = dict(zip(("a" * 56, "b" * 56), said, strict=True))

    def nodes(self):
        return [{"NodeID": one, "NodeManagerAddress": "10.0.0.7", "Alive": True} for one in self._said]

    def remote(self, _):
        return SimpleNamespace(
            options=lambda num_cpus, scheduling_strategy: SimpleNamespace(remote=lambda: scheduling_strategy.node_id)
        )

    def wait(self, asked, num_returns, timeout):
        return asked, []

    def get(self, one):
        if isinstance(said := self._said[one], Exception):
            raise said
        return said


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_machines_with_one_address_both_are_heard(turn):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"node 10\.0\.0\.7: rlvla is not installed"):
        cluster.check_nodes(_Answers(*[{"rlvla": "0.1.0"}, {"rlvla": None}][::turn]), {"rlvla": "0.1.0"})


def test_a_machine_that_cannot_be_asked_is_named_with_what_it_lacks():
    pytest.importorskip("ray")
    lacks = ModuleNotFoundError("No module named 'rlvla'", name="rlvla")
    with pytest.raises(ConfigError) as caught:
        cluster.check_simulator(_Answers(lacks, OSError("disk full")), str, None)
    assert "node 10.0.0.7 (aaaaaaaa): rlvla is not installed" in str(caught.value)
    assert "node 10.0.0.7 (bbbbbbbb): cannot be asked what it has: OSError: disk full" in str(caught.value)


def test_the_store_holds_what_waits_to_be_trained_on():
    """Units of a step, with two 256-pixel cameras: a step under way, one complete, and one for each version of staleness."""
    camera = SimpleNamespace(height=256, width=256)
    scheduler = SimpleNamespace(max_staleness=1)
    specs = SimpleNamespace(sim=SimpleNamespace(cameras=(camera, camera)), samples_per_step=512, scheduler=scheduler)
    need = cluster.played_bytes(specs)
    assert need == 3 * 512 * 2 * 256 * 256 * 3
    assert cluster.store_bytes(need, free=64 * GIB, memory=8 * GIB) == GIB
    assert cluster.store_bytes(20 * GIB, free=64 * GIB, memory=100 * GIB) == 30 * GIB
    assert cluster.store_bytes(1, free=GIB // 2, memory=100 * GIB) == int(0.9 * (GIB // 2))
    with pytest.raises(ConfigError, match=r"needs up to 20 GiB, 0\.062 GiB are free.*--shm-size=20g"):
        cluster.store_bytes(20 * GIB, free=GIB // 16, memory=100 * GIB)


def test_an_address_that_is_not_here_is_no_meeting_place():
    with pytest.raises(ConfigError, match=r"no port for the trainer ranks to meet at on 192\.0\.2\.1"):
        ranks.Meeting("192.0.2.1")


def test_too_few_ports_or_files_are_an_error_in_seconds():
    """A Ray without them would time out without a word of why."""
    cluster.check_ports()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, before[1]))
    try:
        with pytest.raises(
            ConfigError, match=r"wants 64 free ports and open files on this machine, got \d+: Too many open"
        ):
            cluster.check_ports()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    cluster.check_ports()
