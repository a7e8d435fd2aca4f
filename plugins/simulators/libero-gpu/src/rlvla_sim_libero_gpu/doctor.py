"""What ``rlvla doctor`` looks at before a LIBERO run on a GPU: packages, files, the device, kernels, memory."""

from __future__ import annotations

from collections.abc import Iterator

from rlvla.errors import ConfigError, SimulatorError
from rlvla.specs import Check
from rlvla_sim_libero import published, startup
from rlvla_sim_libero.task_files import TaskFiles
from rlvla_sim_libero_gpu import LiberoGpuConfig, describe, packages

WORLD_GIB = 0.004
"""A world of libero_spatial task 0 with room for 160 contacts and 400 constraint rows and two pictures of 256 pixels (measured
on an H200: 3.7 GiB for 1024)."""


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
        TaskFiles(config, spec.tasks).check()
    except SimulatorError as error:
        yield Check("assets", False, str(error), "see there")
        return
    yield Check("assets", True, str(startup.assets_folder()))
    yield from _device(config)


def _device(config: LiberoGpuConfig) -> Iterator[Check]:
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
        + ("" if kept else ": the first start compiles them, two to four minutes"),
    )
    if device.type == "cuda":
        import torch

        free = torch.cuda.mem_get_info(device)[0] / 2**30
        needed = WORLD_GIB * config.num_envs
        found = f"{config.num_envs} worlds need about {needed:.1f} GiB, free: {free:.1f} GiB"
        yield Check("memory", needed < free, found, "" if needed < free else "lower num_envs")
