"""Which task comes next: uniform, weighted, following success; the same under every scheduler and after a resume."""

from collections import Counter

import pytest

import rlvla
from rlvla.errors import ConfigError
from rlvla.sampler import Sampler
from rlvla.specs import AlgorithmSpec, SimulatorSpec, TaskSpec
from rlvla.work import GroupFeed, WindowFeed

TASKS = SimulatorSpec((), (), (), 10.0, 1, tuple(TaskSpec(name, initial_states=4) for name in "abcd"))
WINDOWS = AlgorithmSpec("window", credit_level="chunk", ratio_level="chunk", values=False)
GROUPS = AlgorithmSpec("group", credit_level="chunk", ratio_level="chunk", values=False, group_size=2)


def counted(sampler: Sampler, choices: int = 4000) -> Counter[int]:
    return Counter(sampler.start(number).task for number in range(choices))


def test_each_task_comes_once_a_round_and_rounds_differ():
    sampler = Sampler(TASKS, seed=3)
    rounds = [tuple(sampler.start(4 * round_ + place).task for place in range(4)) for round_ in range(20)]
    assert all(sorted(one) == [0, 1, 2, 3] for one in rounds)
    assert len(set(rounds)) > 5


def test_weights_are_the_shares_of_tasks():
    found = counted(Sampler(TASKS, seed=3, weights=(1, 0, 3, 4)))
    assert found[1] == 0
    assert [found[task] / 4000 for task in (0, 2, 3)] == pytest.approx([1 / 8, 3 / 8, 4 / 8], abs=0.03)


def test_tasks_that_are_sometimes_solved_come_more_often():
    sampler = Sampler(TASKS, seed=3, adaptive=True)
    assert len(set(sampler.odds)) == 1
    for ticket in range(40):
        sampler.note(ticket, 0, True)
        sampler.note(ticket, 1, False)
        sampler.note(ticket, 2, ticket % 2 == 0)
    assert len(set(sampler.odds)) == 1  # nothing is trained yet
    sampler.trained(range(40))
    always, never, sometimes, unseen = sampler.odds
    assert always == never == pytest.approx(0.1)
    assert sometimes == pytest.approx(1.0)
    assert unseen == 1.0
    found = counted(sampler)
    assert found[2] / found[0] == pytest.approx(10, rel=0.3)


def test_who_finished_first_does_not_matter_and_dropped_units_count_in_their_place():
    samplers = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        sampler = Sampler(TASKS, seed=3, adaptive=True)
        for ticket in order:
            sampler.note(ticket, ticket % 2, ticket > 0)
        sampler.trained([0, 2])  # 1 was dropped; 3 is for the next step
        sampler.trained([0, 2])  # a checkpoint may ask for it before the controller hears of the step
        samplers.append(sampler)
    assert samplers[0].odds == samplers[1].odds
    assert samplers[0].state()["episodes"] == [2.0, 1.0, 0.0, 0.0]
    assert samplers[0].state()["noted"] == [[3, 1, True]]


def test_a_row_keeps_its_task_for_as_long_as_it_was_told():
    sampler = Sampler(TASKS, seed=3)
    feed = WindowFeed(WINDOWS, 2, seed=0, sampler=sampler, task_episodes=3)
    feed.open(2)
    for row in (0, 1):
        feed.take(row)
    starts = [[feed.next_episode(row)[1] for _ in range(9)] for row in (0, 1)]
    for row in starts:
        tasks = [start.task for start in row]
        assert all(len(set(tasks[first : first + 3])) == 1 for first in (0, 3, 6))
        assert len({start.state for start in row}) > 1
    assert {start.task for row in starts for start in row} > {starts[0][0].task}


def test_the_task_that_a_row_changes_to_is_known_before():
    feed = WindowFeed(WINDOWS, 2, seed=0, sampler=Sampler(TASKS, seed=3), task_episodes=3, builds_tasks=True)
    feed.open(2)
    for row in (0, 1):
        feed.take(row)
        told, before = [], None
        for _ in range(30):
            known = feed.next_task(row)
            task = feed.next_episode(row)[1].task
            assert known is None or known == task
            told.append(known)
            if before is not None and task != before:
                assert known == task
            before = task
        assert sum(one is not None for one in told) > 5
    adaptive = WindowFeed(WINDOWS, 1, 0, Sampler(TASKS, seed=3, adaptive=True), builds_tasks=True)
    adaptive.open(1)
    adaptive.take(0)
    assert adaptive.next_task(0) is None  # what succeeds until then decides
    assert WindowFeed(WINDOWS, 1, 0, Sampler(TASKS, seed=3)).next_task(0) is None  # nothing has to be built


def test_rows_get_members_of_the_task_that_their_slot_runs():
    played, built = {}, {}
    for lookahead in (0, 4):
        feed = GroupFeed(GROUPS, [2, 2], 0, Sampler(TASKS, seed=3), lookahead)
        feed.open(16)
        running = [-1] * 4
        work, built[lookahead] = [], 0
        for turn in range(32):
            row = (turn * 3 + turn // 4) % 4
            work.append(feed.take(row))
            task = work[-1].episode[1].task
            built[lookahead] += task not in running[row // 2 * 2 : row // 2 * 2 + 2]
            running[row] = task
        played[lookahead] = sorted((one.ticket, one.member, one.episode) for one in work)
    assert played[0] == played[4]
    assert built[4] < built[0], built


def test_the_oldest_units_are_not_left_waiting_for_ever():
    feed = GroupFeed(GROUPS, [1], 0, Sampler(TASKS, seed=3), lookahead=2)
    feed.open(40)
    for _ in range(80):
        oldest = feed._queue[0][0]
        assert feed.take(0).ticket < oldest + 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"task_weights": (1.0,)},
            r"run\.task_weights: got 1 numbers, wanted one for each of the 2 tasks that fake offers",
        ),
        ({"task_weights": (0.0, 0.0)}, r"run\.task_weights: got nothing but zeros"),
        ({"task_sampling": "adaptiv"}, r"run\.task_sampling: got 'adaptiv'"),
    ],
)
def test_tasks_that_cannot_be_chosen_are_refused(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        rlvla.build(sim="fake", model="fake", algo="ppo", run={"directory": str(tmp_path), **options})


def test_settings_without_effect_are_said_aloud(tmp_path, caplog):
    rlvla.build(sim="fake", model="fake", algo="grpo", run={"directory": str(tmp_path), "task_episodes": 3})
    assert "run.task_episodes ignored: grpo plays whole episodes" in caplog.text
