"""Which backend runs where. Light: the descriptor asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvla.errors import SimulatorError
from rlvla.mujoco_warp import device_problem
from rlvla.plugin import unmet_requirements

if TYPE_CHECKING:
    from rlvla.simulator import Simulator
    from rlvla_sim_tabletop import TabletopConfig

DISTRIBUTION = "rlvla-sim-tabletop"
REQUIREMENTS = ("mujoco>=3.13,<4", "mujoco-warp>=4,<5", "torch>=2.9")
"""Of the extra ``gpu``."""


def missing() -> list[str]:
    """Return what the GPU backend wants and this interpreter does not have."""
    return unmet_requirements(DISTRIBUTION, extra="gpu")


def runs_apart(config: TabletopConfig) -> bool:
    """Say whether workers need the environment of their own: this interpreter lacks what the backend wants."""
    return config.backend == "gpu" and bool(missing())


def problems(config: TabletopConfig) -> list[str]:
    """Return options that do not go together."""
    found = []
    if config.backend == "cpu":
        found += [
            f"{option}: got {getattr(config, option)!r}, which changes nothing with backend 'cpu': leave it out, or take 'gpu'"
            for option, default in (("device", "cuda"), ("deterministic", False))
            if getattr(config, option) != default
        ]
    elif problem := device_problem(config.device):
        found.append(problem)
    return found


def simulator(config: TabletopConfig, rows: int) -> Simulator:
    """Return N = ``rows`` tables.

    Raises:
        SimulatorError: packages, a device or a renderer are missing; says what to do.
    """
    if config.backend == "cpu":
        from rlvla_sim_tabletop.simulator import TabletopSimulator

        return TabletopSimulator(config, rows)
    if lacking := missing():
        raise SimulatorError(
            f"backend: 'gpu' needs {'; '.join(lacking)}: pip install '{DISTRIBUTION}[gpu]'; where other packages forbid that "
            "(LIBERO's mujoco): rlvla simulators install tabletop"
        )
    from rlvla_sim_tabletop.batched import BatchedTabletop

    return BatchedTabletop(config, rows)
