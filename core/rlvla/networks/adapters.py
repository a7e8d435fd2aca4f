"""LoRA by peft: which layers, fresh weights from the run's own generator, peft's names on disk.

peft wraps the layers and keeps the adapters' weights; the products are made in :mod:`rlvla.networks.linear`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from rlvla.errors import ConfigError
from rlvla.networks.linear import ADAPTER

_PREFIX = "base_model.model."


def targets(network: nn.Module, names: tuple[str, ...], without: tuple[str, ...], hint: str = "") -> list[str]:
    """Return the layers that get an adapter: those whose last name is among ``names``.

    Args:
        network: of layers under their public names.
        names: last parts of names.
        without: first parts of names of layers that get none.
        hint: said where a name is unknown.

    Raises:
        ConfigError: a name that no layer has.
    """
    layers = [name for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    allowed = [name for name in layers if not name.startswith(without)]
    if unknown := [name for name in names if name not in {one.rpartition(".")[2] for one in allowed}]:
        there = sorted({name.rpartition(".")[2] for name in allowed})
        raise ConfigError(f"model.lora_targets: got {', '.join(unknown)}, wanted some of {', '.join(there)}{hint}")
    return [name for name in allowed if name.rpartition(".")[2] in names]


def add(network: nn.Module, layers: list[str], rank: int, alpha: float, generator: torch.Generator) -> LoraConfig:
    """Put fresh adapters around layers, which change nothing yet; returns their description."""
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=layers)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    inject_adapter_in_model(config, network, adapter_name=ADAPTER)
    torch.set_rng_state(state)  # peft drew weights of its own
    for name, parameter in network.named_parameters():
        if f".lora_A.{ADAPTER}." in name:
            parameter.data = (torch.randn(parameter.shape, generator=generator) / rank).to(parameter.device)
        elif f".lora_B.{ADAPTER}." in name:
            parameter.data = torch.zeros(parameter.shape, device=parameter.device)
    return config


def weights(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return all adapters' weights under peft's names."""
    return {
        _PREFIX + name.replace(f".{ADAPTER}.", "."): parameter
        for name, parameter in network.named_parameters()
        if ".lora_" in name
    }


def layers(names: Iterable[str]) -> list[str]:
    """Return the layers, under their public names, that weights under peft's names are adapters of."""
    return sorted({name.removeprefix(_PREFIX).partition(".lora_")[0] for name in names})


@torch.no_grad()
def merged(network: nn.Module) -> dict[str, Tensor]:
    """Return the weights under public names with each adapter added to its layer, in fp32 and then the layer's dtype."""
    found: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if ".lora_" not in name:
            found[name.replace(".base_layer.", ".")] = tensor
    for name, module in network.named_modules():
        if hasattr(module, "base_layer"):
            delta: Tensor = module.get_delta_weight(ADAPTER)
            weight = module.base_layer.weight
            found[f"{name}.weight"] = (weight.float() + delta.float()).to(weight.dtype)
    return found
