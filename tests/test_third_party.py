"""Somebody else's packages, outside the tree, are found by name: no line of the core knows them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install copies of ``examples/third_party`` outside the repository; returns the environment that sees them."""
    place = tmp_path_factory.mktemp("third_party")
    assert ROOT not in place.parents
    sources = []
    for package in ("line_world", "reinforce", "gipo"):
        shutil.copytree(ROOT / "examples/third_party" / package, place / package)
        sources.append(str(place / package))
    options = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(place / "site")]
    subprocess.run([*PIP, *options, *sources], check=True)
    shutil.copytree(place / "gipo" / "tests", place / "gipo_tests")
    for source in sources:
        shutil.rmtree(source)
    return {**os.environ, "PYTHONPATH": str(place / "site"), "GIPO_TESTS": str(place / "gipo_tests")}


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_are_listed_with_their_state(installed: dict[str, str]) -> None:
    lines = {(one["kind"], one["name"]): one for one in json.loads(run(installed, "-m", "rlvla", "plugins", "--json"))}
    wanted = (("sim", "line-world", "line-world"), ("algo", "reinforce", "reinforce"), ("algo", "gipo", "gipo"))
    for kind, name, distribution in wanted:
        found = lines[kind, name]
        assert (found["distribution"], found["version"], found["state"]) == (distribution, "1.0.0", "ok")
        assert found["summary"]


def test_they_are_found_and_described_without_torch(installed: dict[str, str]) -> None:
    code = """
import sys, rlvla
sim, algo = rlvla.find("sim", "line-world"), rlvla.find("algo", "reinforce")
assert sim.describe(sim.config()).action_dim == 1
assert algo.describe(algo.config(window=4)).window == 4
assert not {"torch", "numpy"} & set(sys.modules)
assert sim.load().__name__ == "LineWorld"
assert algo.load().__name__ == "Reinforce"
"""
    run(installed, "-c", code)


def test_their_options_are_in_the_help(installed: dict[str, str]) -> None:
    text = run(installed, "-m", "rlvla", "train", "--sim", "line-world", "--algo", "reinforce", "--help")
    assert "--sim.pixels INT" in text
    assert "--algo.discount FLOAT" in text
    assert "Height and width of the picture." in text


def test_the_simulator_runs_in_a_worker_and_shows_a_picture(installed: dict[str, str]) -> None:
    checks = json.loads(run(installed, "-m", "rlvla", "doctor", "line-world", "--json"))
    picture = next(one for one in checks if one["name"] == "line-world: picture")
    assert picture["ok"], picture
    assert Path(picture["picture"]).read_bytes().startswith(b"\x89PNG")


def test_the_algorithm_pushes_towards_what_paid(installed: dict[str, str]) -> None:
    code = """
import torch
from rlvla.batch import Evaluation, Trajectories
from reinforce import ReinforceConfig
from reinforce.algorithm import Reinforce, returns

reward_UT = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
ended_UT = torch.tensor([[False, True, False], [False, False, True]])
assert torch.equal(returns(reward_UT, ended_UT, 0.5), torch.tensor([[0.5, 1.0, 2.0], [1.0, 0.0, 0.0]]))

U, T, H = 2, 3, 2
full = lambda value, *shape: torch.full((U, T, *shape), value)
trajectories = Trajectories(
    exists=torch.tensor([[True, True, True], [True, True, False]]), reward=reward_UT[..., None].expand(U, T, H) / H,
    terminated=ended_UT[..., None] & torch.tensor([False, True]), truncated=full(False, H), valid=full(True, H),
    success=full(False), logp=full(0.0, H, 1), value=full(0.0, 0), final_value=full(0.0), version=full(0), group=full(0),
    batch_size=[U, T],
)
algorithm = Reinforce(ReinforceConfig(discount=0.5))
batch = algorithm.prepare(trajectories)
assert len(batch) == 5 and abs(batch["advantage"].mean()) < 1e-6
logp = torch.zeros(5, H, 1, requires_grad=True)
evaluation = Evaluation(logp=logp, entropy=logp.detach(), value=torch.zeros(5, 0), batch_size=[5])
loss = algorithm.loss(batch, evaluation, algorithm.denominators(batch))
loss.total.backward()
assert torch.allclose(logp.grad[:, 0, 0], -batch["advantage"] / 5)
"""
    run(installed, "-c", code)


@pytest.fixture(scope="module")
def trained(installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with each of the algorithms, in one process; returns the folder of the runs ``theirs`` and ``gipo``."""
    place = tmp_path_factory.mktemp("runs")
    code = f"""
import rlvla
quiet = {{"directory": {str(place)!r}, "steps": 2, "slots": 2, "device": "cpu", "threads": 1,
         "without": ["display", "tensorboard", "report"]}}
sim = {{"use": "line-world", "num_envs": 4}}
with rlvla.build(sim=sim, model="tiny", algo={{"use": "reinforce", "window": 3, "minibatch_size": 8}},
                 scheduler="sync", run={{**quiet, "name": "theirs"}}) as run:
    run.train()
with rlvla.resume({str(place / "theirs")!r}, {{"run": {{"steps": 3}}}}) as run:
    run.train()
    assert len(run.evaluate(episodes=4).episodes) == 4
with rlvla.build(sim=sim, model="tiny", algo={{"use": "gipo", "window": 3}}, run={{**quiet, "name": "gipo"}}) as run:
    run.train()
"""
    run(installed, "-c", code)
    return place


def test_they_train_together_and_resume_with_no_change_to_core(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "theirs" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "policy_version" in line] == [1, 2, 3]


def test_the_tutorials_algorithm_passes_its_own_tests(installed: dict[str, str]) -> None:
    text = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", installed["GIPO_TESTS"])
    assert " passed" in text
    assert "failed" not in text


def test_the_tutorials_algorithm_trains(trained: Path) -> None:
    last = json.loads((trained / "gipo" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["train/faded_fraction"] < 1


def test_the_tutorial_shows_the_code_that_there_is() -> None:
    """Every Python block of the tutorial stands in the package, line by line."""
    folder = ROOT / "examples/third_party/gipo"
    sources = "\n".join(file.read_text() for file in (*folder.rglob("src/**/*.py"), *folder.glob("tests/*.py")))
    have = {line.strip() for line in sources.splitlines()}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "core/docs/tutorial-algorithm.md").read_text(), re.S)
    assert len(blocks) >= 4
    for line in "\n".join(blocks).splitlines():
        assert not line.strip() or line.strip() == "..." or line.strip() in have, f"the tutorial shows {line.strip()!r}"
