"""LoRA by peft: which layers, fresh weights from the run's own generator, peft's names on disk.

peft wraps the layers and keeps the adapters' weights; the products are made in :mod:`rlvla.networks.linear`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from rlvla import lora, weight_files
from rlvla.checkpoint_header import ADAPTER as FILE
from rlvla.checkpoint_header import AdapterHeader
from rlvla.errors import CheckpointError, ConfigError
from rlvla.networks.linear import ADAPTER

_PREFIX = "base_model.model."


def start(
    network: nn.Module,
    options: lora.Options,
    adapter: AdapterHeader | None,
    layers: lora.Layers,
    generator: torch.Generator,
    *,
    never: tuple[str, ...],
    vision: tuple[str, ...],
) -> LoraConfig:
    """Give a network the adapters that its options ask for, with the checkpoint's weights where it has one.

    Args:
        network: of layers under their public names.
        options: of its model, which :func:`rlvla.lora.misfits` found nothing wrong with.
        adapter: in the checkpoint; None: there is none.
        layers: that may get one.
        generator: of fresh weights.
        never: first parts of names of layers that get none.
        vision: of those that get one with ``tune_vision`` only.

    Raises:
        ConfigError, CheckpointError: of :func:`stored` and :func:`read`.
    """
    names, vision = lora.names(options, adapter, layers), () if options.tune_vision else vision
    if names is None:
        assert adapter is not None
        adapted = stored(network, adapter, never, vision)
    else:
        adapted = targets(network, names, (*never, *vision))
    made = add(network, adapted, *lora.size(options, adapter), generator)
    if adapter is not None:
        read(network, made, adapter)
    return made


def targets(network: nn.Module, names: tuple[str, ...], without: tuple[str, ...]) -> list[str]:
    """Return the layers that get an adapter: those whose last name is among ``names``.

    Args:
        network: of layers under their public names.
        names: last parts of names.
        without: first parts of names of layers that get none.
    """
    layers = [name for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    return [name for name in layers if not name.startswith(without) and name.rpartition(".")[2] in names]


def stored(network: nn.Module, adapter: AdapterHeader, without: tuple[str, ...], vision: tuple[str, ...]) -> list[str]:
    """Return the layers that an adapter on disk has weights of.

    Args:
        network: that it is to belong to.
        adapter: its header.
        without: first parts of names of layers that get none.
        vision: likewise, of layers that get one with ``model.tune_vision`` only, while that is not set; else nothing.

    Raises:
        ConfigError: layers of the vision tower, without ``model.tune_vision``.
        CheckpointError: layers that the network has not; or the adapter's file is damaged or missing.
    """
    if not adapter.layers:
        raise CheckpointError(
            f"{adapter.folder} lacks {adapter.file.name}, the adapter's weights: copy it from the run that wrote it"
        )
    if vision and (seen := [name for name in adapter.layers if name.startswith(vision)]):
        raise ConfigError(
            f"model.tune_vision: got False, but the adapter in {adapter.folder} has {len(seen)} layers of the vision tower and "
            f"the projector, {seen[0]} among them: set it to True, or merge the adapter first"
        )
    known = {*targets(network, tuple({name.rpartition(".")[2] for name in adapter.layers}), without)}
    if unknown := [name for name in adapter.layers if name not in known]:
        raise CheckpointError(
            f"the adapter in {adapter.folder} is of another model: it has {len(unknown)} layers that get none in this one, "
            f"{unknown[0]} among them; take an adapter that was trained on this checkpoint"
        )
    return list(adapter.layers)


def add(network: nn.Module, layers: list[str], rank: int, alpha: float, generator: torch.Generator) -> LoraConfig:
    """Put fresh adapters around layers, which change nothing yet and are trained; returns their description."""
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=layers)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    inject_adapter_in_model(config, network, adapter_name=ADAPTER)
    torch.set_rng_state(state)  # peft drew weights of its own
    for name, parameter in network.named_parameters():
        if f".lora_A.{ADAPTER}." in name:
            parameter.data = (torch.randn(parameter.shape, generator=generator) / rank).to(parameter.device)
        elif f".lora_B.{ADAPTER}." in name:
            parameter.data = torch.zeros(parameter.shape, device=parameter.device)
    for parameter in weights(network).values():
        parameter.requires_grad_(True)
    return config


def read(network: nn.Module, made: LoraConfig, adapter: AdapterHeader) -> None:
    """Take an adapter's weights from disk.

    Raises:
        CheckpointError: another rank, scale, or other layers than here.
    """
    for name, mine, there in (("rank", made.r, adapter.rank), ("alpha", made.lora_alpha, adapter.alpha)):
        if mine != there:
            raise CheckpointError(
                f"{adapter.folder} has {name} {there:g}; model.lora_{name} makes it {mine:g} here: leave it as it was trained"
            )
    wanted, found = weights(network), weight_files.read_tensors(adapter.file)
    if (adapted := layers(wanted)) != list(adapter.layers):
        raise CheckpointError(
            f"{adapter.folder} is an adapter of {_kinds(adapter.layers)}, here they are {_kinds(adapted)}: leave "
            "model.lora_targets and model.tune_vision as it was trained"
        )
    weight_files.compare(adapter.folder, wanted, found)
    weight_files.copy_weights(wanted, found)


def _kinds(names: Sequence[str]) -> str:
    return f"{len(names)} layers ({', '.join(sorted({name.rpartition('.')[2] for name in names}))})"


def save(network: nn.Module, made: LoraConfig, base: str | None, folder: Path) -> None:
    """Write all adapters in peft's format, with the name of the checkpoint below them."""
    made.base_model_name_or_path = base
    made.save_pretrained(str(folder))
    weight_files.write_tensors(weights(network), folder / FILE)


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
    """Return the weights under public names; those of layers with an adapter in fp32, the adapter added."""
    found: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if ".lora_" not in name:
            found[name.replace(".base_layer.", ".")] = tensor
    for name, module in network.named_modules():
        if hasattr(module, "base_layer"):
            delta: Tensor = module.get_delta_weight(ADAPTER)
            found[f"{name}.weight"] = module.base_layer.weight.float() + delta.float()
    return found
