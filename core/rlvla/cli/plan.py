"""``rlvla plan``: what a run will cost, what binds it, and what would make it faster; nothing is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlvla import configs
from rlvla.checks import check, on_gpus
from rlvla.cli import options, train
from rlvla.configs import RunConfig
from rlvla.devices import cluster_address, usable_cores, visible_gpus
from rlvla.errors import ConfigError, RlvlaError

USAGE = """usage: rlvla plan [recipe.yaml|recipe.py] [--profile FILE | --like RUN] [--machines N] [--cores N] [options of rlvla train]

Says how the environments are split, where everything runs, how fast it will be, what binds it, how many hours and how much
memory it takes, and which settings would make it faster. The scheduler itself is played in virtual time.

--profile FILE takes latencies that `rlvla profile` measured; --like RUN those of an earlier run's timeline. Without either
they are what the plugins' authors measured, on as many cores as there are here, or --cores N. --machines N divides run.devices
among N machines like the one that was measured (1); what ranks take to add gradients up, and what the network takes, is left out.
Neither GPUs nor a checkpoint need be here: what is assumed instead is said first.
"""


def main(words: Sequence[str]) -> int:
    if "-h" in words or "--help" in words:
        print(USAGE)
        return 0
    path, rest = options.take(words, "profile", "a file that `rlvla profile` wrote")
    like, rest = options.take(rest, "like", "a run's folder")
    machines, rest = options.take(rest, "machines", "a number of machines")
    cores, rest = options.take(rest, "cores", "a number of cores of each machine")
    if path and like:
        raise ConfigError(f"--profile {path} and --like {like}: give one")
    file, _, rest = train.split(rest)
    config, assumed = _with_model(configs.read(configs.read_file(file) if file else {}, rest))
    away = _gpus_elsewhere(config)
    specs = check(config, elsewhere=away > 0)
    count = _number("machines", machines, specs.placement.devices, "run.devices") or 1
    usable = _number("cores", cores, 4096, "of a machine")

    from rlvla import plan, profile

    measured = profile.read(path) if path else profile.of_run(Path(like).expanduser()) if like else None
    if measured is None:
        measured = profile.typical(config, specs)
    elif problems := profile.mismatches(measured, config):
        raise ConfigError(problems)
    if measured is not None and usable is not None:
        measured = replace(measured, cores=usable)
    if away:
        each = measured.cores if measured is not None else usable or usable_cores()
        assumed.append(
            f"assumed: {away} of {specs.placement.devices} GPUs are elsewhere; machines: {count}, of {each} cores each (--machines, "
            "--cores)"
        )
    print("\n".join([*assumed, plan.text(config, specs, measured, count)]))
    return 0


def _with_model(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return a run whose model is as published where its checkpoint is not here, and what to say of that."""
    chosen = config.model
    try:
        chosen.describe()
    except RlvlaError as error:
        spec = chosen.plugin.assume(chosen.config) if chosen.plugin.assume is not None else None
        if spec is None:
            raise
        known = replace(chosen, plugin=replace(chosen.plugin, describe=lambda _: spec))
        return replace(config, model=known), [f"assumed: {chosen.name} as it is published, since {error}"]
    return config, []


def _gpus_elsewhere(config: RunConfig) -> int:
    """Return how many of a run's GPUs are not here, where no cluster is named that has them."""
    if config.run.runtime != "ray" or not on_gpus(config) or cluster_address() is not None:
        return 0
    return max(0, (config.run.devices or 1) - visible_gpus())


def _number(option: str, text: str | None, most: int, of: str) -> int | None:
    """Return a flag's number.

    Raises:
        ConfigError: it is none, or too large.
    """
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ConfigError(f"--{option}: got {text!r}, wanted a number from 1 to {of} ({most})")
    return int(text)
