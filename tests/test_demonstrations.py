"""Demonstrations: recorded the same however they are cut, read as chunks of any length, refused where they do not fit."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from rlvla import demonstrations as demos
from rlvla.cli import main
from rlvla.configs import EvalConfig
from rlvla.demonstration_header import misfits
from rlvla.demonstrations import Demonstrations, record
from rlvla.errors import ConfigError, SimulatorError
from rlvla.evaluation import episodes_of
from rlvla.plugin import find
from rlvla.sampler import Sampler
from rlvla.specs import AlgorithmSpec
from rlvla.testing.fakes import STEP
from rlvla.testing.fakes.simulator import FakeSimulator, fewest_steps
from rlvla.work import GroupFeed, WindowFeed


def everything(path):
    read = Demonstrations(path)
    samples = read.samples(torch.arange(len(read)), 1)
    return read.header, samples


def same(one, other):
    return (one.observations == other.observations).all() and torch.equal(one.actions, other.actions)


# ---- recording -------------------------------------------------------------------------------------------------------


def test_each_step_shows_what_the_expert_saw_and_did(tmp_path):
    header = record(sim={"use": "fake", "num_envs": 3}, episodes=5, path=tmp_path / "demos")
    read = Demonstrations(tmp_path / "demos")
    assert read.header == header
    assert [one.number for one in header.episodes] == list(range(5))
    assert len(read) == header.steps == sum(one.steps for one in header.episodes)
    samples = read.samples(torch.arange(len(read)), 1)
    place, goal = samples.observations.state.unbind(1)
    torch.testing.assert_close(samples.actions[:, 0, 0], ((goal - place) / STEP).clamp(-1, 1))
    assert (samples.observations.images["front"][:, 0, 0, 0] == ((place + 1) * 127).round()).all()
    begin = 0
    for one in header.episodes:
        assert one.success
        assert one.episode_return == 1.0
        assert one.steps == fewest_steps(float(place[begin]), float(goal[begin]))
        assert set(samples.observations[begin : begin + one.steps].instructions()) == {
            ("reach the left", "reach the right")[one.task]
        }
        begin += one.steps


def test_environments_and_shards_do_not_change_what_is_recorded(tmp_path, monkeypatch):
    record(sim={"use": "fake", "num_envs": 1}, episodes=7, path=tmp_path / "one", noise=0.2)
    monkeypatch.setattr(demos, "SHARD_BYTES", 1)
    record(sim={"use": "fake", "num_envs": 4}, episodes=7, path=tmp_path / "other", noise=0.2)
    one, other = everything(tmp_path / "one"), everything(tmp_path / "other")
    assert one[0].episodes == other[0].episodes
    assert (len(one[0].shards), len(other[0].shards)) == (1, 7)
    assert same(one[1], other[1])


def test_a_simulator_inside_this_process_records_too(tmp_path):
    for batched in (False, True):
        record(sim={"use": "fake", "num_envs": 2, "batched": batched}, episodes=3, path=tmp_path / str(batched))
    assert same(everything(tmp_path / "False")[1], everything(tmp_path / "True")[1])


def test_noise_moves_the_hand_and_not_the_record(tmp_path):
    for noise in (0.0, 0.3):
        record(sim="fake", episodes=8, path=tmp_path / str(noise), noise=noise)
    (quiet, _), (noisy, samples) = everything(tmp_path / "0.0"), everything(tmp_path / "0.3")
    assert [one.seed for one in quiet.episodes] == [one.seed for one in noisy.episodes]
    assert noisy.steps > quiet.steps
    place, goal = samples.observations.state.unbind(1)
    torch.testing.assert_close(samples.actions[:, 0, 0], ((goal - place) / STEP).clamp(-1, 1))


def test_only_solved_episodes_are_kept_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(demos, "PATIENCE", 50)
    sim = {"use": "fake", "num_envs": 3, "max_episode_steps": 3, "batched": True}
    solved = record(sim=sim, episodes=6, path=tmp_path / "solved")
    both = record(sim=sim, episodes=solved.episodes[-1].number + 1, path=tmp_path / "both", keep_failures=True)
    assert all(one.success for one in solved.episodes)
    assert not all(one.success for one in both.episodes)
    assert [one.number for one in both.episodes] == list(range(len(both.episodes)))
    assert [one for one in both.episodes if one.success] == list(solved.episodes)


def test_an_expert_that_never_succeeds_is_given_up(tmp_path):
    with pytest.raises(SimulatorError, match=r"solved 0 of 12 episodes, 3 solved ones were asked for"):
        record(sim={"use": "fake", "num_envs": 2, "max_episode_steps": 1}, episodes=3, path=tmp_path / "demos")
    assert not list(tmp_path.iterdir())


def test_seeds_are_neither_those_of_training_nor_of_evaluation(tmp_path):
    header = record(sim="fake", episodes=20, path=tmp_path / "demos")
    recorded = {one.seed for one in header.episodes}
    assert len(recorded) == 20
    spec = AlgorithmSpec("window", credit_level="chunk", ratio_level="chunk", values=False)
    sampler = Sampler(header.spec, seed=0)
    windows = WindowFeed(spec, 8, seed=0, sampler=sampler)
    groups = GroupFeed(spec, [8], seed=0, sampler=sampler)
    groups.open(100)
    windows.open(8)
    trained = {windows.next_episode(row)[0] for row in range(8) for _ in range(50)}
    trained |= {groups.take(0).episode[0] for _ in range(100)}
    assert not recorded & trained
    for seed in (0, EvalConfig().seed):
        assert not recorded & {one for one, _ in episodes_of(EvalConfig(seed=seed), header.spec)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sim": {"use": "gym", "env": "CartPole-v1"}}, r"sim: gym has no scripted expert"),
        ({"episodes": 0}, r"episodes: got 0, wanted 1 or more"),
        ({"sim": {"use": "fake", "num_env": 3}}, r"sim\.num_env: no such option\. Did you mean 'num_envs'"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        record(**{"sim": "fake", "path": tmp_path / "demos", **changes})


def test_a_folder_that_is_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match=r"is there and not empty"):
        record(sim="fake", episodes=1, path=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path):
    record(sim={"use": "fake", "num_envs": 2}, episodes=4, path=tmp_path / "demos")
    return tmp_path / "demos"


@pytest.mark.parametrize("horizon", [1, 3, 20])
def test_chunks_end_with_their_episode(recorded, horizon):
    """Against a loop over episodes."""
    read = Demonstrations(recorded)
    single = read.samples(torch.arange(len(read)), 1).actions[:, 0]
    samples = read.samples(torch.arange(len(read)), horizon)
    assert samples.actions.shape == (len(read), horizon, 2)
    begin = 0
    for one in read.header.episodes:
        for step in range(one.steps):
            left = min(horizon, one.steps - step)
            at = begin + step
            assert samples.valid[at].tolist() == [True] * left + [False] * (horizon - left)
            assert torch.equal(samples.actions[at, :left], single[at : at + left])
            assert not samples.actions[at, left:].any()
        begin += one.steps


def test_drawing_has_each_step_once_an_epoch_however_it_is_cut(recorded):
    read = Demonstrations(recorded)
    n = len(read)
    whole = read.drawn(0, 0, 3 * n)
    for epoch in whole.split(n):
        assert epoch.sort().values.tolist() == list(range(n))
    assert not torch.equal(whole[:n], whole[n : 2 * n])
    parts = torch.cat([Demonstrations(recorded).drawn(0, first, 5) for first in range(0, 3 * n - 5, 5)])
    assert torch.equal(parts, whole[: len(parts)])
    assert not torch.equal(read.drawn(1, 0, n), whole[:n])


def test_samples_come_from_any_shard(tmp_path, monkeypatch):
    record(sim="fake", episodes=6, path=tmp_path / "one")
    monkeypatch.setattr(demos, "SHARD_BYTES", 2000)
    record(sim="fake", episodes=6, path=tmp_path / "many")
    one, many = Demonstrations(tmp_path / "one"), Demonstrations(tmp_path / "many")
    assert len(many.header.shards) > 1
    index = one.drawn(0, 0, 9)
    assert same(one.samples(index, 3), many.samples(index, 3))


def test_a_recording_must_fit_the_simulator(recorded):
    spec = find("sim", "fake").describe(find("sim", "fake").config(num_envs=64, max_episode_steps=99))
    assert len(Demonstrations(recorded, spec))  # neither environments nor limits matter
    other = dataclasses.replace(
        spec,
        cameras=(dataclasses.replace(spec.cameras[0], height=16), dataclasses.replace(spec.cameras[1], name="top")),
        action=spec.action[:1],
        control_hz=5.0,
    )
    with pytest.raises(ConfigError) as caught:
        Demonstrations(recorded, other)
    text = str(caught.value)
    for words in (
        "'front' was recorded 8x8",
        "no camera 'top'",
        "action was recorded as move: 1",
        "10 actions a second",
    ):
        assert words in text
    assert len(caught.value.problems) == 4
    assert not misfits("x", spec, dataclasses.replace(spec, cameras=spec.cameras[:1]))  # fewer cameras do


def test_a_folder_without_demonstrations_says_how_to_make_some(tmp_path):
    with pytest.raises(ConfigError, match=r"no demonstrations\.json there; wanted a folder that `rlvla record --path"):
        Demonstrations(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda header: header | {"format": 7}, "got format 7, this rlvla reads 1"),
        (lambda header: header | {"episodes": []}, "lists no episode"),
        (lambda header: header | {"seed": "x"}, r"demonstrations\.json: seed: got 'x'"),
        (lambda header: header | {"shards": [{"file": "none.safetensors", "steps": 3}]}, "none.safetensors: cannot be"),
        (lambda header: header | {"shards": [header["shards"][0] | {"steps": 3}]}, r"demonstrations\.json says 3"),
    ],
)
def test_a_broken_folder_is_named(recorded, spoil, words):
    file = recorded / "demonstrations.json"
    file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
    with pytest.raises(ConfigError, match=words):
        Demonstrations(recorded)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_records(tmp_path, capsys):
    words = ["--sim", "fake", "--sim.num-envs", "2", "--episodes", "3", "--seed=4", "--noise", "0.1"]
    assert main(["record", *words, "--path", str(tmp_path / "demos")]) == 0
    assert "3 episodes (3 solved)" in capsys.readouterr().out
    header = Demonstrations(tmp_path / "demos").header
    assert (len(header.episodes), header.seed, header.noise) == (3, 4, 0.1)
    assert header.simulator["num_envs"] == 2
    assert header.versions["rlvla"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ["--sim: missing", "--path: missing"]),
        (["--sim", "fake", "--path", "x", "--episodes", "none"], ["episodes: got 'none', wanted"]),
        (["--sim", "fake", "--path", "x", "--sim.num-env", "3"], ["sim.num_env: no such option. Did you mean"]),
        (["--sim", "fake", "--path", "x", "--run.steps", "3"], ["--run: not an option here"]),
        (["--sim", "fake", "--path"], ["--path: missing; wanted a folder"]),
    ],
)
def test_the_command_refuses_what_it_does_not_know(words, wanted, capsys):
    assert main(["record", *words]) == 2
    error = capsys.readouterr().err
    assert all(one in error for one in wanted), error


def test_the_command_has_help(capsys):
    assert main(["record", "--sim", "fake", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--noise X" in text
    assert "--sim.max-episode-steps INT" in text


# ---- experts ---------------------------------------------------------------------------------------------------------


def test_the_expert_passes_through_the_worker():
    from rlvla.configs import read_choice
    from rlvla.specs import Start
    from rlvla.worker import open_simulator

    choice = read_choice("sim", "fake")
    here = FakeSimulator(choice.config, rows=3)
    with open_simulator(choice, rows=3, horizon=2) as there:
        for simulator in (here, there):
            simulator.reset([0, 1, 2], [1, 2, 3], [Start(0), Start(1), Start(0)])
        for rows, horizon in (([0, 1, 2], 2), ([2], 5)):
            np.testing.assert_array_equal(there.expert(rows, horizon), here.expert(rows, horizon))
