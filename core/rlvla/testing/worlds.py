"""Trajectories for tests: random but valid ones, and small worlds with a known answer.

Letters: U trajectories, T chunk steps, H actions in a chunk, K log-prob entries an action, V values a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvla.batch import Evaluation, Trajectories


def random_trajectories(
    seed: int,
    U: int = 6,
    T: int = 5,
    H: int = 3,
    K: int = 2,
    V: int = 1,
    *,
    group_size: int = 1,
    done_rate: float = 0.15,
    stops: bool = False,
    executed: int | None = None,
    lag: int = 0,
    version: int = 3,
) -> Trajectories:
    """Return valid trajectories whose episodes end anywhere inside chunks. Entries that are not valid hold zeros.

    Args:
        seed: of everything.
        U: trajectories; neighbours of ``group_size`` share a group number.
        T: chunk steps.
        H: actions in a chunk.
        K: log-prob entries an action.
        V: values a chunk; 0 for none.
        group_size: rollouts in a group.
        done_rate: chance of an action to end its episode.
        stops: a trajectory ends with its first episode (rollouts of groups) instead of going on with the next one; what
            follows does not exist.
        executed: actions of a chunk that are executed at most; None: all.
        lag: largest lag of a chunk's version.
        version: of the newest chunks.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    done = (uniform(U, T, H) < done_rate) & (torch.arange(H) < (executed or H))
    first = done & (done.long().cumsum(-1) == 1)
    valid = (first.long().cumsum(-1) - first.long() == 0) & (torch.arange(H) < (executed or H))
    ended = first.any(-1)
    exists = ended.long().cumsum(1) - ended.long() == 0 if stops else torch.ones(U, T, dtype=torch.bool)
    valid, first = valid & exists[..., None], first & exists[..., None]
    terminated = first & (uniform(U, T, H) < 0.5)
    followed = first.any(-1)
    last = exists & ~torch.cat([exists[:, 1:], torch.zeros(U, 1, dtype=torch.bool)], 1)
    return Trajectories(
        exists=exists,
        reward=torch.where(valid, uniform(U, T, H) * 2 - 0.7, 0.0),
        terminated=terminated,
        truncated=first & ~terminated,
        valid=valid,
        success=terminated.any(-1) & (uniform(U, T) < 0.6),
        logp=torch.where(valid[..., None], -3 * uniform(U, T, H, K), 0.0),
        value=torch.where(valid[..., :V] if V == H else exists[..., None], uniform(U, T, V) * 2 - 1, 0.0),
        final_value=torch.where(followed | last, uniform(U, T) * 2 - 1, 0.0),
        version=torch.where(exists, version - torch.randint(0, lag + 1, (U, T), generator=generator), 0),
        group=(torch.arange(U) // group_size)[:, None].expand(U, T).clone(),
        batch_size=[U, T],
    )


def better_and_worse(
    U: int = 4, T: int = 2, H: int = 3, K: int = 2, V: int = 1, *, group_size: int = 4
) -> Trajectories:
    """Return episodes of which every other one ends with reward 1 and success, the rest with nothing; all else is equal.

    Values are 1/2, so the better ones' log-probs must rise and the worse ones' fall, most of all at the last action.
    """
    last = torch.zeros(U, T, H, dtype=torch.bool)
    last[:, -1, -1] = True
    better = (torch.arange(U) % 2 == 0)[:, None, None]
    return Trajectories(
        exists=torch.ones(U, T, dtype=torch.bool),
        reward=(last & better).float(),
        terminated=last,
        truncated=torch.zeros_like(last),
        valid=torch.ones_like(last),
        success=(last & better).any(-1),
        logp=torch.full((U, T, H, K), -1.0),
        value=torch.full((U, T, V), 0.5),
        final_value=torch.zeros(U, T),
        version=torch.zeros(U, T, dtype=torch.int64),
        group=(torch.arange(U) // group_size)[:, None].expand(U, T).clone(),
        batch_size=[U, T],
    )


def with_garbage(trajectories: Trajectories, number: float = float("nan")) -> Trajectories:
    """Return trajectories with ``number`` (and true flags) wherever nothing may look."""
    dirty = trajectories.clone()
    off_UTH, absent_UT = ~trajectories.valid, ~trajectories.exists
    dirty.reward[off_UTH] = number
    dirty.logp[off_UTH] = number
    for name in ("reference_logp", "proximal_logp"):
        if getattr(dirty, name) is not None:
            getattr(dirty, name)[off_UTH] = number
    dirty.terminated[off_UTH] = True
    dirty.truncated[off_UTH] = True
    dirty.valid[absent_UT] = True
    dirty.success[absent_UT] = True
    dirty.value[absent_UT] = number
    if dirty.value.shape[-1] == dirty.valid.shape[-1]:
        dirty.value[off_UTH] = number
    ended_UT = ((trajectories.terminated | trajectories.truncated) & trajectories.valid).any(-1)
    last_UT = trajectories.exists & ~torch.cat([trajectories.exists[:, 1:], torch.zeros_like(absent_UT[:, :1])], 1)
    dirty.final_value[~(ended_UT | last_UT)] = number
    dirty.version[absent_UT] = 10**6
    return dirty


def evaluation_of(trajectories: Trajectories, seed: int | None = None, scale: float = 0.3) -> Evaluation:
    """Return what a model says about the existing chunks, as leaves with gradients.

    Args:
        trajectories: whose behaviour log-probs and values are the starting point.
        seed: of changes to them; None: none, every ratio is 1.
        scale: standard deviation of the changes.
    """
    exists = trajectories.exists
    logp, value = trajectories.logp[exists].clone(), trajectories.value[exists].clone()
    entropy = torch.full_like(logp, 1.5)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for x in (logp, value, entropy):
            x += scale * torch.randn(x.shape, generator=generator)
    return Evaluation(
        logp=logp.requires_grad_(),
        entropy=entropy.requires_grad_(),
        value=value.requires_grad_(),
        batch_size=[len(logp)],
    )


class GuessingGame:
    """A world of known optimum that is solved in a second: each log-prob entry is a guess among ``choices`` tokens, of
    which the first is right. An action earns the fraction of its right guesses over the length of the episode, so the
    best return is 1 and the expected one at the start 1 / choices.

    The policy is a table of logits and of values, blind to time::

        game = GuessingGame(seed=0, V=1)
        trajectories, tokens = game.play(units=8, group_size=4, version=step)
        evaluation = game.evaluate(tokens)
    """

    def __init__(self, seed: int, T: int = 2, H: int = 2, K: int = 2, V: int = 1, choices: int = 3) -> None:
        self.shape_THK = (T, H, K)
        self.logits = torch.zeros(H, K, choices, requires_grad=True)
        self.values = torch.zeros(V, requires_grad=True)
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def chance(self) -> float:
        """The chance of a right guess, which is the expected return."""
        return float(self.logits.detach().softmax(-1)[..., 0].mean())

    @torch.no_grad()
    def play(self, units: int, group_size: int, version: int) -> tuple[Trajectories, Tensor]:
        """Return whole episodes, and the tokens ``[S, H, K]`` of their chunks."""
        T, H, K = self.shape_THK
        U = units * group_size
        chances = self.logits.softmax(-1).flatten(0, 1)
        drawn = torch.multinomial(chances, U * T, replacement=True, generator=self.generator)
        tokens_SHK = drawn.T.reshape(U * T, H, K)
        trajectories = better_and_worse(U, T, H, K, len(self.values), group_size=group_size)
        trajectories.reward = (tokens_SHK == 0).float().mean(-1).view(U, T, H) / (T * H)
        trajectories.success = (tokens_SHK == 0).view(U, T, H * K).all(-1)
        evaluation = self.evaluate(tokens_SHK)
        trajectories.logp = evaluation.logp.detach().view(U, T, H, K)
        trajectories.value = evaluation.value.detach().view(U, T, -1)
        trajectories.version = torch.full((U, T), version)
        return trajectories, tokens_SHK

    def evaluate(self, tokens_SHK: Tensor) -> Evaluation:
        """Return log-probs, entropies and values of chunks, with gradients."""
        logp_HKN = self.logits.log_softmax(-1)
        logp_SHKN = logp_HKN.expand(len(tokens_SHK), *logp_HKN.shape)
        return Evaluation(
            logp=logp_SHKN.gather(-1, tokens_SHK[..., None])[..., 0],
            entropy=-(logp_SHKN.exp() * logp_SHKN).sum(-1),
            value=self.values.expand(len(tokens_SHK), -1),
            batch_size=[len(tokens_SHK)],
        )
