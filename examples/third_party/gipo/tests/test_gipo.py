"""What rlvla asks of every algorithm, and what GIPO promises beside it."""

import math

import pytest
import torch
from gipo.algorithm import gaussian_term, weight

from rlvla.testing import AlgorithmConformance


class TestGipo(AlgorithmConformance):
    name = "gipo"
    config = {"passes": 2}


def test_worked_values():
    """Numbers computed by hand for width 0.5."""
    log_ratio = torch.tensor([0.0, 0.25, 0.5, 1.0, -0.5])
    wanted = torch.tensor([1.0, 0.882497, 0.606531, 0.135335, 0.606531])
    torch.testing.assert_close(weight(log_ratio, 0.5), wanted, rtol=1e-5, atol=1e-6)
    pushed = torch.tensor([1.0, 1.133148, 1.0, 0.367879, 0.367879])
    torch.testing.assert_close(-gaussian_term(log_ratio, torch.ones(5), 0.5), pushed, rtol=1e-5, atol=1e-6)


def test_no_ratio_weighs_more_than_the_bound():
    log_ratio = torch.linspace(-20, 20, 4001)
    pushed = weight(log_ratio, 0.7) * log_ratio.exp()
    assert pushed.max() == pytest.approx(math.exp(0.7**2 / 2), rel=1e-4)
    assert float(log_ratio[pushed.argmax()]) == pytest.approx(0.7**2, abs=0.01)


def test_a_sample_far_off_still_teaches():
    """Where PPO's clip has no gradient left."""
    log_ratio = torch.tensor([0.6], requires_grad=True)
    gaussian_term(log_ratio, torch.ones(1), 0.5).backward()
    assert log_ratio.grad < 0


def test_a_wide_gaussian_is_the_plain_importance_ratio():
    log_ratio = torch.linspace(-1, 1, 9)
    torch.testing.assert_close(gaussian_term(log_ratio, torch.ones(9), 1e4), -log_ratio.exp())
