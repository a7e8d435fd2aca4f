"""Which packages the batched physics needs, and where they are. Light: the descriptor asks it.

``rlvla-sim-libero`` pins mujoco 3.3.7, whose success is comparable with published numbers; MuJoCo Warp wants 3.13 or later.
So these packages are an extra, not requirements, and ``rlvla simulators install libero-gpu`` lays them over this interpreter
in an environment of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvla.errors import SimulatorError
from rlvla.plugin import unmet_requirements

if TYPE_CHECKING:
    from rlvla_sim_libero_gpu import LiberoGpuConfig
    from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator

DISTRIBUTION = "rlvla-sim-libero-gpu"
REQUIREMENTS = ("mujoco>=3.13,<3.18", "mujoco-warp>=4,<5", "torch>=2.9")
"""Of the extra ``gpu``."""


def missing() -> list[str]:
    """Return what the batched physics wants and this interpreter does not have."""
    return unmet_requirements(DISTRIBUTION, extra="gpu")


def runs_apart(config: LiberoGpuConfig) -> bool:
    """Say whether workers need the environment of their own, whatever the settings are."""
    return bool(missing())


def simulator(config: LiberoGpuConfig, rows: int) -> LiberoGpuSimulator:
    """Return N = ``rows`` environments.

    Raises:
        SimulatorError: packages, a device or files are missing; says what to do.
    """
    if lacking := missing():
        raise SimulatorError(
            f"libero-gpu needs {'; '.join(lacking)}: rlvla simulators install libero-gpu (an environment over this one, where "
            f"'libero' keeps its mujoco), or pip install --no-deps mujoco==3.17.0 mujoco-warp==4.0.0 warp-lang==1.19.0 where nobody needs another"
        )
    from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator

    return LiberoGpuSimulator(config, rows)
