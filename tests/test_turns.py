"""Threads that compute side by side, and one that has to be alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rlvla import turns
from rlvla.networks import kernels
from rlvla.turns import alone, computing

pytestmark = pytest.mark.timeout(120)


def test_threads_compute_side_by_side():
    together = threading.Barrier(3)

    def compute():
        with computing(), computing():
            together.wait(timeout=30)

    with ThreadPoolExecutor(3) as threads:
        for one in [threads.submit(compute) for _ in range(3)]:
            one.result()


def test_one_that_is_alone_is_alone_and_all_get_their_turn():
    lock, inside, largest = threading.Lock(), [0, 0], [0, 0]

    def enter(kind, change):
        with lock:
            inside[kind] += change
            largest[kind] = max(largest[kind], inside[kind])
            assert not inside[1] or sum(inside) == 1, f"{inside[0]} compute and {inside[1]} are alone"

    def work(number):
        for turn in range(60):
            with computing():
                enter(0, 1)
                time.sleep(1e-4)
                if (turn + number) % 3 == 0:
                    enter(0, -1)
                    with alone(), alone():
                        enter(1, 1)
                        time.sleep(1e-4)
                        enter(1, -1)
                    enter(0, 1)
                enter(0, -1)

    with ThreadPoolExecutor(4) as threads:
        for one in [threads.submit(work, number) for number in range(4)]:
            one.result()
    assert largest == [largest[0], 1]
    assert largest[0] > 1


def test_a_thread_that_takes_no_part_does_not_wait():
    with computing(), ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: alone().__enter__() or "went on").result(timeout=30) == "went on"


def test_an_error_gives_the_turn_back():
    with computing(), pytest.raises(RuntimeError, match="of the kernel"), alone():
        raise RuntimeError("of the kernel")
    with computing(), alone():
        pass


def test_who_is_interrupted_while_it_waits_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(turns._changed, "wait_for", lambda ready: ready() or (_ for _ in ()).throw(KeyboardInterrupt))
    hold, done = threading.Event(), threading.Event()

    def compute():
        with computing():
            hold.set()
            done.wait(timeout=30)

    with ThreadPoolExecutor(1) as other:
        held = other.submit(compute)
        hold.wait(timeout=30)
        with pytest.raises(KeyboardInterrupt), computing(), alone():
            pass
        done.set()
        held.result()
    assert (turns._waiting, turns._alone, turns._computing) == (0, None, set())


def test_no_thread_computes_while_another_compiles(monkeypatch):
    """Without turns, module calls of the one run through the tracer of the other, and compiled functions refuse to run."""
    compiling, make = threading.Event(), torch.compile

    def slowly(graph, inputs):
        compiling.set()
        time.sleep(0.02)
        compiling.clear()
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **options: make(function, backend=slowly, **options))
    fused, done = kernels.fused.__wrapped__(kernels.rms_norm), threading.Event()
    fused(torch.randn(3, 4), torch.ones(4), 1e-6)

    def act():
        calls = 0
        while not done.is_set():
            with computing(), torch.no_grad():
                fused(torch.randn(3 + calls % 5, 4), torch.ones(4), 1e-6)
                assert not compiling.is_set()
                calls += 1
        return calls

    def train():
        try:
            for width in range(5, 12):
                with computing():
                    fused(torch.randn(3, width, requires_grad=True), torch.ones(width), 1e-6).sum().backward()
        finally:
            done.set()

    with ThreadPoolExecutor(2) as threads:
        acting, training = threads.submit(act), threads.submit(train)
        training.result()
        assert acting.result() > 0
