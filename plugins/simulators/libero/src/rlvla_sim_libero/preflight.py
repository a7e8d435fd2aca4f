"""What this machine lacks for a LIBERO run, from files and settings alone; asked before a model is loaded."""

from __future__ import annotations

import os

from rlvla.devices import usable_cores
from rlvla.errors import SimulatorError
from rlvla_sim_libero import LiberoConfig, describe, startup


def missing(config: LiberoConfig) -> list[str]:
    """Return a sentence for each thing that keeps workers from starting."""
    problems = startup.package_problems() or startup.missing_files()
    if problem := startup.memory_problem(config, config.num_envs, processes_of(config)):
        problems.append(problem)
    return problems or _of_what_draws() or _of_the_file(config)


def processes_of(config: LiberoConfig) -> int:
    """Return the number of worker processes of a run: one a core, each of one environment at least."""
    return min(config.num_envs, usable_cores())


def _of_what_draws() -> list[str]:
    """Return why no GL context can be made."""
    try:
        startup.set_environment()  # before MuJoCo is imported
        from rlvla_sim_libero.renderer import check_rendering

        check_rendering()
    except SimulatorError as error:
        return [str(error)]
    except Exception as error:  # MuJoCo's own import looks for EGL
        return [
            f"MuJoCo cannot draw: {type(error).__name__}: {error}. {startup.renderer_hint(os.environ['MUJOCO_GL'])}"
        ]
    return []


def _of_the_file(config: LiberoConfig) -> list[str]:
    """Return what LIBERO does not have of a task file; it is imported for this alone (two seconds)."""
    if config.bddl_file is None:
        return []
    from rlvla_sim_libero.task_files import TaskFiles

    try:
        startup.import_libero()
        TaskFiles(config, describe(config).tasks).check()
    except SimulatorError as error:
        return [str(error)]
    return []
