"""Which unit belongs to which step, and which may start: by hand, and against properties."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.receipts import UnitReport
from rlvla.tickets import Tickets


def report(ticket):
    return UnitReport(ticket, "window", (), 0, 0)


def make(units=4, staleness=0, drop=(), budget=None):
    tickets = Tickets(units, staleness, lambda one: one.ticket not in drop, budget)
    tickets.version = 0
    return tickets


def test_a_step_is_opened_and_no_more():
    tickets = make()
    assert tickets.admissible(10) == 4
    tickets.open(range(4))
    assert tickets.admissible(10) == 0


def test_one_version_of_staleness_opens_the_next_step_too():
    tickets = make(staleness=1)
    assert tickets.admissible(10) == 8
    assert tickets.admissible(1) == 4  # nothing for steps that will not be trained


def test_while_a_step_trains_places_count_from_the_next():
    tickets = make(staleness=1)
    tickets.open(range(8))
    for ticket in range(4):
        tickets.finish(report(ticket))
    assert tickets.take() == [0, 1, 2, 3]
    assert tickets.admissible(10) == 0  # version 0 acts still: a unit started now would be 2 old in step 2
    tickets.version = 1
    assert tickets.admissible(10) == 4


def test_tickets_are_taken_in_order_whoever_was_first():
    tickets = make(2, staleness=1)
    tickets.open(range(4))
    for ticket in (3, 1, 2):
        tickets.finish(report(ticket))
    assert not tickets.complete
    assert tickets.survivors == 1
    tickets.finish(report(0))
    assert tickets.take() == [0, 1]
    assert tickets.take() == [2, 3]


def test_a_dropped_unit_gives_up_its_place_at_once():
    """The first is slow; that the second is dropped moves later ones up before the first is done."""
    tickets = make(2, drop={1})
    tickets.open(range(2))
    assert tickets.finish(report(1)) == [1]
    assert tickets.admissible(10) == 1
    tickets.open([2])
    tickets.finish(report(2))
    tickets.finish(report(0))
    assert tickets.take() == [0, 2]


def test_beyond_the_budget_units_are_kept_in_ticket_order():
    """Two a step, none wanted, two may be refused: 0 and 1 are, 2 and 3 are not, in whatever order they end."""
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        tickets = make(2, staleness=1, drop=range(8), budget=1.0)
        tickets.open(range(4))
        dropped = [one for ticket in order for one in tickets.finish(report(ticket))]
        assert sorted(dropped) == [0, 1]
        assert tickets.take() == [2, 3]


def test_training_too_early_says_what_is_missing():
    tickets = make(2)
    tickets.open(range(2))
    tickets.finish(report(1))
    with pytest.raises(ValueError, match=r"step 0 has 1 of 2 units: wait for graph\.complete"):
        tickets.take()


def test_admission_without_weights_is_refused():
    with pytest.raises(ValueError, match=r"call graph\.publish\(\) before graph\.admit\(\)"):
        Tickets(2, 0, lambda one: True).admissible(10)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 6), st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.7]), st.none() | st.just(2.0), st.integers())
def test_whoever_is_fast_a_step_trains_on_the_same_units_never_too_old(units, staleness, rate, budget, seed):
    draws = random.Random(seed)
    dropped = {ticket for ticket in range(2000) if draws.random() < rate}

    def play(staleness, pick):
        tickets = make(units, staleness, dropped, budget)
        opened, playing, steps, offered = 0, [], [], 0
        started = {}
        while len(steps) < 6:
            fresh = list(range(opened, opened + tickets.admissible(6)))
            started |= dict.fromkeys(fresh, tickets.version)
            opened += len(fresh)
            tickets.open(fresh)
            playing += fresh
            assert len(tickets.outstanding()) <= units * (staleness + 1)
            if tickets.complete and (not playing or pick(3) == 0):
                taken = tickets.take()
                assert all(len(steps) - started[one] <= staleness for one in taken)
                steps.append(taken)
                offered += 1
            elif tickets.version < offered and (not playing or pick(3) == 0):
                tickets.version = offered
            else:
                tickets.finish(report(playing.pop(pick(len(playing)))))
        assert tickets.outstanding() == []
        return steps

    in_order = play(0, lambda count: 0)
    assert play(staleness, draws.randrange) == in_order
