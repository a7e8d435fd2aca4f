"""The distribution over the 256 action tokens: sampling, log-probs and entropy, in fp32.

Letters: N rows, T tokens of a chunk, B bins.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def likeliest(logits_NTB: Tensor, top_k: int) -> Tensor:
    """Return bool ``[N, T, B]``: the ``top_k`` most likely tokens of each place."""
    places = logits_NTB.topk(top_k, -1).indices
    return torch.zeros_like(logits_NTB, dtype=torch.bool).scatter_(-1, places, True)


def log_probs(logits_NTB: Tensor, temperature: float, support_NTB: Tensor | None) -> Tensor:
    """Return fp32 log-probs over the tokens that may be chosen; -inf for others."""
    logits_NTB = logits_NTB.float() / temperature
    if support_NTB is not None:
        logits_NTB = logits_NTB.masked_fill(~support_NTB, -torch.inf)
    return F.log_softmax(logits_NTB, -1)


def drawn(logp_NTB: Tensor, uniform_NT: Tensor) -> Tensor:
    """Return tokens by inverting the distribution function."""
    cumulative_NTB = logp_NTB.exp().cumsum(-1)
    token_NT = (cumulative_NTB < uniform_NT[..., None] * cumulative_NTB[..., -1:]).sum(-1)
    return token_NT.clamp_max(logp_NTB.shape[-1] - 1)


def of_tokens(logp_NTB: Tensor, token_NT: Tensor) -> Tensor:
    """Return the tokens' log-probs, ``[N, T]``."""
    return logp_NTB.gather(-1, token_NT[..., None]).squeeze(-1)


def entropy(logp_NTB: Tensor) -> Tensor:
    """Return entropies in nats, ``[N, T]``; a token outside the support adds nothing."""
    logp_NTB = logp_NTB.masked_fill(logp_NTB == -torch.inf, 0.0)
    return -(torch.where(logp_NTB == 0.0, 0.0, logp_NTB.exp()) * logp_NTB).sum(-1)
