"""From tokens to a simulator's actions: bins, the data set's ranges, and then :mod:`rlvla.conventions`.

Letters: N rows, H actions in a chunk, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlvla.conventions import ActionConverter
from rlvla.specs import ActionPart
from rlvla_model_openvla_oft.header import BINS, Statistics

if TYPE_CHECKING:
    from rlvla_model_openvla_oft import OpenVlaOftConfig

_EDGES = torch.linspace(-1, 1, BINS, dtype=torch.float64)
CENTRES = ((_EDGES[:-1] + _EDGES[1:]) / 2).float()
"""255 values between 256 edges."""


def value_of(token: Tensor) -> Tensor:
    """Return the normalised action of a token's place among the 256: the higher, the lower; 0 and 1 mean the same.

    The public rule is ``id = 32000 - digitize(action, edges)`` with digits from 1 to 256 and ``centre[32000 - id - 1]``,
    clipped: so id 31744 (place 0) and 31745 (place 1) are both the highest of 255 centres.
    """
    return CENTRES.to(token.device)[(BINS - 1 - token).clamp(0, BINS - 2)]


class ActionCodec(nn.Module):
    """Normalised actions to a simulator's.

    Args:
        config: conventions of the checkpoint.
        statistics: ranges of its data set.
        parts: what the simulator's action is made of.

    Raises:
        ConfigError: a part that cannot be made of what the checkpoint gives.
    """

    low: Tensor
    high: Tensor
    scaled: Tensor

    def __init__(self, config: OpenVlaOftConfig, statistics: Statistics, parts: Sequence[ActionPart]) -> None:
        super().__init__()
        self.converter = ActionConverter(config, parts)
        for name in ("low", "high", "scaled"):
            self.register_buffer(name, torch.tensor(getattr(statistics, name)), persistent=False)

    def forward(self, normalised_NHA: Tensor) -> Tensor:
        """Return fp32 ``[N, H, A]`` in the simulator's units, within its bounds."""
        wide_A = self.high - self.low + 1e-8
        raw_NHA = torch.where(self.scaled, 0.5 * (normalised_NHA + 1) * wide_A + self.low, normalised_NHA)
        return self.converter(raw_NHA)  # type: ignore[no-any-return]
