"""Statistics that merge over ranks, and normalisation with them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.rl.advantages import normalise
from rlvla.rl.moments import Moments, gather, sum_over_ranks


def test_normalisation_uses_all_ranks() -> None:
    # Each rank for itself would give zeros.
    ranks = [torch.ones(2), torch.full((2,), 3.0)]
    moments = Moments.merge([Moments.of(rank) for rank in ranks])
    assert moments.std().item() == pytest.approx(1.154701, abs=1e-6)
    mask = torch.ones(2, dtype=torch.bool)
    assert [normalise(rank, mask, moments)[0].item() for rank in ranks] == pytest.approx(
        [-0.866018, 0.866018], abs=1e-6
    )


def test_masked_entries_are_not_counted() -> None:
    x, mask = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, True, True, False])
    for garbage in (4.0, float("nan"), float("inf")):
        x[3] = garbage
        normal = normalise(x, mask, Moments.of(x, mask))
        assert normal.tolist() == pytest.approx([-0.99999, 0.0, 0.99999, 0.0], abs=1e-6)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_entries_are_only_centred(count: int) -> None:
    x, mask = torch.tensor([5.0, 7.0]), torch.arange(2) < count
    assert normalise(x, mask, Moments.of(x, mask)).tolist() == [0.0, 0.0]


def test_equal_entries_become_zeros() -> None:
    x = torch.full((8,), 0.7)
    assert normalise(x, torch.ones(8, dtype=torch.bool), Moments.of(x)).abs().max().item() == 0.0


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.lists(st.floats(-100, 100), min_size=0, max_size=5), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_merging_equals_taking_all_at_once(values: list[list[float]], order) -> None:
    every = torch.tensor([x for part in values for x in part], dtype=torch.float64)
    order.shuffle(values)
    merged = Moments.merge([Moments.of(torch.tensor(part, dtype=torch.float64)) for part in values])
    assert merged.count.item() == len(every)
    if len(every):
        assert merged.mean.item() == pytest.approx(every.mean().item(), abs=1e-9)
    if len(every) > 1:
        assert merged.std().item() == pytest.approx(every.std().item(), abs=1e-9)
        assert merged.std(unbiased=False).item() == pytest.approx(every.std(correction=0).item(), abs=1e-9)


def test_without_a_process_group_a_rank_is_alone() -> None:
    x = torch.arange(3.0)
    assert gather(x).shape == (1, 3)
    assert sum_over_ranks(x).tolist() == x.tolist()


RANK = """
import sys, torch
from torch import distributed
from rlvla.rl.moments import Moments, sum_over_ranks
rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
x = torch.linspace(-1, 2, 35).square().view(5, 7)[[slice(0, 2), slice(2, 5)][rank]]
moments = Moments.of(x).over_ranks()
print(int(moments.count), float(moments.mean).hex(), float(moments.m2).hex(), float(sum_over_ranks(moments.count)))
distributed.destroy_process_group()
"""


def test_two_ranks_agree_on_the_bits(tmp_path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    printed = [rank.communicate()[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert printed[0] == printed[1]
    count, mean, m2, counts = printed[0]
    whole = Moments.of(torch.linspace(-1, 2, 35).square())
    assert int(count) == int(whole.count)
    assert float(counts) == 2 * int(count)
    assert float.fromhex(mean) == pytest.approx(whole.mean.item(), rel=1e-12)
    assert float.fromhex(m2) == pytest.approx(whole.m2.item(), rel=1e-12)
