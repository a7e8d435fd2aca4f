"""A trained policy alone: no simulator, no trainer."""

import numpy as np
import pytest

import rlvla
from rlvla import cli
from rlvla.checks import split
from rlvla.simulator import Observation

QUIET = {"without": ["tensorboard", "display", "report"], "device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    algo = {"use": "ppo", "window": 2, "minibatch_size": None}
    sim = {"use": "tabletop", "num_envs": 4}
    options = {"directory": str(place), "name": "run", "steps": 1, **QUIET}
    with rlvla.build(sim=sim, model="tiny", algo=algo, run=options) as run:
        run.train()
    return place / "run"


def seen(rows: int = 1):
    random = np.random.default_rng(0)
    return Observation(
        {"front": random.integers(0, 256, (rows, 64, 64, 3)).astype(np.uint8)},
        random.normal(size=(rows, 3)).astype(np.float32),
        ["push the red block"] * rows,
    )


def test_one_observation_or_many(folder):
    policy = rlvla.load(folder, device="cpu")
    many = policy.act(seen(3))
    assert many.shape == (3, 4, 3)
    observation = seen(3)
    one = policy.act({"images": {"front": observation.images["front"][1]}, "state": observation.state[1],
                      "instruction": "push the red block"})  # fmt: skip
    assert one.shape == (4, 3)
    np.testing.assert_allclose(one, many[1], atol=1e-5)
    assert np.abs(many).max() <= 1
    assert "front 64x64" in repr(policy)


def test_samples_differ_and_greedy_ones_do_not(folder):
    policy = rlvla.load(folder, device="cpu")
    assert (policy.act(seen()) == policy.act(seen())).all()
    assert (policy.act(seen(), greedy=False) != policy.act(seen(), greedy=False)).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: o.images.pop("front"), "camera 'front' is missing; got none"),
        (lambda o: o.images.update(front=o.images["front"] / 255), r"got float64 \(2, 64, 64, 3\), wanted uint8"),
        (lambda o: setattr(o, "state", o.state[:, :2]), r"state: got \(2, 2\), wanted \(2, 3\) \(hand_position: 3\)"),
        (lambda o: setattr(o, "instruction", ["", "x"]), "empty instruction"),
    ],
)
def test_a_wrong_observation_says_what_was_wanted(folder, change, words):
    observation = seen(2)
    change(observation)
    with pytest.raises(ValueError, match=words):
        rlvla.load(folder, device="cpu").act(observation)


def test_a_missing_key_is_named(folder):
    with pytest.raises(ValueError, match="lacks instruction, state"):
        rlvla.load(folder, device="cpu").act({"images": {}})


def test_split_is_as_even_as_it_can_be():
    assert split(7, 3) == (3, 2, 2)
    assert split(4, 4) == (1, 1, 1, 1)


def test_a_policy_is_exported_in_its_models_format(folder, tmp_path, capsys):
    out = tmp_path / "deep/out"
    assert cli.main(["export", str(folder), str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    policy = rlvla.load(folder, device="cpu")
    chunk = policy.act(seen())
    for parameter in policy.model.parameters():
        parameter.zero_()
    assert not np.array_equal(policy.act(seen()), chunk)
    policy.model.load(out)
    assert np.array_equal(policy.act(seen()), chunk)


def test_an_export_that_cannot_be_written_is_refused(folder, tmp_path, capsys):
    for words, said in (
        ([str(folder), str(tmp_path)], f"{tmp_path}: already there; give a folder that does not exist yet"),
        ([str(tmp_path / "nowhere"), str(tmp_path / "out")], "nowhere: no such folder"),
        ([str(folder), "/dev/null/x"], "/dev/null/x cannot be written: "),
        ([str(folder)], "got 1 words, wanted two, the run and the folder to write"),
        ([str(folder), str(tmp_path / "out"), "--dtype", "int8"], "--dtype: got 'int8', wanted bf16 or fp32"),
        (
            [str(folder), str(tmp_path / "out"), "--dtype=bf16"],
            "--dtype: got 'bf16', but TinyModel exports what it trains",
        ),
    ):
        assert cli.main(["export", *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
