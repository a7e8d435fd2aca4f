"""Counting, by hand."""

import logging

import pytest

from rlvla.assembly import Entry
from rlvla.metrics import NO_SUCCESS_STEPS, Meter, _share, _union
from rlvla.receipts import Ended, Member, StepReceipt, TrainReceipt, UnitReport


def ended(success: bool, steps: int = 4) -> Ended:
    return Ended(row=0, terminated=success, success=success, success_at_end=success, steps=steps, episode_return=1.0)


def test_overlapping_intervals_count_once():
    assert _union([(0, 2), (1, 3), (5, 6), (5, 5.5)], since=0) == 4


@pytest.mark.parametrize(
    ("solved", "members", "share"),
    [
        (0, 8, "none_solved"),
        (1, 8, "up_to_quarter_solved"),
        (2, 8, "up_to_quarter_solved"),
        (3, 8, "up_to_half_solved"),
        (6, 8, "up_to_3_quarters_solved"),
        (7, 8, "most_solved"),
        (8, 8, "all_solved"),
        (1, 2, "up_to_half_solved"),
    ],
)
def test_groups_fall_into_their_bins(solved, members, share):
    assert _share(solved, members) == share


def test_the_histogram_counts_filtered_groups_too():
    meter = Meter()
    meter.begin_step(0.0)
    for solved in (0, 0, 1, 2):
        members = tuple(Member(0.0, number < solved, 3) for number in range(2))
        meter.judged(UnitReport(0, "group", members, 0, 0))
    metrics = meter.finish_step(TrainReceipt(1, 0.1), 1.0, 1)
    assert metrics["rollout/groups_none_solved"] == 0.5
    assert metrics["rollout/groups_up_to_half_solved"] == 0.25
    assert metrics["rollout/groups_all_solved"] == 0.25
    assert sum(value for name, value in metrics.items() if name.startswith("rollout/groups_")) == 1.0


@pytest.mark.parametrize("solved", [False, True])
def test_a_run_that_never_succeeds_is_told_so_once(caplog, solved):
    """#84."""
    caplog.set_level(logging.WARNING)
    meter = Meter()
    for step in range(1, NO_SUCCESS_STEPS + 5):
        meter.begin_step(step - 1.0)
        meter.stepped(StepReceipt(0, 4, (ended(solved and step == 3),), 0.1), [Entry(step, 0, 0, 0, True)])
        meter.finish_step(TrainReceipt(step, 0.1), float(step), 1)
    assert caplog.text.count("no episode was solved") == (not solved)


def test_what_simulators_count_is_summed_up_in_each_step():
    meter = Meter()
    found = []
    for counts in ([{"contacts_left_out": 2.0}, {"contacts_left_out": 3.0}], [{}]):
        meter.begin_step(0.0)
        for number, one in enumerate(counts):
            meter.stepped(StepReceipt(0, 4, (), 0.1, counts=one), [Entry(number, 0, 0, 0, True)])
        found.append(meter.finish_step(TrainReceipt(1, 0.1), 1.0, 1).get("sim/contacts_left_out"))
    assert found == [5.0, None]
