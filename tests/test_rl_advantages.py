"""Credit, GAE, scores and group advantages, by hand-computed numbers and by slow obvious second computations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.rl import advantages
from rlvla.rl.advantages import Credit
from rlvla.rl.moments import Moments
from rlvla.testing import random_trajectories
from rlvla.testing.worlds import with_garbage

seeds = st.integers(0, 10**6)
NAN = float("nan")


def credit_of(reward, terminated=(), truncated=(), valid=None) -> Credit:
    steps = torch.arange(len(reward))
    flags = [torch.isin(steps, torch.tensor(ends, dtype=torch.int64))[None] for ends in (terminated, truncated)]
    on = torch.ones(len(reward), dtype=torch.bool) if valid is None else torch.tensor(valid)
    return Credit(torch.tensor([reward], dtype=torch.float64), *flags, on[None])


def gae_of(credit: Credit, values, final=0.0, after=0.0, gamma=0.9, gae_lambda=0.5, bootstrap="truncation"):
    value = torch.tensor([values], dtype=torch.float64)
    final_value = torch.full_like(value, final)
    after = torch.tensor([after], dtype=torch.float64)
    made = advantages.gae(credit, value, final_value, after, gamma=gamma, gae_lambda=gae_lambda, bootstrap=bootstrap)
    return [x[0].tolist() for x in made]


# --- credit ---


def chunked(reward, terminated):
    trajectories = random_trajectories(0, U=1, T=2, H=3, done_rate=0.0)
    trajectories.reward[0] = torch.tensor(reward)
    trajectories.terminated[0] = torch.tensor(terminated)
    return trajectories


def test_rewards_and_ends_at_each_level() -> None:
    trajectories = chunked([[0.0, 0, 1], [0.5, 0, 0]], [[False, False, True], [False, False, False]])
    chunk = advantages.credit_arrays(trajectories, trajectories.reward, "chunk")
    assert chunk.reward_UN.tolist() == [[1.0, 0.5]]
    assert chunk.terminated_UN.tolist() == [[True, False]]
    action = advantages.credit_arrays(trajectories, trajectories.reward, "action")
    assert action.reward_UN.tolist() == [[0.0, 0.0, 1.0, 0.5, 0.0, 0.0]]
    assert action.terminated_UN.tolist() == [[False, False, True, False, False, False]]


def test_what_is_reported_after_the_end_cannot_cancel_a_success() -> None:
    trajectories = chunked([[0.0, 5, -5], [0.0, 0, 0]], [[False, True, False], [False, False, False]])
    trajectories.valid[0, 0, 2] = False
    assert advantages.credit_arrays(trajectories, trajectories.reward, "chunk").reward_UN.tolist() == [[5.0, 0.0]]


def test_both_flags_are_a_termination() -> None:
    trajectories = chunked([[0.0] * 3] * 2, [[False, True, False], [False] * 3])
    trajectories.truncated.copy_(trajectories.terminated)
    for level in ("chunk", "action"):
        credit = advantages.credit_arrays(trajectories, trajectories.reward, level)
        assert credit.terminated_UN.any()
        assert not credit.truncated_UN.any()


# --- GAE by hand ---


def test_gae_without_an_end() -> None:
    made = gae_of(credit_of([0, 0, 1]), [0.5, 0.6, 0.7], after=0.8)
    assert made[0] == pytest.approx([0.26005, 0.489, 1.02])
    assert made[1] == pytest.approx([0.76005, 1.089, 1.72])
    assert gae_of(credit_of([0, 0, 1]), [0.5, 0.6, 0.7], after=0.8, gae_lambda=0.0)[0] == pytest.approx(
        [0.04, 0.03, 1.02]
    )
    assert gae_of(credit_of([0, 0, 1]), [0.5, 0.6, 0.7], after=0.8, gae_lambda=1.0)[0] == pytest.approx(
        [0.8932, 0.948, 1.02]
    )


@pytest.mark.parametrize(
    ("bootstrap", "wanted"),
    [("truncation", [0.22, 0.4, 0.02]), ("never", [0.22, 0.4, 0.02]), ("always", [0.5845, 1.21, 0.02])],
)
def test_gae_across_a_termination(bootstrap: str, wanted: list[float]) -> None:
    made = gae_of(credit_of([0, 1, 0], terminated=[1]), [0.5, 0.6, 0.7], final=0.9, after=0.8, bootstrap=bootstrap)
    assert made[0] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("bootstrap", "wanted"),
    [("truncation", [0.1345, 0.21, 0.02]), ("never", [-0.23, -0.6, 0.02]), ("always", [0.1345, 0.21, 0.02])],
)
def test_gae_across_a_truncation(bootstrap: str, wanted: list[float]) -> None:
    made = gae_of(credit_of([0, 0, 0], truncated=[1]), [0.5, 0.6, 0.7], final=0.9, after=0.8, bootstrap=bootstrap)
    assert made[0] == pytest.approx(wanted)


def test_a_truncation_bootstraps_as_if_the_value_were_a_reward() -> None:
    added = gae_of(credit_of([0, 0.81, 0], terminated=[1]), [0.5, 0.6, 0.7], after=0.8)
    assert added[0] == pytest.approx([0.1345, 0.21, 0.02])


@pytest.mark.parametrize(
    ("ends", "bootstrap", "target"),
    [
        ({"truncated": [0]}, "truncation", 0.9),
        ({"terminated": [0]}, "truncation", 0.0),
        ({"terminated": [0]}, "always", 0.9),
        ({"truncated": [0]}, "never", 0.0),
    ],
)
def test_one_step_world(ends, bootstrap: str, target: float) -> None:
    # Reward 0, value 1 everywhere: what remains is whether the end is followed by a value.
    made = gae_of(credit_of([0.0], **ends), [1.0], final=1.0, after=1.0, bootstrap=bootstrap)
    assert made[1] == pytest.approx([target])


def test_the_value_of_the_next_episode_does_not_leak_back() -> None:
    # Two episodes back to back, V 1 and V 100, nothing rewarded, the first truncated: nothing was gained at the join.
    made = gae_of(credit_of([0, 0, 0], truncated=[0]), [1, 100, 100], final=1.0, after=100.0, gamma=1.0)
    assert made[0] == pytest.approx([0.0, 0.0, 0.0])


def test_a_termination_on_the_last_step_of_a_window_stays_one() -> None:
    assert gae_of(credit_of([0, 1], terminated=[1]), [0.5, 0.6], final=0.9, after=0.9)[1][1] == pytest.approx(1.0)
    assert gae_of(credit_of([0, 1], truncated=[1]), [0.5, 0.6], final=0.9, after=7.0)[1][1] == pytest.approx(1.81)


def test_edges_of_gae() -> None:
    assert gae_of(credit_of([1, 2]), [0, 0], after=5.0, gamma=0.0)[0] == [1.0, 2.0]
    assert gae_of(credit_of([3]), [1.0], after=1.0)[0] == pytest.approx([2.9])
    every_end = credit_of([1, 2, 3], terminated=[0, 1, 2])
    assert gae_of(every_end, [1, 1, 1], after=NAN)[0] == pytest.approx([0.0, 1.0, 2.0])
    to_go = gae_of(credit_of([1, 2, 4], terminated=[1]), [0, 0, 0], gamma=1.0, gae_lambda=1.0)
    assert to_go[0] == [3.0, 2.0, 4.0]


@pytest.mark.parametrize("level", ["chunk", "action"])
def test_a_window_that_stops_short_is_followed_by_its_own_last_value(level: str) -> None:
    trajectories = random_trajectories(0, U=1, T=3, H=2, V=2 if level == "action" else 1, done_rate=0.0)
    trajectories.exists[0, 1:] = False
    trajectories.valid[0, 1:] = False
    trajectories.reward.zero_()
    trajectories.value.zero_()
    trajectories.final_value[0] = torch.tensor([0.5, NAN, 7.0])
    credit = advantages.credit_arrays(trajectories, trajectories.reward, level)
    final_UN, after_U = advantages.end_values(trajectories, level)
    values = trajectories.value.flatten(1)
    made, _ = advantages.gae(credit, values, final_UN, after_U, gamma=1.0, gae_lambda=1.0)
    assert made[0].tolist() == ([0.5, 0, 0] if level == "chunk" else [0.5, 0.5, 0, 0, 0, 0])


def test_steps_that_were_not_executed_are_stepped_over() -> None:
    # Two of three actions of each chunk are executed: after the second comes the next chunk's first.
    valid = [True, True, False, True, True, False]
    made = gae_of(credit_of([0, 1, NAN, 2, 3, NAN], valid=valid), [0.1, 0.2, NAN, 0.3, 0.4, NAN], after=0.5)
    dense = gae_of(credit_of([0, 1, 2, 3]), [0.1, 0.2, 0.3, 0.4], after=0.5)
    for sparse, wanted in zip(made, dense, strict=True):
        assert [x for x, on in zip(sparse, valid, strict=True) if on] == pytest.approx(wanted)
        assert [x for x, on in zip(sparse, valid, strict=True) if not on] == [0.0, 0.0]


# --- GAE against direct sums over episodes ---


def slow_gae(trajectories, level: str, gamma: float, gae_lambda: float, bootstrap: str):
    """Cut each trajectory into episodes and add up (gamma lambda)^l delta_{t+l} directly."""
    wanted = torch.zeros(trajectories.value.shape, dtype=torch.float64)
    for u in range(len(trajectories)):
        steps = []  # (chunk, head, reward, terminated, truncated)
        for t in range(trajectories.shape[1]):
            if not trajectories.exists[u, t]:
                continue
            actions = [h for h in range(trajectories.valid.shape[2]) if trajectories.valid[u, t, h]]
            ends = [
                [bool(flag[u, t, h]) for h in actions] for flag in (trajectories.terminated, trajectories.truncated)
            ]
            rewards = [float(trajectories.reward[u, t, h]) for h in actions]
            if level == "chunk":
                steps.append((t, 0, sum(rewards), any(ends[0]), any(ends[1])))
            else:
                steps += [(t, h, rewards[i], ends[0][i], ends[1][i]) for i, h in enumerate(actions)]
        episodes, episode = [], []
        for step in steps:
            episode.append(step)
            if step[3] or step[4]:
                episodes.append(episode)
                episode = []
        if episode:
            episodes.append(episode)
        for episode in episodes:
            deltas = []
            for place, (t, head, reward, terminated, truncated) in enumerate(episode):
                if place + 1 < len(episode):
                    follows = float(trajectories.value[u, episode[place + 1][0], episode[place + 1][1]])
                elif terminated:
                    follows = float(trajectories.final_value[u, t]) if bootstrap == "always" else 0.0
                elif truncated:
                    follows = float(trajectories.final_value[u, t]) if bootstrap != "never" else 0.0
                else:
                    follows = float(trajectories.final_value[u, t])
                deltas.append(reward + gamma * follows - float(trajectories.value[u, t, head]))
            for place, (t, head, *_) in enumerate(episode):
                wanted[u, t, head] = sum(
                    (gamma * gae_lambda) ** ahead * delta for ahead, delta in enumerate(deltas[place:])
                )
    return wanted


@settings(max_examples=80, deadline=None)
@given(
    seed=seeds,
    level=st.sampled_from(["chunk", "action"]),
    bootstrap=st.sampled_from(["truncation", "always", "never"]),
    done_rate=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    executed=st.sampled_from([None, 2]),
    stops=st.booleans(),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_gae_equals_direct_sums(seed, level, bootstrap, done_rate, executed, stops, gamma, gae_lambda) -> None:
    trajectories = random_trajectories(
        seed, U=3, T=4, H=3, V=3 if level == "action" else 1, done_rate=done_rate, executed=executed, stops=stops
    )
    wanted = slow_gae(trajectories, level, gamma, gae_lambda, bootstrap)
    for given_ in (trajectories, with_garbage(trajectories)):
        credit = advantages.credit_arrays(given_, given_.reward, level)
        final_UN, after_U = advantages.end_values(given_, level)
        got, target = advantages.gae(
            credit, given_.value.flatten(1), final_UN, after_U, gamma=gamma, gae_lambda=gae_lambda, bootstrap=bootstrap
        )
        torch.testing.assert_close(got.double(), wanted.flatten(1), rtol=1e-5, atol=1e-5)
        value = torch.where(credit.valid_UN, trajectories.value.flatten(1), 0.0)
        torch.testing.assert_close(target, got + value)


# --- scores ---


def test_a_score_is_the_return_of_the_first_episode() -> None:
    trajectories = random_trajectories(0, U=1, T=3, H=1, done_rate=0.0)
    trajectories.reward[0] = torch.tensor([[1.0], [0.0], [5.0]])
    trajectories.terminated[0, 0, 0] = True
    episode_UTH = advantages.first_episode(trajectories)
    assert episode_UTH.flatten().tolist() == [True, False, False]
    assert advantages.scores(trajectories.reward, episode_UTH).tolist() == [1.0]


def test_the_ending_action_belongs_to_its_episode() -> None:
    trajectories = random_trajectories(0, U=1, T=1, H=4, done_rate=0.0)
    trajectories.terminated[0, 0, 1] = True
    assert advantages.first_episode(trajectories).flatten().tolist() == [True, True, False, False]


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_scores_equal_a_loop(seed: int) -> None:
    trajectories = random_trajectories(seed, U=3, T=4, H=3, executed=2)
    got = advantages.scores(trajectories.reward, advantages.first_episode(with_garbage(trajectories)))
    for u in range(3):
        total = 0.0
        for t in range(4):
            ended = False
            for h in range(3):
                if trajectories.valid[u, t, h]:
                    total += float(trajectories.reward[u, t, h])
                    ended = ended or bool(trajectories.terminated[u, t, h] | trajectories.truncated[u, t, h])
            if ended:
                break
        assert got[u].item() == pytest.approx(total, abs=1e-6)


# --- groups ---


def grouped(scores, groups=None, members=None, baseline="std", unbiased=True):
    score_U = torch.tensor(scores, dtype=torch.float64)
    group_U = torch.zeros(len(scores), dtype=torch.int64) if groups is None else torch.tensor(groups)
    member_U = torch.ones(len(scores), dtype=torch.bool) if members is None else torch.tensor(members)
    stats = advantages.groups(score_U, group_U, member_U, unbiased=unbiased)
    return advantages.group_advantages(score_U, member_U, stats, baseline).tolist()


def test_group_advantages_by_hand() -> None:
    third = -5 / 3
    assert grouped([5, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert grouped([5, 0, 0, 0], unbiased=False) == pytest.approx([1.732051, *[-0.57735] * 3], abs=1e-5)
    assert grouped([5, 0, 0, 0], baseline="mean") == pytest.approx([3.75, -1.25, -1.25, -1.25])
    assert grouped([5, 0, 0, 0], baseline="rloo") == pytest.approx([5, third, third, third])


@pytest.mark.parametrize("baseline", ["std", "mean", "rloo"])
def test_groups_that_say_nothing_get_exactly_zero(baseline: str) -> None:
    assert grouped([5, 5, 5, 5], baseline=baseline) == [0.0] * 4
    assert grouped([0.7] * 7, baseline=baseline) == [0.0] * 7  # the mean of seven 0.7s is not 0.7
    assert grouped([3.0], baseline=baseline) == [0.0]
    assert grouped([3.0, 1.0], members=[True, False], baseline=baseline) == [0.0, 0.0]
    assert grouped([3.0, 1.0], members=[False, False], baseline=baseline) == [0.0, 0.0]


@pytest.mark.parametrize("baseline", ["std", "mean", "rloo"])
@pytest.mark.parametrize("broken", [NAN, math.inf, 1e30])
def test_a_member_that_does_not_count_does_not_touch_its_group(baseline: str, broken: float) -> None:
    seven = grouped([1, 0, 0, 1, 1, 0, 2], baseline=baseline)
    eight = grouped([1, 0, 0, broken, 1, 1, 0, 2], members=[True] * 3 + [False] + [True] * 4, baseline=baseline)
    assert eight == pytest.approx([*seven[:3], 0.0, *seven[3:]])


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=10),
    data=st.data(),
    baseline=st.sampled_from(["std", "mean", "rloo"]),
    shift=st.floats(-10, 10),
)
def test_group_advantages_equal_a_loop(scores, data, baseline, shift) -> None:
    count = len(scores)
    groups = data.draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count))
    members = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    wanted = []
    for i in range(count):
        mates = [scores[j] for j in range(count) if groups[j] == groups[i] and members[j]]
        if not members[i] or len(mates) < 2 or max(mates) == min(mates):
            wanted.append(0.0)
            continue
        mean = sum(mates) / len(mates)
        sd = math.sqrt(sum((x - mean) ** 2 for x in mates) / (len(mates) - 1))
        others = (sum(mates) - scores[i]) / (len(mates) - 1)
        wanted.append(
            {"std": (scores[i] - mean) / (sd + 1e-6), "mean": scores[i] - mean, "rloo": scores[i] - others}[baseline]
        )
    assert grouped(scores, groups, members, baseline) == pytest.approx(wanted, abs=1e-9)
    # a constant on all returns changes nothing, nor does the place of a member
    assert grouped([x + shift for x in scores], groups, members, baseline) == pytest.approx(wanted, abs=1e-5)
    assert grouped(scores[::-1], groups[::-1], members[::-1], baseline)[::-1] == pytest.approx(wanted, abs=1e-9)


def test_normalising_over_all_steps_weighs_by_length() -> None:
    scores, lengths = [1.0, 0.0, 0.0, 1.0], [2, 4, 4, 2]
    steps_UN = torch.arange(4) < torch.tensor(lengths)[:, None]
    score_UN = torch.tensor(scores, dtype=torch.float64)[:, None].expand(4, 4)
    moments = Moments.of(score_UN, steps_UN)
    assert moments.mean.item() == pytest.approx(1 / 3)
    assert moments.std(unbiased=False).item() ** 2 == pytest.approx(2 / 9)
    made = advantages.normalise(score_UN, steps_UN, moments, unbiased=False, eps=1e-8)
    assert made[0, 0].item() == pytest.approx(1.414214, abs=1e-6)
    assert made[1, 3].item() == pytest.approx(-0.707107, abs=1e-6)
    assert made[0, 2].item() == 0.0


def test_reward_to_go_counts_valid_steps_only() -> None:
    reward = torch.tensor([[1.0, NAN, 2.0, 4.0]])
    valid = torch.tensor([[True, False, True, True]])
    assert advantages.reward_to_go(reward, valid).tolist() == [[7.0, 0.0, 6.0, 4.0]]
