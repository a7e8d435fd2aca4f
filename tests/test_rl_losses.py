"""Element-wise terms, by hand-computed numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla.rl import losses


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual", "loss", "slope"),
    [
        (1, 1.5, None, -1.28, 0),
        (1, 0.5, None, -0.5, -0.5),
        (-1, 1.5, None, 1.5, 1.5),
        (-1, 0.5, None, 0.8, 0),
        (-1, 5.0, None, 5.0, 5.0),
        (-1, 5.0, 3.0, 3.0, 0),
        (1, 5.0, 3.0, -1.28, 0),
    ],
)
def test_clipped_term_by_hand(advantage, ratio, dual, loss, slope) -> None:
    x = torch.tensor(math.log(ratio), dtype=torch.float64, requires_grad=True)
    a = torch.tensor(float(advantage), dtype=torch.float64)
    term = losses.clipped_policy_term(x, a, clip_low=0.2, clip_high=0.28, dual_clip=dual)
    term.backward()
    assert term.item() == pytest.approx(loss)
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(slope)
    pushes = losses.has_gradient(x.detach(), a, clip_low=0.2, clip_high=0.28, dual_clip=dual)
    assert bool(pushes) is (slope != 0)


@settings(max_examples=80, deadline=None)
@given(
    x=st.floats(-3, 3),
    advantage=st.floats(-3, 3).filter(lambda a: abs(a) > 1e-3),
    dual=st.sampled_from([None, 1.1, 3.0]),
)
def test_has_gradient_says_what_autograd_finds(x: float, advantage: float, dual: float | None) -> None:
    log_ratio = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(advantage, dtype=torch.float64)
    losses.clipped_policy_term(log_ratio, a, clip_low=0.2, clip_high=0.28, dual_clip=dual).backward()
    assert log_ratio.grad is not None
    said = losses.has_gradient(log_ratio.detach(), a, clip_low=0.2, clip_high=0.28, dual_clip=dual)
    assert bool(said) is (log_ratio.grad.item() != 0.0)


def test_at_ratio_one_the_gradient_is_reinforce() -> None:
    x = torch.zeros(3, requires_grad=True)
    advantage = torch.tensor([2.0, -1.0, 0.0])
    losses.clipped_policy_term(x, advantage, clip_low=0.2, clip_high=0.2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-2.0, 1.0, 0.0]


def test_a_wide_clip_is_importance_sampling() -> None:
    x, advantage = torch.tensor([0.7, -1.3]), torch.tensor([1.5, -2.0])
    term = losses.clipped_policy_term(x, advantage, clip_low=1e9, clip_high=1e9)
    torch.testing.assert_close(term, -advantage * x.exp())


@pytest.mark.parametrize(
    ("log_ratio", "weight"), [(0.0, 1.0), (0.25, 1.133148), (0.5, 1.0), (1.0, 0.367879), (-0.5, 0.367879)]
)
def test_gaussian_term_by_hand(log_ratio: float, weight: float) -> None:
    x = torch.tensor(log_ratio, requires_grad=True)
    term = losses.gaussian_policy_term(x, torch.tensor(-2.0), 0.5)
    term.backward()
    assert term.item() == pytest.approx(2 * weight, abs=1e-5)
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(2 * weight, abs=1e-5)  # of A rho, weighted
    assert weight <= math.exp(0.5**2 / 2)


def test_a_wide_gaussian_is_importance_sampling() -> None:
    x, advantage = torch.tensor([0.7, -1.3]), torch.tensor([1.5, -2.0])
    torch.testing.assert_close(losses.gaussian_policy_term(x, advantage, 1e6), -advantage * x.exp())


@pytest.mark.parametrize(("value", "target", "wanted"), [(0.5, 1.0, 0.32), (0.1, 1.0, 0.405), (2.0, 1.0, 0.5)])
def test_value_term_by_hand(value: float, target: float, wanted: float) -> None:
    term = losses.value_term(torch.tensor(value), torch.tensor(0.0), torch.tensor(target), clip=0.2, huber_delta=10.0)
    assert term.item() == pytest.approx(wanted)


def test_huber_by_hand() -> None:
    assert losses.huber(torch.tensor(20.0), 10.0).item() == 150.0
    assert losses.huber(torch.tensor(-20.0), None).item() == 200.0
    assert losses.huber(torch.tensor(3.0), 10.0).item() == 4.5


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        ("k1", [0.693147, -0.693147]),
        ("abs", [0.693147, 0.693147]),
        ("k2", [0.240227, 0.240227]),
        ("k3", [0.193147, 0.306853]),
    ],
)
def test_kl_estimators_by_hand(estimator, wanted: list[float]) -> None:
    logp, reference = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.5]).log()
    assert losses.kl_estimate(logp, reference, estimator).tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"), [("k1", 0.143841, 0.0), ("k2", 0.161214, 0.274653), ("k3", 0.143841, 0.25)]
)
def test_expected_kl_and_its_gradient(estimator, value: float, slope: float) -> None:
    """Two actions, policy (.5, .5), reference (.25, .75): expectation under the policy, slope in the logit difference."""
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logp = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
    reference = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    expected = (logp.exp().detach() * losses.kl_estimate(logp, reference, estimator)).sum()
    expected.backward()
    assert expected.item() == pytest.approx(value, abs=1e-6)
    assert logit.grad is not None
    assert logit.grad.item() == pytest.approx(slope, abs=1e-6)


def test_descending_the_kl_loss_brings_the_policy_back() -> None:
    logits = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    reference = torch.zeros(3).log_softmax(0)

    def kl() -> torch.Tensor:
        logp = logits.log_softmax(0)
        return (logp.exp() * (logp - reference)).sum()

    before = kl().item()
    for _ in range(20):
        logp = logits.log_softmax(0)
        loss = (logp.exp().detach() * losses.kl_estimate(logp, reference, "k2")).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - 0.5 * gradient).detach().requires_grad_()
    assert kl().item() < before / 10


def test_decoupled_weight_by_hand() -> None:
    behaviour, proximal, now = torch.tensor(-1.0), torch.tensor(-0.9), torch.tensor(-0.8, requires_grad=True)
    weight = losses.behaviour_weight(proximal, behaviour, highest=None, over="truncate")
    assert weight.item() == pytest.approx(1.105171, abs=1e-6)
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    term = weight * losses.clipped_policy_term(now - proximal, torch.tensor(1.0), **clip)
    assert term.item() == pytest.approx(-1.221403, abs=1e-6)
    plain = losses.clipped_policy_term(now - behaviour, torch.tensor(1.0), **clip)
    plain.backward()
    assert plain.item() == pytest.approx(-1.2, abs=1e-6)
    assert now.grad is not None
    assert now.grad.item() == 0.0


def test_interpolation_by_hand() -> None:
    # lag 0, 1, 2: nothing, half, two thirds of the way to the present policy
    logp, behaviour = torch.full((3,), -0.8, requires_grad=True), torch.full((3,), -1.0)
    made = losses.interpolated(logp, behaviour, torch.tensor([0, 1, 2]))
    assert made.tolist() == pytest.approx([-1.0, -0.9, -1 + 0.2 * 2 / 3])
    assert not made.requires_grad


def test_weights_above_the_bound_are_cut_or_dropped() -> None:
    proximal, behaviour = torch.tensor([0.0, 2.0]), torch.zeros(2)
    assert losses.behaviour_weight(proximal, behaviour, highest=2.0, over="truncate").tolist() == [1.0, 2.0]
    assert losses.behaviour_weight(proximal, behaviour, highest=2.0, over="mask").tolist() == [1.0, 0.0]


def test_staleness_weights() -> None:
    lag = torch.tensor([0, 1, 2, 3])
    assert losses.staleness_weight(lag, free=1, decay=0.5).tolist() == [1.0, 1.0, 0.5, 0.25]
    assert losses.staleness_weight(lag, free=0, decay=1.0).tolist() == [1.0] * 4
