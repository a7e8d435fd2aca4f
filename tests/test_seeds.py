"""Seeds are functions of what they are for."""

from hypothesis import given
from hypothesis import strategies as st

from rlvla.sampler import Sampler
from rlvla.seeds import derive, derived, stem
from rlvla.specs import AlgorithmSpec, SimulatorSpec, Start, TaskSpec
from rlvla.work import EpisodeFeed, GroupFeed, WindowFeed

SIMULATOR = SimulatorSpec((), (), (), 10.0, 1, (TaskSpec("a"),))
WINDOWS = AlgorithmSpec(unit="window", credit_level="chunk", ratio_level="chunk", values=False, window=3)
GROUPS = AlgorithmSpec(unit="group", credit_level="chunk", ratio_level="chunk", values=False, group_size=2)


@given(
    seed=st.integers(0, 2**64),
    path=st.lists(st.one_of(st.integers(0, 2**40), st.text(max_size=5))),
    number=st.integers(0, 2**40),
)
def test_a_stem_goes_on_as_the_path_does(seed, path, number):
    assert derived(stem(seed, *path), number) == derive(seed, *path, number)


def test_noise_keys_name_the_work_and_the_chunk():
    for feed in (WindowFeed(WINDOWS, 2, 7, Sampler(SIMULATOR, 7)), GroupFeed(GROUPS, (2,), 7, Sampler(SIMULATOR, 7))):
        feed.open(4)
        works = [work for _ in range(2) for row in range(2) if (work := feed.take(row)) is not None]
        assert len(works) == 4
        for work in works:
            for work.chunk in range(3):
                assert feed.key(work) == derive(7, "noise", work.ticket, work.member, work.chunk)


def test_noise_keys_of_an_evaluation_name_the_episode_and_the_chunk():
    feed = EpisodeFeed([(1, Start()), (2, Start())], 7)
    first, second = feed.take(0), feed.take(1)
    second.chunk = 4
    assert (feed.key(first), feed.key(second)) == (derive(7, "noise", 0, 0), derive(7, "noise", 1, 4))
    assert feed.take(0) is None
