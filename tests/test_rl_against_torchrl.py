"""Advantages and losses equal those of TorchRL, an independent implementation, on random batches."""

import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule

from rlvla.rl.advantages import Credit, gae
from rlvla.rl.losses import clipped_policy_term

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own deprecations
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value.functional import generalized_advantage_estimate


@pytest.mark.parametrize("seed", range(10))
def test_gae_equals_theirs_with_terminations_and_truncations(seed):
    random = torch.Generator().manual_seed(seed)
    windows, steps = 5, 9

    def normal() -> torch.Tensor:
        return torch.randn(windows, steps, generator=random, dtype=torch.float64)

    reward, value, final = normal(), normal(), normal()
    after = torch.randn(windows, generator=random, dtype=torch.float64)
    terminated = torch.rand(windows, steps, generator=random) < 0.15
    truncated = (torch.rand(windows, steps, generator=random) < 0.15) & ~terminated
    gamma, decay = 0.97, 0.9
    advantage, target = gae(
        Credit(reward, terminated, truncated, torch.ones_like(terminated)),
        value,
        final,
        after,
        gamma=gamma,
        gae_lambda=decay,
    )
    following = torch.cat([value[:, 1:], after[:, None]], 1)
    following = torch.where(truncated, final, following)  # theirs takes the value behind each step as given
    theirs, their_target = generalized_advantage_estimate(
        gamma, decay, *(x[..., None] for x in (value, following, reward, terminated | truncated, terminated))
    )
    torch.testing.assert_close(advantage, theirs[..., 0], rtol=1e-5, atol=1e-6)  # theirs is fp32 in part
    torch.testing.assert_close(target, their_target[..., 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("clip", [0.1, 0.2, 0.4])
def test_the_clipped_objective_and_its_gradient_equal_theirs(seed, clip):
    random = torch.Generator().manual_seed(seed)
    samples, actions = 64, 6
    logits = torch.randn(samples, actions, generator=random, dtype=torch.float64, requires_grad=True)
    chosen = torch.randint(actions, (samples,), generator=random)
    advantage = torch.randn(samples, generator=random, dtype=torch.float64)
    logp = logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
    old = (logp + 0.5 * torch.randn(samples, generator=random, dtype=torch.float64)).detach()
    ours = clipped_policy_term(logp - old, advantage, clip_low=clip, clip_high=clip).mean()

    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        ),
    )
    critic = TensorDictModule(torch.nn.Linear(actions, 1).double(), in_keys=["observation"], out_keys=["state_value"])
    batch = TensorDict(
        {
            "observation": logits.detach().clone().requires_grad_(),
            "action": chosen,
            "action_log_prob": old,
            "advantage": advantage[:, None],
            "value_target": torch.zeros(samples, 1, dtype=torch.float64),
        },
        batch_size=[samples],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = ClipPPOLoss(
            actor, critic, clip_epsilon=clip, entropy_bonus=False, critic_coeff=None, normalize_advantage=False
        )
        theirs = loss(batch)["loss_objective"]
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(logits.grad, batch["observation"].grad)
