from typing import Any, ClassVar

import pytest

from rlvla.specs import ActionPart
from rlvla.testing import ModelConformance

ACTION = (ActionPart("move", 2, low=-2.0, high=1.0), ActionPart("grip", 1, "gripper", closes_at="high"))
COMMON = {"unnorm_key": "reach", "horizon": 2, "dtype": "fp32"}
TOP = {"top_k": 5, "keep_vision": True, "temperature": 1.2}
TOKENS = {"head": "tokens", "gaussian": "fixed", "proprio": False, "tune_vision": False, **TOP}
L1 = {"head": "l1", "gaussian": "learned", "proprio": True, "decoding": "parallel", "tune": "lora", "lora_rank": 4}
FULL = {"tune": "full", "rollout": "fp8", "lora_rank": None}


class _Oft(ModelConformance):
    """Of one way to run a tiny checkpoint."""

    name = "openvla-oft"
    action = ACTION
    rows = 3
    place: ClassVar[Any]
    fixture = "checkpoint"
    options: ClassVar[dict[str, Any]] = {}
    further: ClassVar[tuple[dict[str, Any], ...]] = ()

    @pytest.fixture(autouse=True)
    def _checkpoint(self, request):
        path = {name: str(request.getfixturevalue(name)) for name in ("checkpoint", "headed")}
        type(self).config = {"path": path[self.fixture], **COMMON, **self.options}
        type(self).variations = (*self.further, {"path": path["headed"], **L1}, {"path": path["checkpoint"], **TOKENS})


class TestTokens(_Oft):
    options = {"cameras": ("primary", "wrist"), "lora_rank": 4}
    further = (TOP, FULL)


class TestL1(_Oft):
    fixture = "headed"
    options = {"head": "l1", "gaussian": "learned", "proprio": True, "lora_rank": 4}
    further = (FULL,)


class TestAutoregressive(_Oft):
    options = {"decoding": "autoregressive", "horizon": 1, "preset": "rlinf", "tune": "full", "tune_vision": True}
    further = ({"top_k": 5, "temperature": 1.2}, {"decoding": "parallel"})
