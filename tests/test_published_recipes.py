"""The page of published recipes: each block is a run that fits together and a loss that can be taken."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from rlvla import configs
from rlvla.checks import check
from rlvla.testing import random_trajectories
from rlvla.testing.algorithm import gradients, run, width, with_asked
from rlvla.testing.worlds import evaluation_of

PAGE = (Path(__file__).parents[1] / "core/docs/published-recipes.md").read_text()
BASE = {"sim": {"use": "tabletop", "num_envs": 64}, "model": "tiny", "scheduler": "sync"}
SECTIONS = {
    title: [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    for title, _, text in (part.partition("\n") for part in PAGE.split("\n## ")[1:])
}
BLOCKS = [
    pytest.param(block, id=f"{title}-{number}")
    for title, blocks in SECTIONS.items()
    for number, block in enumerate(blocks)
]


def test_every_recipe_has_its_block():
    without = [title for title, blocks in SECTIONS.items() if not blocks]
    assert without == ["What is not reproduced on purpose"]
    for name in ("RLinf: GRPO", "RLinf: PPO", "SimpleVLA-RL", "DAPO", "RLOO", "REINFORCE++", "Decoupled PPO"):
        assert any(title.startswith(name) for title in SECTIONS), name


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_part_of_a_run(block):
    config = configs.read({**BASE, **block})
    check(config)
    told = {section: configs.plain(getattr(config, section)) for section in ("train",)}
    told |= {kind: configs.plain(getattr(config, kind).config) for kind in ("algo", "scheduler")}
    for section, settings in block.items():
        for name, value in settings.items():
            assert name == "use" or told[section][name] == value


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_gives_a_loss_with_a_gradient(block):
    config = configs.read({**BASE, **block})
    spec = check(config).algo
    grouped = spec.unit == "group"
    trajectories = random_trajectories(
        3, 8, 4, 3, 2, width(spec, 3), group_size=4 if grouped else 1, stops=grouped, lag=spec.max_staleness
    )
    trajectories.success[:] = False
    trajectories.success[::2, 0] = True  # half of each group: no filter takes it
    with_asked(trajectories, spec, 1)
    algorithm = config.algo.plugin.load()(config.algo.config)
    algorithm.progress(9, 10)
    evaluation = evaluation_of(trajectories, seed=2)
    total, _ = run(algorithm, trajectories, evaluation)
    assert torch.isfinite(total)
    assert gradients(evaluation)["logp"].any()
