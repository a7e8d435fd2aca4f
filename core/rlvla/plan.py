"""What a run will cost: seconds a step, hours to the end, memory, what binds it, and what would make it faster."""

from __future__ import annotations

import shutil
from collections import defaultdict
from typing import TYPE_CHECKING

from rlvla import forecast, placement
from rlvla.checks import Specs
from rlvla.configs import RunConfig
from rlvla.profile import Profile

if TYPE_CHECKING:
    from rlvla.engine import Engine

_GIB = 2.0**30
_FEW = 8
"""Devices that are named one by one."""
_MANY = 50_000
"""Chunk steps of slots that a forecast plays, beyond which no other settings are tried: 1,000 take 0.1 s."""


def cost_line(engine: Engine) -> str:
    """Return one paragraph, after a short trial: it plays some chunks and makes a gradient, and leaves no trace."""
    from rlvla.measuring import measure

    config, specs = engine.config, engine.specs
    done = engine.graph.steps_done
    if specs.algo.unit == "demonstration":
        size = specs.algo.minibatch_size or specs.units_per_step
        of = f"{specs.units_per_step} demonstrated chunks, {-(-specs.units_per_step // size)} optimizer steps each"
        return f"{config.run.steps - done} steps of {of}; nothing is rolled out\n{_memory(engine)}"
    measured = engine.wait(measure(engine))
    lines = [_work(config, specs, done)]
    lines += ["time: see the steps before the resume"] if measured is None else _time(measured, config, specs, done)
    return "\n".join([*lines, _memory(engine)])


def text(config: RunConfig, specs: Specs, measured: Profile | None, machines: int = 1) -> str:
    """Return what ``rlvla plan`` prints.

    Args:
        config: of the run.
        specs: of the run.
        measured: latencies; None: nothing is said about time.
        machines: that the run's devices are divided among.
    """
    lines = [_work(config, specs, 0), _placement(config, specs, measured), *_each_device(config, specs, machines)]
    if specs.algo.unit == "demonstration":
        return "\n".join([*lines, "time: nothing is rolled out; see the first steps"])
    if measured is None:
        return "\n".join(
            [*lines, _controller(None, config), "time: unknown; measure with `rlvla profile`, then give --profile FILE"]
        )
    lines += [f"latencies: {measured.machine}", *_time(measured, config, specs, 0, machines)]
    lines.append(_memory_by_device(measured, specs))
    if forecast.chunk_steps(specs) > _MANY:
        return "\n".join([*lines, "faster: not looked for, to play a run of this size takes long; plan a part of it"])
    better = forecast.changes(measured, config, specs, machines)
    for optimisation, kind in ((False, "speed alone"), (True, "what is learned from, too")):
        some = [f"{one.option} ({one.factor:.2f} x)" for one in better if one.optimisation == optimisation]
        if some:
            lines.append(f"faster, changing {kind}: {', '.join(some)}")
    return "\n".join(lines)


def _work(config: RunConfig, specs: Specs, done: int) -> str:
    algo = specs.algo
    optimizer_steps = algo.passes * -(-specs.samples_per_step // (algo.minibatch_size or specs.samples_per_step))
    return (
        f"{config.run.steps - done} steps of {specs.units_per_step} {algo.unit}s: up to {specs.samples_per_step} chunks, "
        f"{specs.samples_per_step * specs.model.horizon} env steps and {optimizer_steps} optimizer steps each; "
        f"{specs.num_envs} environments in {len(specs.slots)} slots of {min(specs.slots)} to {max(specs.slots)}"
    )


def _placement(config: RunConfig, specs: Specs, measured: Profile | None) -> str:
    if specs.placement.devices > 1:
        return f"placement: {specs.placement} of {specs.placement.devices} devices ({config.run.runtime} runtime)"
    device = measured.device if measured is not None else config.run.device
    cores = f"{measured.cores} cores" if measured is not None else "CPU cores"
    simulators = device if specs.sim.device == "gpu" else cores
    generators = "generator" if config.run.generators == 1 else f"{config.run.generators} generators"
    return f"placement: simulators on {simulators}; {generators} and trainer together on {device} ({config.run.runtime} runtime)"


def _each_device(config: RunConfig, specs: Specs, machines: int) -> list[str]:
    """Return who is on each of several devices, one line for all that are alike."""
    placed = specs.placement
    if placed.devices == 1:
        return []
    nodes = forecast.machines_of(placed.devices, machines)
    routes = placement.Routes(placed, nodes, specs.slots, specs.cycle, config.run.sim_hosts)
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for device in range(placed.devices):
        sizes = [size for size, at in zip(specs.slots, routes.devices, strict=True) if at == device]
        parts = [f"{len(sizes)} slots of {min(sizes)} to {max(sizes)} environments"] if sizes else []
        if device in placed.generator:
            parts.append("a generator" if config.run.generators == 1 else f"{config.run.generators} generators")
        if device in placed.trainer:
            parts.append("a trainer rank")
        on = f"machine {nodes[device]}, " if machines > 1 else ""
        alike[f"{on}{{}}: {', '.join(parts) or 'nothing'}"].append(device)
    return [
        line.format(f"device {placement.written(some)}" + (" each" if len(some) > 1 else ""))
        for line, some in alike.items()
    ]


def _busy(found: forecast.Forecast) -> str:
    """Return how busy devices are, alike ones together."""
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for name, share in found.busy.items():
        kinds[name if len(found.busy) <= _FEW else "GPUs" if name.startswith("gpu-") else "cores"].append(share)
    ranges = sorted(kinds.items(), key=lambda one: -max(one[1]))
    return ", ".join(
        f"{name} {max(some):.0%}" if max(some) - min(some) < 0.005 else f"{name} {min(some):.0%} to {max(some):.0%}"
        for name, some in ranges
    )


def _time(measured: Profile, config: RunConfig, specs: Specs, done: int, machines: int = 1) -> list[str]:
    found = forecast.forecast(measured, config, specs, machines=machines)
    left_out = "evaluation" if specs.placement.devices == 1 else "evaluation, and adding gradients up over ranks,"
    return [
        f"about {found.step_seconds:.2g} s a step, {_duration((config.run.steps - done) * found.step_seconds)} to the end, "
        f"with episodes of full length, {left_out} apart",
        f"{found.env_steps_per_second:.3g} env steps/s; at most {found.schedule_bound:.3g} under this schedule, "
        f"{found.device_bound:.3g} on these devices; busy: {_busy(found)}",
        _controller(found, config),
    ]


def _controller(found: forecast.Forecast | None, config: RunConfig) -> str:
    """Return where the controller lives and, where a forecast tells, how much of its one core it takes."""
    ray = config.run.runtime == "ray"
    lives = f"controller: {'on the machine that starts the run' if ray else 'a thread of the process of the run'}"
    if found is None:
        return lives
    if found.controller <= 1:
        return f"{lives}; busy on {found.controller:.1%} of a core, by what calls take on another CPU"
    return (
        f"{lives}; it is the bound: it would need {found.controller:.1f} cores and has one, which leaves "
        f"{1 / found.controller:.2f} of what the devices could do. Fewer and larger slots (run.slots) are fewer calls"
    )


def _weights_gib(parameters: int, trainable: int) -> float:
    """Return GiB of weights, the acting copy, gradients and Adam's two moments, in fp32."""
    return (parameters + 4 * trainable) * 4 / _GIB


def _memory(engine: Engine) -> str:
    specs = engine.specs
    free = shutil.disk_usage(engine.directory).free
    return (
        f"memory: {_weights_gib(engine.parameters, engine.trainable):.2g} GiB for weights, gradients and optimizer, up to "
        f"{2 * _collected_gib(specs):.2g} GiB for the pictures of a training step; disk: {engine.trainable * 12 / _GIB:.2g} GiB a "
        f"checkpoint ({free / _GIB:.0f} GiB free)"
    )


def _memory_by_device(measured: Profile, specs: Specs) -> str:
    """Return what each device has to hold, as far as it is known."""
    known = specs.model.cost
    parts = []
    if known is not None and known.memory_gib is not None:
        parts.append(f"{measured.device}: {known.memory_gib:.0f} GiB for generator and trainer")
    elif measured.parameters:
        weights = _weights_gib(measured.parameters, measured.trainable)
        parts.append(f"{measured.device}: {weights:.2g} GiB for weights, gradients and optimizer")
    host = f"host: up to {2 * _collected_gib(specs):.2g} GiB for the pictures of a training step"
    if specs.sim.cost is not None:
        host += f", {specs.num_envs * specs.sim.cost.memory_gib:.2g} GiB for {specs.num_envs} environments"
    return f"memory: {'; '.join([*parts, host])}"


def _collected_gib(specs: Specs) -> float:
    pictures = sum(camera.height * camera.width * 3 for camera in specs.sim.cameras)
    return specs.samples_per_step * pictures / _GIB


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
