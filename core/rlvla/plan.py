"""What a run will cost: seconds a step, hours to the end, memory, what binds it, and what would make it faster."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from rlvla import forecast
from rlvla.checks import Specs
from rlvla.configs import RunConfig
from rlvla.profile import Profile

if TYPE_CHECKING:
    from rlvla.engine import Engine

_GIB = 2.0**30


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


def text(config: RunConfig, specs: Specs, measured: Profile | None) -> str:
    """Return what ``rlvla plan`` prints.

    Args:
        config: of the run.
        specs: of the run.
        measured: latencies; None: nothing is said about time.
    """
    lines = [_work(config, specs, 0), _placement(config, specs, measured)]
    if specs.algo.unit == "demonstration":
        return "\n".join([*lines, "time: nothing is rolled out; see the first steps"])
    if measured is None:
        return "\n".join([*lines, "time: unknown; measure with `rlvla profile`, then give --profile FILE"])
    lines += [f"latencies: {measured.machine}", *_time(measured, config, specs, 0), _memory_by_device(measured, specs)]
    better = forecast.changes(measured, config, specs)
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


def _time(measured: Profile, config: RunConfig, specs: Specs, done: int) -> list[str]:
    found = forecast.forecast(measured, config, specs)
    busy = ", ".join(f"{name} {share:.0%}" for name, share in sorted(found.busy.items(), key=lambda one: -one[1]))
    return [
        f"about {found.step_seconds:.2g} s a step, {_duration((config.run.steps - done) * found.step_seconds)} to the end, "
        "with episodes of full length, evaluation apart",
        f"{found.env_steps_per_second:.3g} env steps/s; at most {found.schedule_bound:.3g} under this schedule, "
        f"{found.device_bound:.3g} on these devices; busy: {busy}",
    ]


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
