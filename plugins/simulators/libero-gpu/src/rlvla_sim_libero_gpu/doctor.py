"""What ``rlvla doctor`` looks at before a LIBERO run on a GPU: packages, files, the device, kernels, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlvla.errors import ConfigError, SimulatorError
from rlvla.specs import Check
from rlvla_sim_libero import published, startup
from rlvla_sim_libero.task_files import TaskFiles
from rlvla_sim_libero_gpu import LiberoGpuConfig, describe, packages

if TYPE_CHECKING:
    import torch


def checks(config: LiberoGpuConfig) -> Iterator[Check]:
    """Yield what was found, cheapest first; later ones only where those before are in order."""
    try:
        spec = describe(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Check("settings", False, problem, "correct the option named first")
        return
    yield Check("settings", True, f"{len(spec.tasks)} tasks, {spec.max_episode_steps} steps an episode")
    problems = [*packages.missing(), *startup.package_problems()]
    for problem in problems:
        yield Check("packages", False, problem, "rlvla simulators install libero-gpu")
    if problems:
        return
    names = (*startup.PINS, "mujoco-warp", "warp-lang", "torch")
    yield Check("packages", True, ", ".join(f"{name} {startup.version(name)}" for name in names))
    if warning := startup.mujoco_warning(published(config)):
        yield Check("mujoco", True, warning, "measure success with sim 'libero'", warning=True)
    try:
        startup.import_libero()
        files = TaskFiles(config, spec.tasks)
        files.check()
    except SimulatorError as error:
        yield Check("assets", False, str(error), "see there")
        return
    yield Check("assets", True, str(startup.assets_folder()))
    yield from _device(config, files.bddl(0))


def _device(config: LiberoGpuConfig, bddl: Path) -> Iterator[Check]:
    from rlvla.mujoco_warp.start import cache_folder, checked_device

    try:
        device = checked_device(config.device)
    except SimulatorError as error:
        yield Check("device", False, str(error), "see there")
        return
    yield Check("device", True, str(device))
    kept = sum(one.stat().st_size for one in cache_folder().rglob("*") if one.is_file())
    yield Check(
        "kernels",
        True,
        f"{kept / 2**20:.0f} MiB of compiled kernels in {cache_folder()}"
        + ("" if kept else ": the first start compiles them, two to five minutes"),
    )
    yield _memory(config, bddl, device)


def _memory(config: LiberoGpuConfig, bddl: Path, device: torch.device) -> Check:
    """Compile the first task, and reckon what its worlds take."""
    import mujoco

    from rlvla.mujoco_warp.room import room_for
    from rlvla_sim_libero.scene import Scene
    from rlvla_sim_libero_gpu.appearance import drawable
    from rlvla_sim_libero_gpu.batch import SAVINGS

    scene = Scene(bddl)
    try:
        model = drawable(scene.model, config.texture_size)
        pixels = len(config.cameras) * config.image_size**2
        count, contacts, constraints = config.num_envs, config.contacts, config.constraints
        room = room_for(model, mujoco.MjData(model), count, contacts, constraints, pixels, device, None, SAVINGS)
    except SimulatorError as error:
        return Check("memory", False, str(error), "see there")
    finally:
        scene.close()
    needed, free = (one / 2**30 for one in (room.needed, room.free))
    return Check("memory", True, f"{count} worlds of one task need about {needed:.1f} GiB, free: {free:.1f} GiB")
