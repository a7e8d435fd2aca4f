"""A random step in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from rlvla.networks.gaussian import normal_logp
from rlvla_model_gr00t import flow


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def test_standard_deviations_of_four_steps():
    times = column(0, 0.25, 0.5, 0.75)
    x = torch.zeros(4, 1, 1, dtype=torch.float64)
    _, std = flow.distribution("flow_sde", x, x, times, 0.25, column(0.5, 0.5, 0.5, 0.5), None)
    torch.testing.assert_close(std.flatten(), torch.tensor([0.5, 0.433013, 0.25, 0.144338]).double(), rtol=0, atol=1e-6)


def test_a_step_worked_by_hand():
    x, velocity, t, level = column(0.2), column(1.0), column(0.25), column(0.5)
    mean, std = flow.distribution("flow_sde", x, velocity, t, 0.25, level, None)
    assert float(mean) == pytest.approx(0.45625)
    assert float(flow.euler(x, velocity, 0.25)) == pytest.approx(0.45)
    assert float(normal_logp(column(0.7), mean, std)) == pytest.approx(-0.240388, abs=1e-6)


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5])
def test_the_drift_of_the_sde_keeps_the_flows_marginals(t):
    """With x = (1 - t) noise + t data and a known pair, mean and variance of the next point follow from both terms."""
    x0, x1, dt, level = 0.7, -0.4, 0.25, 0.5
    x, velocity = column((1 - t) * x0 + t * x1), column(x1 - x0)
    mean, std = flow.distribution("flow_sde", x, velocity, column(t), dt, column(level), None)
    variance = level**2 * (1 - t) / max(t, dt)
    wanted = x0 * (1 - t - dt - variance * dt / (2 * (1 - t))) + x1 * (t + dt)
    assert float(mean) == pytest.approx(wanted)
    assert float(std) == pytest.approx(math.sqrt(variance * dt))


@pytest.mark.parametrize("level", [0.1, 0.5, 1.0])
def test_coefficients_are_preserved(level):
    """Noise before and noise added have squares that add up to those of the flow's own noise."""
    t, dt = 0.25, 0.25
    zero, one = column(0.0), column(1.0)
    noise_alone = (column(1 - t), column(-1.0))  # x and velocity where noise is 1 and data 0
    mean, std = flow.distribution("flow_cps", *noise_alone, column(t), dt, column(level), None)
    assert float(mean) ** 2 + float(std) ** 2 == pytest.approx((1 - t - dt) ** 2)
    mean, _ = flow.distribution("flow_cps", column(t), one, column(t), dt, column(level), None)
    assert float(mean) == pytest.approx(t + dt)
    _, std = flow.distribution("flow_cps", zero, zero, column(0.75), dt, column(level), None)
    assert float(std) == 0.0


def test_learned_deviations_lie_between_their_ends_evenly_in_the_logarithm():
    std = flow.learned_std(torch.tensor([-20.0, 0.0, 20.0]))
    torch.testing.assert_close(std, torch.tensor([0.08, math.sqrt(0.08 * 0.16), 0.16]))
    mean, _ = flow.distribution("reinflow", column(0.2), column(1.0), column(0.25), 0.25, column(0.5), column(0.1))
    assert float(mean) == pytest.approx(0.45)


def test_noise_levels_anneal():
    levels = [flow.level_at(version, 0.7, 0.3, 400) for version in (-1, 0, 200, 400, 1000)]
    assert levels == pytest.approx([0.7, 0.7, 0.5, 0.3, 0.3])
    assert flow.level_at(50, 0.5, None, 400) == 0.5
