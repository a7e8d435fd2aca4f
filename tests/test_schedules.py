"""Schedulers in virtual time: makespans by hand, and what must hold whatever takes how long."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvla.clock import Stuck
from rlvla.configs import read_one
from rlvla.plugin import find
from rlvla.testing.virtual import Latency, World, play
from rlvla.tickets import Tickets

SCHEDULERS = {
    "sync": ("sync", {}),
    "async-rollout": ("async-rollout", {}),
    "full-async-0": ("full-async", {"max_staleness": 0}),
    "full-async": ("full-async", {}),
    "full-async-3": ("full-async", {"max_staleness": 3}),
    "hybrid": ("hybrid", {}),
    "hybrid-1": ("hybrid", {"stages": 1}),
    "hybrid-2": ("hybrid", {"stages": 2}),
    "hybrid-4": ("hybrid", {"stages": 4}),
}
BOUNDS = {name: {"full-async": 1, "full-async-3": 3}.get(name, 0) for name in SCHEDULERS}


def scheduler(name):
    use, options = SCHEDULERS[name]
    plugin = find("scheduler", use)
    return plugin.load()(read_one(plugin.config, options))


# ---- by hand ---------------------------------------------------------------------------------------------------------

ONE_SLOW_SLOT = World(  # windows of 2 chunks; a row costs the generator 1 s; simulators take 1 s and 3 s; training 4 s
    latency=Latency(simulate=lambda slot, step: 1.0 if slot == 0 else 3.0), episode=lambda slot, number: 1000
)
PUBLISHING = World(  # one group of two one-chunk rollouts a step; reset 1, batch of two 2, chunk 1, training 5
    slots=(2,),
    unit="group",
    units_per_step=1,
    steps=3,
    latency=Latency(reset=1.0, generate_call=1.0, generate_row=0.5, train=lambda step: 5.0, snapshot=1.0, offer=2.0),
)
HOLDING_BACK = World(  # a call of the generator costs 4 s whatever is in it
    window=3,
    steps=1,
    latency=Latency(
        simulate=lambda slot, step: 1.0 + slot, generate_call=4.0, generate_row=0.0, train=lambda step: 1.0
    ),
    episode=lambda slot, number: 1000,
)
ONE_DEVICE = World(  # windows of 2 chunks; a row costs the generator 1 s; four slots share a device, 1 s each
    slots=(1, 1, 1, 1),
    on=lambda kind, number: [("device-0", 1.0)] if kind == "simulator" else [],
    units_per_step=4,
    steps=1,
    episode=lambda slot, number: 1000,
)
TWO_DEVICES = World(
    **{
        **vars(ONE_DEVICE),
        "on": lambda kind, number: [(f"device-{number % 2}", 1.0)] if kind == "simulator" else [],
        "generators": 2,
    }
)
EVERYTHING = World(  # windows of one chunk in one slot of two rows: one of each call a step
    slots=(2,),
    window=1,
    latency=Latency(
        simulate=lambda slot, step: 1.0,
        simulate_alone=lambda slot, step: 3.0,
        reset=1.0,
        reset_row=0.5,
        reset_alone=2.0,
        snapshot=1.0,
        transfer=5.0,
        offer=1.0,
    ),
)
ONE_DEVICE_TWO_GENERATORS = World(
    **{**vars(ONE_DEVICE), "slots": (1, 1), "units_per_step": 2, "generators": 2},
)


FIXED_LENGTH = World(  # 4 windows of at most 3 chunks a step; slot 0's episodes take 1 chunk, slot 1's never end
    window=3,
    partial_reset=False,
    units_per_step=4,
    latency=Latency(generate_row=0.0),
    episode=lambda slot, number: 1 if slot == 0 else 1000,
)


@pytest.mark.parametrize(
    ("world", "name", "seconds"),
    [
        # 2 steps of (2 chunks of (batch of two 2 + slower simulator 3) + training 4)
        (ONE_SLOW_SLOT, "sync", 28.0),
        # the slow slot: 2 (batch of both) + 3 + 1 (alone) + 3 = 9, training 4; twice
        (ONE_SLOW_SLOT, "async-rollout", 26.0),
        (ONE_SLOW_SLOT, "full-async-0", 26.0),
        # the slow slot's 4 chunks: 2 + 3 + 2 (both asked at 5) + 3 = 10, 1 + 3 + 1 + 3 = 8; step 0 trains at 10, 1 at 18
        (ONE_SLOW_SLOT, "full-async", 22.0),
        # 3 steps of (snapshot 1 + offer 2 + reset 1 + batch 2 + chunk 1 + training 5)
        (PUBLISHING, "sync", 36.0),
        (PUBLISHING, "async-rollout", 36.0),
        (PUBLISHING, "full-async-0", 36.0),
        # offered at 3, groups ready at 7 and 11; trained 7-12; snapshot to 13, trained to 18; version 1 offered at 15, so
        # group 2 is ready at 19; the snapshot of 18-19 is over; trained to 24
        (PUBLISHING, "full-async", 24.0),
        # slot 0 plays three windows while slot 1 plays one: 2 steps of (3 chunks + training 4)
        (FIXED_LENGTH, "sync", 14.0),
        (FIXED_LENGTH, "async-rollout", 14.0),
        # slot 1 goes on while step 0 trains: 3 more chunks are over at 6, training at 7 and 11
        (FIXED_LENGTH, "full-async", 11.0),
        # 3 x (4 + 2) + 1
        (HOLDING_BACK, "sync", 19.0),
        # 0-4 both; slot 0 alone 5-9 (nothing is known yet); slot 1 asked at 6 and is held back at 9 for slot 0, which comes
        # at 10; 10-14 both; slot 1's last chunk 16-20 and 20-22; training
        (HOLDING_BACK, "async-rollout", 23.0),
        (HOLDING_BACK, "full-async", 23.0),
        # one stage: 2 x (batch of four 4 + device 4) + training 4
        (ONE_DEVICE, "sync", 20.0),
        (ONE_DEVICE, "hybrid-1", 20.0),
        # stages of two: the generator is busy 0-8, each stage's 2 s on the device beside the other's call; the last 8-10
        (ONE_DEVICE, "hybrid-2", 14.0),
        (ONE_DEVICE, "hybrid", 14.0),
        # stages of one: the generator is busy 0-8, the last chunk 8-9
        (ONE_DEVICE, "hybrid-4", 13.0),
        # each device and each generator has two slots: 2 x (2 + 2) + 4
        (TWO_DEVICES, "sync", 12.0),
        (TWO_DEVICES, "hybrid-1", 12.0),
        # each generator alternates between two slots: busy 0-4, the last chunk 4-5
        (TWO_DEVICES, "hybrid-2", 9.0),
        # 2 steps of (publication 1 + 5 + 1, reset 1 + 2 * 0.5 + 2, batch of two 2, chunk 1 + 3, training 4)
        (EVERYTHING, "sync", 42.0),
        # step 0: 21 as above; snapshot 17-21 waits for training, 21-22; the chunks of step 1, reset again, are played 17-27 with
        # version 0 (reset 4, batch 2, chunk 4) and train to 31; the weights that arrive at 28 are not needed
        (EVERYTHING, "full-async", 31.0),
        # a generator for each of two stages of one device: in turn, chunks at 2 and 3, then 4 and 5; training. At once on the
        # device, both would have their chunks at 3 and at 6
        (ONE_DEVICE_TWO_GENERATORS, "hybrid-2", 9.0),
        # snapshot and offer at the start of each rollout: 3 x 3 more than without
        (PUBLISHING, "hybrid", 36.0),
    ],
)
def test_makespans_by_hand(world, name, seconds):
    assert play(scheduler(name), world).seconds == seconds


def test_marks_say_how_far_everything_was_when_a_step_ended():
    played = play(scheduler("sync"), EVERYTHING)
    assert [(one.seconds, one.batches) for one in played.marks] == [(21.0, 1), (42.0, 2)]
    assert [one.busy["sim-0"] for one in played.marks] == [8.0, 16.0]
    assert [one.busy["trainer"] for one in played.marks] == [5.0, 10.0], "the transfer is nobody's work"
    assert [one.busy["generator-0"] for one in played.marks] == [3.0, 6.0]


def test_the_batcher_holds_back_only_where_it_pays():
    assert play(scheduler("async-rollout"), HOLDING_BACK).batches == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("call", "row", "simulate", "shared", "batches"),
    [
        (3.0, 0.1, 1.0, True, [2, 2]),  # rounds of 7.4 in one stage, max(6.4, 4, 5.2) in two, 12.4 in four
        (3.0, 0.1, 0.1, True, [4]),  # 3.8, 6.4, 12.4
        (0.0, 1.0, 1.0, True, [2, 2]),  # 8, max(4, 4, 4), max(4, 4, 2): more than two bring nothing
        (0.0, 1.0, 4.0, False, [1, 1, 1, 1]),  # each on a core of its own: 8, 2 + 4, 1 + 4
    ],
)
def test_stages_are_derived_from_what_the_step_before_took(call, row, simulate, shared, batches):
    world = World(
        **{
            **vars(ONE_DEVICE),
            "steps": 3,
            "window": 3,
            "capacities": {"device-0": 1.0 if shared else 4.0},
            "latency": Latency(simulate=lambda slot, step: simulate, generate_call=call, generate_row=row),
        }
    )
    assert play(scheduler("hybrid"), world).batches[-len(batches) :] == batches


def test_idle_generators_share_those_who_wait():
    """Six slots of one row, three generators: in phase, each takes two."""
    world = World(slots=(1,) * 6, generators=3, units_per_step=6, steps=1, episode=lambda slot, number: 1000)
    played = play(scheduler("sync"), world)
    assert played.batches == [2] * 6
    assert played.seconds == 2 * (2 + 1) + 4


# ---- whatever takes how long -----------------------------------------------------------------------------------------


def check(name, world):
    played = play(scheduler(name), world)
    bound, steps = BOUNDS[name], world.steps
    assert len(played.tickets) == steps
    assert [len(one) for one in played.tickets] == [world.units_per_step] * steps
    trained = [ticket for one in played.tickets for ticket in one]
    assert trained == sorted(trained), "units are not in ticket order"
    if world.budget is None:
        kept = [ticket for ticket in range(trained[-1] + 1) if ticket not in world.dropped]
        assert trained == kept, "a unit was lost"
    assert max(played.staleness) <= bound
    if world.generators == 1:  # each checks for itself; two take over new weights one after the other
        assert played.versions == sorted(played.versions)
    assert played.most_outstanding <= (bound + 1) * world.units_per_step
    assert played.state["outstanding"] == []
    assert [one["rollout/units"] for one in played.metrics] == [world.units_per_step] * steps
    return played


PLACES = [
    lambda kind, number: (),
    lambda kind, number: [("cores", 1.0)] if kind == "simulator" else (),
    lambda kind, number: [("cores", 1.0)] if kind == "simulator" else [("gpu", 1.0)],
    lambda kind, number: [(f"gpu-{number % 2}", 0.6)] if kind != "trainer" else [("gpu-0", 0.9), ("gpu-1", 0.9)],
]


@st.composite
def worlds(draw):
    seed = draw(st.integers(0, 2**32))
    numbers = random.Random(seed)
    scale = draw(st.sampled_from([0.0, 0.3, 1.0, 1.0, 10.0]))
    even = draw(st.booleans())  # then much happens in one instant
    jitter = [numbers.choice([1.0, 2.0]) if even else numbers.lognormvariate(0, 1) for _ in range(257)]
    lengths = [numbers.choice([1, 1, 2, 3, 5, 12]) for _ in range(101)]
    units = draw(st.integers(1, 7))
    generators = draw(st.sampled_from([1, 1, 2, 3]))
    rate = draw(st.sampled_from([0.0, 0.25, 0.6]))
    losses = draw(st.sampled_from([0.0, 0.0, 0.05, 0.2]))
    deaths = {place for place in range(0, 101, 3) if numbers.random() < losses}  # a chunk step lies between
    return World(
        slots=draw(st.lists(st.integers(1, 3), min_size=generators, max_size=5)),
        unit=draw(st.sampled_from(["window", "group"])),
        window=draw(st.integers(1, 4)),
        partial_reset=draw(st.booleans()),
        group_size=draw(st.integers(2, 4)),
        units_per_step=units,
        steps=draw(st.integers(1, 5)),
        latency=Latency(
            simulate=lambda slot, step: scale * jitter[(slot * 31 + step * 7) % 257],
            reset=draw(st.sampled_from([0.0, 2.0])),
            generate_call=draw(st.sampled_from([0.0, 0.5, 5.0])),
            generate_row=draw(st.sampled_from([0.0, 0.1, 1.0])),
            train=lambda step: jitter[step % 257],
            snapshot=draw(st.sampled_from([0.0, 0.0, 0.3])),
            offer=draw(st.sampled_from([0.0, 0.0, 0.7])),
            restart=draw(st.sampled_from([0.0, 4.0])),
        ),
        dies=lambda slot, call: (12 * slot + call) % 102 in deaths,
        episode=lambda slot, number: lengths[(slot * 17 + number) % 101],
        dropped=frozenset(ticket for ticket in range(3000) if numbers.random() < rate),
        budget=draw(st.sampled_from([None, None, 2.0])),
        generators=generators,
        stations=draw(st.sampled_from([1, generators])),
        on=draw(st.sampled_from(PLACES)),
        capacities={"cores": 2.0},
        controller_s=draw(st.sampled_from([0.0, 0.0, 0.2])),
        batch_rows=draw(st.sampled_from([None, None, 1, 2, 4])),
        evaluate_every=draw(st.sampled_from([0, 0, 2])),
    )


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(deadline=None, max_examples=60)
@given(world=worlds())
def test_nothing_stalls_is_lost_doubled_or_too_old(name, world):
    check(name, world)


@settings(deadline=None, max_examples=40)
@given(world=worlds())
def test_all_schedulers_train_on_the_same_units(world):
    wanted = check("sync", world).tickets
    for name in set(SCHEDULERS) - {"sync"}:
        assert check(name, world).tickets == wanted


@settings(deadline=None, max_examples=40)
@given(world=worlds(), name=st.sampled_from(sorted(SCHEDULERS)))
def test_a_run_repeats_to_the_nanosecond(name, world):
    one, other = play(scheduler(name), world), play(scheduler(name), world)
    assert (one.seconds, one.batches, one.versions) == (other.seconds, other.batches, other.versions)


@settings(deadline=None, max_examples=40)
@given(world=worlds(), name=st.sampled_from(sorted(SCHEDULERS)))
def test_stopping_leaves_open_units_to_a_resume(name, world):
    """What was begun and not trained on keeps its ticket."""
    world = World(**{**vars(world), "steps": 50, "stop_after": 2, "budget": None})
    played = play(scheduler(name), world)
    assert len(played.tickets) == played.state["steps_done"] == 2
    trained = {ticket for one in played.tickets for ticket in one}
    opened = set(range(played.state["feed"]["next_ticket"]))
    lost = opened - trained - set(played.state["outstanding"])
    assert lost <= set(world.dropped), f"neither trained on, nor dropped, nor open: {lost - set(world.dropped)}"


STRAGGLER = World(  # 8 units in all, 2 a step, a slot each; the slot that plays the first is 6 times slower
    slots=(1, 1, 1, 1),
    window=1,
    steps=4,
    latency=Latency(
        simulate=lambda slot, step: 6.0 if (slot, step) == (0, 0) else 1.0, generate_row=0.0, train=lambda step: 0.5
    ),
    episode=lambda slot, number: 1000,
)


@pytest.mark.parametrize(("unit", "partial_reset"), [("window", True), ("window", False), ("group", True)])
def test_a_straggler_makes_nothing_too_old(unit, partial_reset):
    """The first unit, begun with version 0, is trained on in step 0, and the others wait for it."""
    played = check("full-async", World(**{**vars(STRAGGLER), "unit": unit, "partial_reset": partial_reset}))
    assert len([one for step in played.tickets for one in step]) == 8


class CountsStarts(Tickets):
    """A rule that bounds how many units have started, whatever became of them."""

    started = 0

    def open(self, tickets):
        tickets = list(tickets)
        self.started += len(tickets)
        super().open(tickets)

    def admissible(self, until):
        last = min(self.version + self.max_staleness, until - 1)
        return max(0, (last + 1) * self.units_per_step - self.started)


class TrainsWhatIsFinished(CountsStarts):
    """And trains on whatever is finished first."""

    @property
    def complete(self):
        return len(self._kept) >= self.units_per_step

    def take(self):
        taken = sorted(self._kept)[-self.units_per_step :]
        self._kept.difference_update(taken)
        self._places = [one for one in self._places if one not in taken]
        self.step += 1
        return taken


def test_without_tickets_a_straggler_gets_too_old(monkeypatch):
    monkeypatch.setattr("rlvla.graph.Tickets", TrainsWhatIsFinished)
    with pytest.raises(ExceptionGroup, match="unhandled") as caught:
        play(scheduler("full-async"), STRAGGLER)
    assert "versions old, admitted up to 1" in str(caught.value.exceptions[0])


def test_counting_starts_stalls_where_units_are_dropped(monkeypatch):
    monkeypatch.setattr("rlvla.graph.Tickets", CountsStarts)
    with pytest.raises(Stuck, match="Graph.complete"):
        play(scheduler("full-async"), World(**{**vars(STRAGGLER), "dropped": {1}}))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_quarter_filtered_is_made_up_for(name):
    check(name, World(**{**vars(STRAGGLER), "steps": 10, "dropped": frozenset(range(0, 400, 4))}))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_lost_unit_is_played_again_from_its_start(name):
    """By hand: windows of 2 chunks, 3 s a chunk step with its batch. The worker dies in its second chunk step and is back
    after 5 s: 3 + 3 + 5, then the two chunks again, then training."""
    world = World(
        slots=(1,),
        units_per_step=1,
        steps=1,
        latency=Latency(simulate=lambda slot, step: 2.0, train=lambda step: 4.0, restart=5.0),
        episode=lambda slot, number: 1000,
        dies=lambda slot, call: call == 2,
    )
    played = check(name, world)
    assert played.seconds == 3 + 3 + 5 + 3 + 3 + 4
    assert played.metrics[0]["rollout/units_lost"] == 1


def test_overlap_hides_the_shorter_of_rollout_and_training():
    """Equal slots, training as long as a rollout: one version of staleness takes half the time, apart from the ends."""
    world = World(
        slots=(2, 2, 2, 2),
        window=4,
        units_per_step=8,
        steps=20,
        latency=Latency(simulate=lambda slot, step: 1.0, generate_row=0.0, generate_call=0.1, train=lambda step: 4.4),
        episode=lambda slot, number: 1000,
    )
    sync, overlapped = check("sync", world), check("full-async", world)
    assert sync.seconds == pytest.approx(20 * 8.8)
    assert overlapped.seconds <= 20 * 4.4 + 2 * 4.4


@settings(deadline=None, max_examples=60)
@given(world=worlds())
@example(world=ONE_SLOW_SLOT)
def test_more_freedom_is_not_slower_by_more_than_a_step(world):
    """Rounding and the order of batches can cost a little: Graham's anomalies. Nothing systematic.

    Units are bound to rows here (windows with partial reset): where any row may take a unit, 7 of 1500 random worlds cost
    more, since the last one may go to a simulator that is about to be slow.
    """
    world = World(**{**vars(world), "batch_rows": None, "unit": "window", "partial_reset": True})
    sync, overlapped = play(scheduler("sync"), world), play(scheduler("full-async"), world)
    longest = max(sync.seconds / world.steps, 1e-9)
    assert overlapped.seconds <= 1.5 * sync.seconds + longest
