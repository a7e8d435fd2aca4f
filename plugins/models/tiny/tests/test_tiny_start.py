"""Where weights come from: a saved policy with another value head is a start, with anything else different an error."""

import logging
from pathlib import Path

import pytest
import torch

from rlvla.errors import CheckpointError
from rlvla.testing import ModelConformance


class Tiny(ModelConformance):
    name = "tiny"


@pytest.mark.parametrize("there", [None, "chunk", "action"])
@pytest.mark.parametrize("here", [None, "chunk", "action"])
def test_any_policy_is_a_start_and_only_the_value_head_is_fresh(tmp_path: Path, caplog, there, here):
    suite = Tiny()
    suite.model(there, seed=1).save(tmp_path)
    kind, spec = suite.plugin().load(), suite.algorithm_spec(here)
    with caplog.at_level(logging.WARNING):
        started = kind(
            suite.made(path=str(tmp_path)), suite.simulator_spec(), spec, generator=torch.Generator().manual_seed(2)
        )
    saved, found = suite.model(there, seed=1).state_dict(), started.state_dict()
    policy = [name for name in found if not name.startswith("values.")]
    assert all(torch.equal(saved[name], found[name]) for name in policy)
    fresh = here is not None and here != there
    assert ("starts fresh" in caplog.text) == fresh
    assert (not found["values.weight"].any()) if fresh else True


def test_a_checkpoint_of_the_same_run_must_have_its_value_head(tmp_path: Path):
    suite = Tiny()
    suite.model(None).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"values\.weight: missing there"):
        suite.model("chunk").load(tmp_path)


def test_a_demonstrated_action_becomes_the_nearest_bin():
    suite = Tiny()
    model, spec = suite.model(), suite.simulator_spec()
    low = torch.tensor([part.low for part in spec.action for _ in range(part.size)])
    high = torch.tensor([part.high for part in spec.action for _ in range(part.size)])
    actions = low + (high - low) * torch.rand(6, 4, 3, generator=torch.Generator().manual_seed(0))
    tokens = model.replay_of(model.preprocess(suite.observation(6)), actions)["tokens"]
    assert torch.equal(tokens, ((actions - low) / (high - low) * 32).floor().long())
