"""What models name as units is gathered one at a time, and two ranks are one: their gradients, and weights after a step."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvla import ranks, sharding
from rlvla.configs import TrainConfig
from rlvla.noise import Noise
from rlvla.optimizer import Optimizer
from rlvla.specs import ActionPart
from rlvla.testing import ModelConformance
from rlvla_model_gr00t import tiny as tiny_gr00t
from rlvla_model_openvla_oft import tiny as tiny_oft
from rlvla_model_openvla_oft.header import LlamaShape
from rlvla_model_tiny.model import TinyModel

ROWS = 6
OFT = {"unnorm_key": "reach_no_noops", "horizon": 2, "dtype": "fp32", "tune": "full", "recompute": True}
GR00T = {"embodiment_tag": "gr1", "horizon": 2, "dtype": "fp32", "pad_to": 160}
VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
"""Read outside of any unit."""
KINDS = {
    "gr00t": ("gr00t", GR00T),
    "gr00t-lora": ("gr00t", {**GR00T, "tune": "lora", "lora_rank": 4, "tune_vision": True}),
    "openvla-oft": ("openvla-oft", OFT),
    "openvla-oft-vision": ("openvla-oft", {**OFT, "tune_vision": True}),
    "openvla-oft-lora": ("openvla-oft", {**OFT, "tune": "lora", "lora_rank": 4, "tune_vision": True}),
}


def checkpoints(place: Path) -> None:
    """Write small ones with several layers."""
    tiny_gr00t.write(place / "gr00t", action_dim=3, state_dim=4, tags=("new_embodiment", "gr1"), values=1)
    llama = LlamaShape(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4)
    tiny_oft.write(place / "openvla-oft", action_dim=3, state_dim=4, data_sets=("reach_no_noops", "other"), llama=llama)


class Maker(ModelConformance):
    """Makes models and observations."""

    kind = "model"
    rows = ROWS
    action = (ActionPart("move", 2, low=-2.0, high=1.0), ActionPart("grip", 1, "gripper", closes_at="high"))


def trained(kind: str, place: Path, rows: slice, units: bool = True) -> dict[str, Any]:
    """Take one optimizer step on some rows; returns the weights, whole, the norm, and most numbers gathered at once.

    Adam works on many tensors in one call, as on a GPU, where plain ones beside cut ones are refused.
    """
    name, options = KINDS[kind]
    maker = type("Of", (Maker,), {"name": name, "config": {**options, "path": str(place / name)}})()
    model = maker.model(values=None)  # its head would be most of such a small model
    observation = maker.observation()
    action = maker.acted(model, observation, Noise(torch.arange(ROWS)))
    if not units:
        model.wrap_units = tuple  # type: ignore[method-assign,assignment]
    cut = ranks.world() > 1
    if cut:
        sharding.shard(model)
    count = sharding.Gathered(model)
    optimizer = Optimizer(model, TrainConfig(learning_rate=1e-2))
    for group in optimizer.adam.param_groups:
        group["foreach"] = True
    evaluation = model.evaluate(model.preprocess(observation[rows]), action.replay[rows])
    count.look()
    evaluation.logp.sum().backward()
    norm = optimizer.update()
    with sharding.gathered(model):
        weights = {name: one.detach().clone() for name, one in model.trainable().items()}
    return {"weights": weights, "norm": norm, "most": count.most}


RANK = """
import sys, pathlib, torch, torch.distributed as dist
sys.path.insert(0, {folder!r})
import test_sharding as t
rank, place = int(sys.argv[1]), pathlib.Path({place!r})
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + str(place / "store"), rank=rank, world_size=2)
for kind in t.KINDS:
    rows = slice(0, 4) if rank == 0 else slice(4, t.ROWS)
    found = {{"units": t.trained(kind, place, rows), "none": t.trained(kind, place, rows, units=False)}}
    torch.save(found, place / (kind + "." + str(rank)))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what both ranks have to say, and of the checkpoints."""
    place = tmp_path_factory.mktemp("ranks")
    checkpoints(place)
    code = RANK.format(folder=str(Path(__file__).parent), place=str(place))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (place / "said").open("w") as said:
        both = [
            subprocess.Popen([sys.executable, "-c", code, str(rank)], env=environment, stderr=said) for rank in (0, 1)
        ]
        assert [process.wait(250) for process in both] == [0, 0], (place / "said").read_text()
    return place


@pytest.mark.parametrize("kind", list(KINDS))
def test_two_ranks_with_units_are_one_and_gather_less_at_once(place: Path, kind: str) -> None:
    alone = trained(kind, place, slice(0, ROWS))
    sizes = {name: one.numel() for name, one in alone["weights"].items()}
    there, words = sum(sizes.values()), sum(size for name, size in sizes.items() if name.endswith(VOCABULARY))
    for rank in (0, 1):
        found = torch.load(place / f"{kind}.{rank}", weights_only=True)
        for how in ("units", "none"):
            assert found[how]["norm"] == pytest.approx(alone["norm"], rel=1e-5)
            for name, wanted in alone["weights"].items():
                torch.testing.assert_close(found[how]["weights"][name], wanted, rtol=0, atol=2e-4, msg=name)
        assert found["none"]["most"] == there
        assert found["units"]["most"] - words < 0.5 * (there - words)


def test_a_unit_whose_matrix_others_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Suite(ModelConformance):
        name = "tiny"
        config = {"horizon": 2, "bins": 7}

    evaluate = TinyModel.evaluate

    def leaky(self: Any, inputs: Any, replay: Any) -> Any:
        found = evaluate(self, inputs, replay)
        matrix = next(one for one in self.trunk.parameters() if one.dim() > 1)
        found.value = found.value + 0.0 * matrix.sum()
        return found

    Suite().test_wrap_units_are_whole_while_they_compute()
    monkeypatch.setattr(TinyModel, "evaluate", leaky)
    with pytest.raises(Exception, match="DTensor"):
        Suite().test_wrap_units_are_whole_while_they_compute()
