"""What a cluster lacks is said in seconds, with what to do."""

import os
import resource
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
