"""Weights that are drawn: heads that only RL adds, and whole networks for tests and for measuring speed."""

from __future__ import annotations

import torch
from torch import nn


def fresh_(module: nn.Module, generator: torch.Generator) -> None:
    """Draw new weights of the linear layers of a head."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def randomise_(network: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights, on their device, so that activations keep their size from layer to layer."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("weight") and parameter.ndim == 1:  # of norms
                parameter.fill_(1.0)
            elif name.endswith("scale_factor"):
                parameter.fill_(0.5)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                fan_in = parameter[0].numel() if parameter.ndim > 1 else len(parameter)
                scale = 1.0 if "embed_tokens" in name or parameter.shape[0] == 1 else fan_in**-0.5
                parameter.normal_(generator=generator).mul_(scale)
