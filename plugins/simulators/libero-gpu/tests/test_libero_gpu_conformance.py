"""The contract that every rlvla simulator keeps, by LIBERO's full physics."""

import pytest
from libero_gpu_world import needs_warp, small

from rlvla.testing import SimulatorConformance

pytestmark = [needs_warp, pytest.mark.gpu, pytest.mark.timeout(1800)]


class TestLiberoGpu(SimulatorConformance):
    name = "libero-gpu"
    config = {"num_envs": 3, "deterministic": True, **small()}
    variations = ({"layouts": None, "cameras": ("wrist",), "kept_tasks": 0, **small()},)
