"""LoRA as options of a model: rank, scale and layers as they are set, or as the adapter in the checkpoint has them.

Light: no torch. What puts adapters into a network is :mod:`rlvla.networks.adapters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rlvla.checkpoint_header import AdapterHeader

RANK = 32
"""Where neither options nor an adapter say another one."""


class Options(Protocol):
    """Of a model's config."""

    @property
    def tune(self) -> str:
        """``lora``, or what else training may change."""

    @property
    def tune_vision(self) -> bool:
        """Adapters in the vision tower too."""

    @property
    def lora_rank(self) -> int | None:
        """Rank of the adapters."""

    @property
    def lora_alpha(self) -> float | None:
        """Adapters are scaled by this over the rank."""

    @property
    def lora_targets(self) -> tuple[str, ...] | None:
        """Last part of the names of layers that get adapters."""


@dataclass(frozen=True)
class Layers:
    """A network's layers that may get adapters: last part of a name to the smaller of inputs and outputs, over all that end so."""

    language: Mapping[str, int]
    vision: Mapping[str, int]
    """Of vision towers and projector."""
    further: Mapping[str, int] = field(default_factory=dict)
    """Such as get one only by name."""
    absent: frozenset[str] = frozenset()
    """Names of published target lists for which no layer is here."""

    def sizes(self, vision: bool) -> dict[str, int]:
        """Return those that may get one, with the vision tower's or without."""
        found = {**self.language, **self.further}
        for name, size in self.vision.items() if vision else ():
            found[name] = min(size, found.get(name, size))
        return found


def size(config: Options, adapter: AdapterHeader | None) -> tuple[int, float]:
    """Return rank and alpha: as set, else the checkpoint's adapter's, else 32 and the rank."""
    rank = config.lora_rank or (adapter.rank if adapter is not None else RANK)
    return rank, config.lora_alpha or (adapter.alpha if adapter is not None else float(rank))


def names(config: Options, adapter: AdapterHeader | None, layers: Layers) -> tuple[str, ...] | None:
    """Return last parts of the names of layers that get adapters; None: the layers that the checkpoint's adapter has."""
    if config.lora_targets is not None:
        return tuple(name for name in config.lora_targets if name not in layers.absent)
    if adapter is not None:
        return None
    return tuple(dict.fromkeys([*layers.language, *(layers.vision if config.tune_vision else ())]))


def misfits(config: Options, adapter: AdapterHeader | None, layers: Layers, without: str) -> list[str]:
    """Return what is wrong with the options beside a checkpoint.

    Args:
        config: the options.
        adapter: in the checkpoint; None: there is none.
        layers: of the network.
        without: ``model.tune`` for a run without adapters.
    """
    if config.tune != "lora":
        if adapter is None:
            return []
        return [
            f"model.tune: got {config.tune!r}, but {adapter.folder} holds a LoRA adapter: 'lora', or export it first"
        ]
    problems = _targets(config, layers, without)
    if adapter is not None:
        problems += _unlike(config, adapter, layers)
    sizes, (rank, _) = layers.sizes(config.tune_vision), size(config, adapter)
    chosen = [name for name in names(config, adapter, layers) or () if name in sizes]
    if chosen and rank > sizes[smallest := min(chosen, key=lambda name: sizes[name])]:
        problems.append(
            f"model.lora_rank: got {rank}, wanted at most {sizes[smallest]}, which is what a layer {smallest!r} has of inputs or "
            "outputs: a lower rank, or other model.lora_targets"
        )
    return problems


def _targets(config: Options, layers: Layers, without: str) -> list[str]:
    """Return why layers that were named get no adapters."""
    targets, sizes = config.lora_targets, layers.sizes(config.tune_vision)
    if targets is None:
        return []
    if not targets:
        return [f"model.lora_targets: empty; name layers, or set model.tune to {without!r}"]
    if unknown := [
        name for name in targets if name not in sizes and (name not in layers.absent or not {*targets} & {*sizes})
    ]:
        hint = "" if config.tune_vision else " (layers of the vision tower and the projector need model.tune_vision)"
        if "all-linear" in unknown:
            hint = "; without lora_targets, and with model.tune_vision, all linear layers get adapters"
        return [f"model.lora_targets: got {', '.join(unknown)}, wanted some of {', '.join(sorted(sizes))}{hint}"]
    if config.tune_vision and not {*targets} & {*layers.vision}:
        return [
            f"model.tune_vision: got True, but model.lora_targets {targets} names no layer of the vision tower or the projector: "
            f"add some of {', '.join(layers.vision)}, or leave tune_vision out"
        ]
    return []


def _unlike(config: Options, adapter: AdapterHeader, layers: Layers) -> list[str]:
    """Return which options say otherwise than the adapter."""
    rank, alpha = size(config, adapter)
    problems = [
        f"model.lora_{name}: got {got:g}, the adapter in {adapter.folder} has {name} {there:g}: leave the option out"
        for name, got, there in (("rank", rank, adapter.rank), ("alpha", alpha, adapter.alpha))
        if got != there
    ]
    there = sorted({name.rpartition(".")[2] for name in adapter.layers})
    if config.lora_targets is not None and there and sorted({*config.lora_targets} - layers.absent) != there:
        problems.append(
            f"model.lora_targets: got {', '.join(config.lora_targets)}, the adapter in {adapter.folder} is of "
            f"{', '.join(there)}: leave the option out"
        )
    return problems
