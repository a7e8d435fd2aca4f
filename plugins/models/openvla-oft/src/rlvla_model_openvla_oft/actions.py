"""From tokens to a simulator's actions: bins, the data set's ranges, and the words of :mod:`rlvla.specs`.

A checkpoint's action is a row of numbers in its data set's convention: pose deltas (normalised, or metres and radians)
and grippers, or joint positions. A simulator names the parts of its action; each is converted by its name alone.

Letters: N rows, H actions in a chunk, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlvla.errors import ConfigError
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
    least: Tensor
    greatest: Tensor

    def __init__(self, config: OpenVlaOftConfig, statistics: Statistics, parts: Sequence[ActionPart]) -> None:
        super().__init__()
        self._config, self._parts = config, tuple(parts)
        problems = [problem for part in parts for problem in self._misfits(part)]
        if problems:
            raise ConfigError(problems)
        tensors = {
            "low": torch.tensor(statistics.low),
            "high": torch.tensor(statistics.high),
            "scaled": torch.tensor(statistics.scaled),
            "least": torch.tensor([part.low for part in parts for _ in range(part.size)]),
            "greatest": torch.tensor([part.high for part in parts for _ in range(part.size)]),
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, normalised_NHA: Tensor) -> Tensor:
        """Return fp32 ``[N, H, A]`` in the simulator's units, within its bounds."""
        wide_A = self.high - self.low + 1e-8
        raw_NHA = torch.where(self.scaled, 0.5 * (normalised_NHA + 1) * wide_A + self.low, normalised_NHA)
        sizes = [part.size for part in self._parts]
        converted = [self._convert(part, raw) for part, raw in zip(self._parts, raw_NHA.split(sizes, -1), strict=True)]
        return torch.cat(converted, -1).clamp(self.least, self.greatest)

    def _misfits(self, part: ActionPart) -> list[str]:
        config, problems = self._config, []
        if part.kind == "gripper":
            if part.closes_at is None:
                problems.append(f"the simulator does not say which end closes {part.name!r} (ActionPart.closes_at)")
            return [f"model: {problem}" for problem in problems]
        if part.kind != "delta":
            return []
        turns = part.rotation not in ("none", config.rotation)
        if config.action_unit == "normalised" and part.unit != "normalised":
            problems.append(
                f"model.action_unit: got 'normalised', but the simulator takes {part.name!r} in {part.unit}: set 'si', "
                "if the checkpoint's statistics are in metres and radians"
            )
        elif part.unit == "normalised" and part.scale is None and (config.action_unit == "si" or turns):
            problems.append(
                f"model.action_unit: got {config.action_unit!r}, but the simulator does not say how far a value of 1 moves "
                f"{part.name!r} (ActionPart.scale)"
            )
        if turns and (config.rotation, part.rotation) != ("euler_xyz", "axis_angle"):
            problems.append(
                f"model.rotation: got {config.rotation!r}, but the simulator takes {part.name!r} as {part.rotation}: only "
                "euler_xyz can be turned into axis_angle"
            )
        return problems

    def _convert(self, part: ActionPart, raw: Tensor) -> Tensor:
        if part.kind == "gripper":
            return self._gripper(part, raw)
        if part.kind != "delta":
            return raw
        to_si = part.scale if self._config.action_unit == "normalised" and part.scale is not None else 1.0
        from_si = part.scale if part.unit == "normalised" and part.scale is not None else 1.0
        if part.rotation not in ("none", self._config.rotation):
            return euler_to_axis_angle(raw * to_si) / from_si
        return raw if self._config.action_unit == "normalised" else raw / from_si

    def _gripper(self, part: ActionPart, raw: Tensor) -> Tensor:
        low, high = self._config.gripper_range
        share = ((raw - low) / (high - low)).clamp(0, 1)
        if self._config.gripper_binary:
            share = (share > 0.5).to(raw.dtype)
        if self._config.gripper_closes_at != part.closes_at:
            share = 1 - share
        return part.low + share * (part.high - part.low)


def euler_to_axis_angle(angle: Tensor) -> Tensor:
    """Return axis times angle of rotations about x, then y, then z (fixed axes), radians ``[..., 3]``."""
    (cx, cy, cz), (sx, sy, sz) = (angle / 2).cos().unbind(-1), (angle / 2).sin().unbind(-1)
    w = cx * cy * cz + sx * sy * sz
    xyz = (
        torch.stack([sx * cy * cz - cx * sy * sz, cx * sy * cz + sx * cy * sz, cx * cy * sz - sx * sy * cz], -1)
        * torch.where(w < 0, -1.0, 1.0)[..., None]
    )
    sine = xyz.norm(dim=-1, keepdim=True)
    turned = 2 * torch.atan2(sine, w.abs()[..., None])
    return torch.where(sine > 1e-8, xyz / sine.clamp_min(1e-8) * turned, 2 * xyz)
