from typing import Any, ClassVar

import pytest

from rlvla.specs import ActionPart
from rlvla.testing import ModelConformance

ACTION = (ActionPart("move", 2, low=-2.0, high=1.0), ActionPart("grip", 1, "gripper", closes_at="high"))
COMMON = {"unnorm_key": "reach", "horizon": 2, "dtype": "fp32", "lora_rank": 4, "keep_vision": False}
L1 = {"head": "l1", "gaussian": "learned", "decoding": "parallel", "tune": "full", "rollout": "fp8"}
TOKENS = {"head": "tokens", "top_k": 5, "keep_vision": True, "decoding": "parallel", "tune": "lora"}


class _Oft(ModelConformance):
    """Of one way to run a tiny checkpoint."""

    name = "openvla-oft"
    action = ACTION
    rows = 3
    place: ClassVar[Any]
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _checkpoint(self, checkpoint):
        type(self).config = {"path": str(checkpoint), **COMMON, **self.options}
        type(self).variations = (L1, TOKENS)


class TestTokens(_Oft):
    options = {"cameras": ("primary", "wrist")}


class TestL1(_Oft):
    options = {"head": "l1", "gaussian": "learned", "proprio": True}


class TestAutoregressive(_Oft):
    options = {"decoding": "autoregressive", "horizon": 1, "preset": "rlinf", "tune": "full", "tune_vision": True}
