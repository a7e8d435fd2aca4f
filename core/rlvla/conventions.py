"""From a checkpoint's action to a simulator's, in the words of :mod:`rlvla.specs`.

A checkpoint's action is a row of numbers in its data set's convention: pose deltas (normalised, or metres and radians)
and grippers, or joint positions. A simulator names the parts of its action; each is converted by its name alone.

Letters: N rows, H actions in a chunk, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from rlvla.errors import ConfigError
from rlvla.specs import ActionPart


class Convention(Protocol):
    """What a checkpoint's actions mean: options of a model's config."""

    @property
    def action_unit(self) -> Literal["normalised", "si"]:
        """Of position and rotation deltas: the simulator's normalised range, or metres and radians."""

    @property
    def rotation(self) -> Literal["axis_angle", "euler_xyz"]:
        """Form of rotation deltas."""

    @property
    def gripper_range(self) -> tuple[float, float]:
        """Ends of the gripper action."""

    @property
    def gripper_closes_at(self) -> Literal["low", "high"]:
        """End of ``gripper_range`` that closes the fingers."""

    @property
    def gripper_binary(self) -> bool:
        """Open or close entirely, never in between."""


class ActionConverter(nn.Module):
    """A checkpoint's actions to a simulator's.

    Args:
        convention: of the checkpoint.
        parts: what the simulator's action is made of.

    Raises:
        ConfigError: a part that cannot be made of what the checkpoint gives.
    """

    least: Tensor
    greatest: Tensor

    def __init__(self, convention: Convention, parts: Sequence[ActionPart]) -> None:
        super().__init__()
        self._config, self._parts = convention, tuple(parts)
        problems = [problem for part in parts for problem in self._misfits(part)]
        if problems:
            raise ConfigError(problems)
        for name, end in (("least", "low"), ("greatest", "high")):
            ends = torch.tensor([getattr(part, end) for part in parts for _ in range(part.size)])
            self.register_buffer(name, ends, persistent=False)

    def forward(self, raw_NHA: Tensor) -> Tensor:
        """Return fp32 ``[N, H, A]`` in the simulator's units, within its bounds."""
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
