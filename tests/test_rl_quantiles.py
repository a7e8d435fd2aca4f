"""Quantiles that merge, against sorting everything."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.batch import Loss
from rlvla.metrics import Sums
from rlvla.rl.quantiles import BINS, counts, quantile


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-5, 1e-2, 0.3, 5.0]),
    shift=st.sampled_from([0.0, 0.1, -2.0]),
    size=st.integers(1, 300),
    share=st.sampled_from([0.01, 0.05, 0.5, 0.95, 0.99]),
)
def test_a_quantile_is_that_of_the_sorted_entries(seed, scale, shift, size, share) -> None:
    log_x = shift + scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))
    place = max(math.ceil(share * size - 1e-9) - 1, 0)
    wanted = float(log_x.sort().values[place])
    got = math.log(quantile(counts(log_x, torch.ones(size, dtype=torch.bool)), share))
    assert got == pytest.approx(wanted, rel=0.0185, abs=1e-6)


def test_what_is_masked_is_not_counted_whatever_it_is() -> None:
    log_x = torch.tensor([[0.0, math.nan], [math.inf, -0.5]])
    found = counts(log_x, torch.tensor([[True, False], [False, True]]))
    assert found.sum() == 2
    assert quantile(found, 0.5) == pytest.approx(math.exp(-0.5), rel=0.01)
    assert quantile(found, 1.0) == 1.0


def test_what_is_no_number_counts_nowhere() -> None:
    """A loss that is not finite is the trainer's to skip; counting must not fall over it."""
    found = counts(torch.tensor([math.nan, 0.0, math.inf]), torch.ones(3, dtype=torch.bool))
    assert found.sum() == 2


def test_the_outermost_bins_take_what_lies_beyond() -> None:
    found = counts(torch.tensor([-100.0, 100.0]), torch.tensor([True, True]))
    assert (found[0], found[-1]) == (1, 1)
    assert math.log(quantile(found, 0.99)) == pytest.approx(20, rel=0.03)


def test_of_nothing_there_is_no_quantile() -> None:
    assert math.isnan(quantile(torch.zeros(BINS, dtype=torch.float64), 0.5))
    sums = Sums()
    sums.count(Loss(torch.zeros(()), distributions={"ratio": torch.zeros(BINS, dtype=torch.float64)}))
    assert sums.means() == {}


def test_quantiles_of_parts_are_those_of_the_whole() -> None:
    """Averages of the parts' quantiles are not."""
    log_x = torch.linspace(-1, 1, 101)
    on = torch.ones(101, dtype=torch.bool)
    whole, parts = Sums(), Sums()
    whole.count(Loss(torch.zeros(()), distributions={"ratio": counts(log_x, on)}))
    for part in log_x.split([90, 11]):
        of_part = Sums()
        of_part.count(Loss(torch.zeros(()), distributions={"ratio": counts(part, on[: len(part)])}))
        parts.add(of_part)
    assert parts.means() == whole.means()
    assert sorted(whole.means()) == ["ratio_p01", "ratio_p05", "ratio_p50", "ratio_p95", "ratio_p99"]
    assert whole.means()["ratio_p95"] == pytest.approx(math.exp(0.9), rel=0.02)
