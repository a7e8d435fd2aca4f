"""Levels, masks and denominators, by hand-computed numbers and by slow loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.rl import reductions
from rlvla.testing import random_trajectories

seeds = st.integers(0, 10**6)


def test_log_probs_sum_over_valid_entries_at_each_level() -> None:
    logp_SHK = torch.tensor([[[0.1, 0.2], [-0.1, 0.3]]])
    valid_SH = torch.ones(1, 2, dtype=torch.bool)
    ratios = {
        level: reductions.reduce_to_level(logp_SHK, valid_SH, level).exp() for level in ("token", "action", "chunk")
    }
    torch.testing.assert_close(ratios["token"].flatten(), torch.tensor([1.105171, 1.221403, 0.904837, 1.349859]))
    torch.testing.assert_close(ratios["action"].flatten(), torch.tensor([1.349859, 1.221403]))
    torch.testing.assert_close(ratios["chunk"].flatten(), torch.tensor([1.648721]))
    assert [tuple(ratios[level].shape) for level in ("token", "action", "chunk")] == [(1, 2, 2), (1, 2, 1), (1, 1, 1)]


def test_entries_that_are_not_valid_count_as_nothing() -> None:
    logp_SHK = torch.tensor([[[0.5], [float("nan")]]], requires_grad=True)
    valid_SH = torch.tensor([[True, False]])
    total = reductions.reduce_to_level(logp_SHK, valid_SH, "chunk")
    total.sum().backward()
    assert total.item() == 0.5
    assert logp_SHK.grad is not None
    assert logp_SHK.grad.flatten().tolist() == [1.0, 0.0]


def test_bf16_is_reduced_in_fp32() -> None:
    logp_SHK = torch.full((1, 1, 3), -8.03, dtype=torch.bfloat16)
    assert reductions.reduce_to_level(logp_SHK, torch.ones(1, 1, dtype=torch.bool), "chunk").dtype == torch.float32


def test_an_advantage_for_each_action_does_not_fit_a_ratio_a_chunk() -> None:
    with pytest.raises(RuntimeError, match="expand"):
        reductions.spread_to(torch.zeros(4, 2), torch.zeros(4, 1, 1))


@pytest.mark.parametrize("aggregation", ["element-mean", "trajectory-mean", "trajectory-sum", "constant"])
def test_aggregations_by_hand(aggregation: str) -> None:
    # Trajectory 1: terms 1, two valid actions. Trajectory 2: terms 2, four. Length 4; what is not valid is 9.
    wanted = {"element-mean": 10 / 6, "trajectory-mean": 1.5, "trajectory-sum": 5.0, "constant": 1.25}[aggregation]
    term_SHK = torch.tensor([[1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 2.0, 2.0]])[..., None]
    valid_SH = torch.tensor([[True, True, False, False], [True] * 4])
    assert aggregate(term_SHK, valid_SH[:, None], "action", aggregation, 4).item() == pytest.approx(wanted)


def test_the_number_of_tokens_does_not_scale_a_mean() -> None:
    # A mask [S, H, 1] against terms [S, H, 7] would divide by a seventh of the elements.
    term_SHK = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0, 2.0]).view(1, 6, 1).expand(1, 6, 7)
    valid_UTH = torch.ones(1, 1, 6, dtype=torch.bool)
    assert aggregate(term_SHK, valid_UTH, "token", "element-mean", None).item() == pytest.approx(1.666667)


def aggregate(term_Shk, valid_UTH, level, aggregation, length):
    """One sample a trajectory."""
    valid_SH = valid_UTH[:, 0]
    mask = reductions.mask_at_level(valid_SH, term_Shk.shape[-1], level)
    units_U = reductions.units(valid_UTH, level)
    weight = reductions.element_weight(units_U, term_Shk.shape[-1], aggregation)[:, None, None]
    ones = torch.ones(len(valid_SH))
    by = reductions.denominator(mask, ones, ones, aggregation, length)
    return torch.where(mask, weight * term_Shk, 0.0).sum() / by


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [("element-mean", 2 + 0.5 * 3), ("trajectory-mean", 1.5), ("trajectory-sum", 1.5), ("constant", 2 * 5 * 1)],
)
def test_staleness_weights_are_renormalised_but_under_constant(aggregation: str, wanted: float) -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])[..., None]
    weight_S = torch.tensor([1.0, 0.5])
    assert reductions.denominator(mask, torch.ones(2), weight_S, aggregation, 5).item() == wanted


def test_a_trajectorys_elements_share_its_weight() -> None:
    units_U = torch.tensor([4, 2, 0])
    assert reductions.element_weight(units_U, 2, "trajectory-mean").tolist() == [1 / 8, 1 / 4, 0.0]
    assert reductions.element_weight(units_U, 2, "element-mean").tolist() == [1.0] * 3


@settings(max_examples=40, deadline=None)
@given(seed=seeds, level=st.sampled_from(["chunk", "action", "token"]))
def test_masks_and_units_equal_a_loop(seed: int, level: str) -> None:
    trajectories = random_trajectories(seed, U=3, T=3, H=3, K=2, executed=2)
    valid_UTH = trajectories.valid
    mask = reductions.mask_at_level(valid_UTH[trajectories.exists], 2, level)
    row = 0
    units = []
    for u in range(3):
        count = 0
        for t in range(3):
            actions = [bool(valid_UTH[u, t, h]) for h in range(3)]
            if level == "chunk":
                assert mask[row].flatten().tolist() == [any(actions)]
                count += any(actions)
            else:
                width = 2 if level == "token" else 1
                assert mask[row].tolist() == [[one] * width for one in actions]
                count += sum(actions)
            row += 1
        units.append(count)
    assert reductions.units(valid_UTH, level).tolist() == units


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    aggregation=st.sampled_from(["element-mean", "trajectory-mean", "trajectory-sum", "constant"]),
    parts=st.integers(1, 5),
)
def test_denominators_add_up_over_parts(seed: int, aggregation: str, parts: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand((7, 3, 2), generator=generator) < 0.7
    share_S, weight_S = torch.rand(7, generator=generator), torch.rand(7, generator=generator)
    whole = reductions.denominator(mask, share_S, weight_S, aggregation, 5)
    cut = sum(
        reductions.denominator(mask[rows], share_S[rows], weight_S[rows], aggregation, 5)
        for rows in torch.arange(7).chunk(parts)
    )
    torch.testing.assert_close(cut, whole)


def test_dividing_by_nothing_is_nothing() -> None:
    assert reductions.divide(torch.zeros(()), torch.zeros((), dtype=torch.float64)).item() == 0.0
    assert reductions.divide(torch.tensor(3.0), torch.tensor(1.5, dtype=torch.float64)).item() == 2.0
