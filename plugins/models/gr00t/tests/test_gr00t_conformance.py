from typing import Any, ClassVar

import pytest

from rlvla.specs import ActionPart
from rlvla.testing import ModelConformance

ACTION = (ActionPart("move", 2, low=-2.0, high=1.0), ActionPart("grip", 1, "gripper", closes_at="high"))
COMMON = {"embodiment_tag": "gr1", "horizon": 2, "dtype": "fp32", "pad_to": 160}
HEAD = {"tune": "head", "tune_vision": False, "lora_rank": None, "lora_targets": None}
ANNEALED = (
    HEAD
    | {"noise_level_final": 0.1, "noise_anneal_steps": 3, "noise": "flow_sde"}
    | {
        "keep_features": 8,
        "pad_to": 160,
    }
)
LORA = {"tune": "lora", "lora_rank": 4, "keep_features": 0, "state": "given"}


class _Gr00t(ModelConformance):
    """Of one way to run a tiny checkpoint."""

    name = "gr00t"
    action = ACTION
    rows = 3
    place: ClassVar[Any]
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _checkpoint(self, checkpoint):
        type(self).config = {"path": str(checkpoint), **COMMON, **self.options}
        type(self).variations = (ANNEALED, LORA)


class TestOneStep(_Gr00t):
    pass


class TestAllSteps(_Gr00t):
    options = {"stochastic_steps": "all", "noise": "flow_cps", "entries": "step", "padding": "masked", "pad_to": None}


class TestLearnedNoise(_Gr00t):
    options = LORA | {"noise": "reinflow", "tune_vision": True, "lora_targets": ("q_proj", "fc1")}
