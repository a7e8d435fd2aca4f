"""What tests of the batched backend share."""

import pytest

from rlvla_sim_tabletop import backends

GPU = {"backend": "gpu", "device": "cpu"}
"""Batched physics where there is no GPU."""
needs_warp = pytest.mark.skipif(bool(backends.missing()), reason=f"backend gpu needs {'; '.join(backends.missing())}")
