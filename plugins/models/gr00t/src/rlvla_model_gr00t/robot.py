"""A robot's states and actions: from a simulator's units to the network's, and back.

Letters: N rows, H actions in a chunk, A action dimensions of the robot, S of its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla.conventions import ActionConverter
from rlvla.specs import ActionPart
from rlvla_model_gr00t.embodiments import Embodiment, Scaling

if TYPE_CHECKING:
    from rlvla_model_gr00t import Gr00tConfig


class StateCodec(nn.Module):
    """A simulator's states to the network's: scaled, and zeros up to its width.

    Args:
        scaling: of the robot's state.
        width: of what the network reads.
        zeros: nothing but zeros.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, scaling: Scaling, width: int, zeros: bool) -> None:
        super().__init__()
        self._width, self._scaling, self._zeros = width, scaling, zeros
        self.register_buffer("offset", torch.tensor(scaling.offset), persistent=False)
        self.register_buffer("scale", torch.tensor(scaling.scale), persistent=False)

    def forward(self, state_NS: Tensor) -> Tensor:
        """Return fp32 ``[N, width]``."""
        if self._zeros:
            return self.offset.new_zeros(len(state_NS), self._width)
        state_NS, moves = state_NS.to(self.scale.device), self.scale != 0
        scaled = (state_NS - self.offset) / torch.where(moves, self.scale, 1.0)
        scaled = torch.where(moves, scaled, state_NS if self._scaling.constants_as_they_are else 0.0)
        if self._scaling.clipped:
            scaled = scaled.clamp(-1, 1)
        return F.pad(scaled, (0, self._width - scaled.shape[-1]))


class ActionCodec(nn.Module):
    """The network's actions to a simulator's.

    Args:
        config: conventions of the checkpoint.
        embodiment: the robot.
        parts: what the simulator's action is made of.

    Raises:
        ConfigError: a part that cannot be made of what the checkpoint gives.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, config: Gr00tConfig, embodiment: Embodiment, parts: Sequence[ActionPart]) -> None:
        super().__init__()
        self.converter = ActionConverter(config, parts)
        self.register_buffer("offset", torch.tensor(embodiment.action.offset), persistent=False)
        self.register_buffer("scale", torch.tensor(embodiment.action.scale), persistent=False)

    @property
    def size(self) -> int:
        """A."""
        return len(self.offset)

    def forward(self, normalised_NHA: Tensor) -> Tensor:
        """Return fp32 ``[N, H, A]`` in the simulator's units, within its bounds."""
        return self.converter(self.offset + self.scale * normalised_NHA)  # type: ignore[no-any-return]
