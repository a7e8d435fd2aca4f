"""What stands beside the vision-language model: value head, L1 action head, proprio projector; public parameter names.

Letters: N rows, H actions in a chunk, A action dimensions, D features, V values.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Features of the last prompt token to V values (RLinf's ``value_head``)."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, 512), nn.GELU(), nn.Linear(512, 128), nn.GELU(), nn.Linear(128, values, bias=False)
        )

    def forward(self, features_ND: Tensor) -> Tensor:
        """Return fp32 ``[N, V]``."""
        return self.mlp(features_ND.float())  # type: ignore[no-any-return]


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)  # type: ignore[no-any-return]


class _ResidualMlp(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList([_ResidualBlock(width) for _ in range(2)])
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))  # type: ignore[no-any-return]


class L1Head(nn.Module):
    """Features of an action's slots to the action, normalised."""

    def __init__(self, width: int, action_dim: int) -> None:
        super().__init__()
        self.model = _ResidualMlp(width * action_dim, width, action_dim)

    def forward(self, features_NHX: Tensor) -> Tensor:
        """Return fp32 ``[N, H, A]`` of ``[N, H, A * D]``."""
        return self.model(features_NHX.float())  # type: ignore[no-any-return]


class ProprioProjector(nn.Module):
    """The robot's state to one token."""

    def __init__(self, state_dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_dim, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        """Return ``[N, 1, D]`` in fp32."""
        return self.fc2(F.gelu(self.fc1(state.float())))[:, None]  # type: ignore[no-any-return]
