"""A simulator in a process of its own is the simulator."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlvla.actors.simulator import SimulatorActor
from rlvla.batch import Action
from rlvla.configs import Choice
from rlvla.errors import SimulatorError, WorkerDied
from rlvla.plugin import find
from rlvla.specs import Start
from rlvla.testing.fakes import STEP, FakeSimConfig
from rlvla.testing.fakes.simulator import FakeSimulator
from rlvla.video import read_video
from rlvla.worker import Host, SubprocessSimulator, open_simulator, protocol


def fake(**options) -> Choice:
    plugin = find("sim", "fake")
    return Choice(plugin, plugin.config(**options))


def test_a_worker_gives_the_same_bits_as_the_simulator_itself():
    here = FakeSimulator(fake().config, rows=3)
    rows, seeds, starts = [0, 1, 2], [5, 6, 7], [Start(0), Start(1), Start(0)]
    chunk = np.random.default_rng(0).uniform(-1, 1, (3, 4, 2)).astype(np.float32)
    active = np.array([True, False, True])
    with open_simulator(fake(), rows=3, horizon=4) as there:
        assert there.spec == here.spec
        for one, other in ((there.reset(rows, seeds, starts), here.reset(rows, seeds, starts)),):
            assert list(one.instruction) == list(other.instruction)
            assert (one.state == other.state).all()
            assert all((one.images[name] == other.images[name]).all() for name in other.images)
        one, other = there.step(chunk, active), here.step(chunk, active)
        for name in ("reward", "terminated", "truncated", "valid", "success"):
            assert (getattr(one, name) == getattr(other, name)).all()
        assert (one.observation.state == other.observation.state).all()


def test_saved_episodes_pass_through_the_worker():
    with open_simulator(fake(), rows=2, horizon=2) as there:
        there.reset([0, 1], [1, 2], [Start(0), Start(1)])
        saved = there.get_state([1])
        there.reset([0, 1], [3, 4], [Start(0), Start(1)])
        restored = there.set_state([0], saved)
        assert restored.instruction == ["reach the right"]


def test_a_start_that_fails_shows_the_workers_own_words():
    simulator = SubprocessSimulator(fake(fault="start"), 1, 1, name="sim-0")
    with pytest.raises(SimulatorError, match=r"^sim-0: the fake simulator was told to fail at its start"):
        simulator.wait_ready()
    simulator.close()


def test_a_start_that_takes_too_long_ends_within_the_limit_of_a_first_call():
    one = fake(fault="hang_start")
    spec = replace(one.plugin.describe(one.config), first_call_timeout_s=0.5)
    simulator = SubprocessSimulator(
        replace(one, plugin=replace(one.plugin, describe=lambda config: spec)), 1, 1, name="a"
    )
    with pytest.raises(WorkerDied, match=r"^a: .* was ended: its start took longer than 0.5 s .*first_call_timeout_s"):
        simulator.wait_ready()
    simulator.close()


def test_an_error_that_was_meant_comes_without_traceback_and_the_worker_goes_on():
    with open_simulator(fake(), rows=1, horizon=1) as there:
        with pytest.raises(SimulatorError, match=r"^fake: .*no such start") as caught:
            there.reset([0], [0], [Start(9)])
        assert not hasattr(caught.value, "__notes__")
        assert "Traceback" in caught.value.output  # for who looks for it
        there.reset([0], [0], [Start(1)])


def test_a_bug_carries_the_workers_traceback_and_the_worker_goes_on():
    with open_simulator(fake(), rows=1, horizon=1) as there:
        with pytest.raises(SimulatorError, match=r"^fake: IndexError: ") as caught:
            there.reset([7], [0], [Start(0)])
        assert "in the worker process:\nTraceback" in "".join(caught.value.__notes__)
        there.reset([0], [0], [Start(1)])


def test_a_killed_worker_is_named_with_its_signal():
    with open_simulator(fake(step_seconds=0.0), rows=1, horizon=1) as there:
        there.reset([0], [0], [Start(0)])
        os.kill(there.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="fake: its worker process was killed by SIGKILL"):
            there.step(np.zeros((1, 1, 2)), np.ones(1, bool))


def test_a_worker_that_exits_shows_its_status():
    with open_simulator(fake(fault="die", fault_step=1), rows=1, horizon=1) as there:
        there.reset([0], [0], [Start(0)])
        with pytest.raises(WorkerDied, match="ended with status 3"):
            there.step(np.zeros((1, 1, 2)), np.ones(1, bool))


def test_a_missing_interpreter_says_which_option_to_look_at():
    with pytest.raises(SimulatorError, match=r"cannot start the interpreter '/no/python'.*run\.sim_python"):
        SubprocessSimulator(fake(), 1, 1, python="/no/python")


def test_no_process_is_left_after_close():
    with open_simulator(fake(), rows=1) as there:
        pid = there.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closing_twice_and_closing_a_dead_worker_are_fine():
    simulator = SubprocessSimulator(fake(), 1, 1).wait_ready()
    os.kill(simulator.pid, signal.SIGKILL)
    time.sleep(0.05)
    simulator.close()
    simulator.close()


def test_messages_do_not_grow_with_pictures():
    sizes = []
    for rows in (1, 64):
        places, size = protocol.layout(find("sim", "fake").describe(fake().config), rows, 4)
        sizes.append((len(places), size))
    assert sizes[0][0] == sizes[1][0]  # the same arrays, in shared memory that grows instead
    assert sizes[1][1] > 25 * sizes[0][1]


class _Fleeting(FakeSimulator):
    """A success that does not last to the end of its chunk."""

    def step(self, chunk_NHA, active_N):
        result = super().step(chunk_NHA, active_N)
        result.success_at_end = np.zeros_like(result.success)
        return result


def _reach(runner_of):
    """Play row 0 of a slot to its goal; returns how its episode ended."""
    actor = SimulatorActor(0, lambda: Host(runner_of(FakeSimConfig(num_envs=1), 1), 1), 1, 5)
    _, observation = actor.reset([0], [1], [Start(1)], {})
    actions = torch.zeros(1, 5, 2)
    actions[0, :, 0] = ((observation.state[0, 1] - observation.state[0, 0]) / STEP).clamp(-1, 1) / 3
    for _ in range(3):
        receipt, _, _ = actor.step(Action(actions, *[torch.zeros(1, 0)] * 2, TensorDict({}, [1]), batch_size=[1]), [0])
        if receipt.ended:
            return receipt.ended[0]
    raise AssertionError("the episode did not end")


def test_success_at_the_end_is_success_unless_the_simulator_says_otherwise():
    ends = [_reach(FakeSimulator), _reach(_Fleeting)]
    assert [one.success for one in ends] == [True, True]
    assert [one.success_at_end for one in ends] == [True, False]


class _Blind(FakeSimulator):
    """No picture for the policy, but frames for a video."""

    def __init__(self, config, rows):
        super().__init__(config, rows)
        self.spec = replace(self.spec, cameras=())

    def _observe(self, rows):
        return replace(super()._observe(rows), images={})


def test_a_simulator_without_pictures_is_filmed_from_its_first_action(tmp_path):
    host = Host(_Blind(FakeSimConfig(num_envs=1), 1), 1)
    host.video(0, str(tmp_path / "never.mp4"))
    host.reset([0], [1], [Start(1)])
    host.video(0, str(tmp_path / "given-up.mp4"))  # no action was taken: there is nothing to see
    host.reset([0], [1], [Start(1)])
    host.step(np.zeros((1, 2, 2), np.float32), np.array([True]))
    host.reset([0], [2], [Start(1)])
    host.step(np.zeros((1, 2, 2), np.float32), np.array([True]))
    assert host.videos == [str(tmp_path / "given-up.mp4")]
    assert len(read_video(host.videos[0])) == 2
    assert not (tmp_path / "never.mp4").exists()
