"""Success measured on another simulator than the one that is trained on."""

import json
from dataclasses import replace

import pytest

import rlvla
from rlvla import checks, configs
from rlvla.cli import eval as command
from rlvla.errors import ConfigError
from rlvla.plugin import find
from rlvla.results import Difference, EvalEpisode, EvalResults, differences

QUIET = {"without": ["tensorboard", "display", "report"], "save_every": 0, "device": "cpu", "threads": 1}


def source(folder, trained="tabletop", **eval):
    return {
        "sim": {"use": trained, "num_envs": 2, "image_size": 32} if isinstance(trained, str) else trained,
        "model": "tiny",
        "algo": {"use": "ppo", "window": 2},
        "scheduler": "sync",
        "eval": {"episodes": 4, **eval},
        "run": {"directory": str(folder), "name": "run", "steps": 2, "slots": 1, **QUIET},
    }


def settings_of(results):
    return results.protocol["simulator"]


def test_evaluations_in_the_middle_run_there_and_change_nothing_of_training(tmp_path):
    heard, weights = [], []

    class Listener:
        @rlvla.hookimpl
        def on_evaluation(self, step, results):
            heard.append((step, results))

    for name, eval in (("plain", {"every": 0}), ("other", {"every": 1, "sim": {"max_episode_steps": 8}})):
        with rlvla.build(**source(tmp_path / name, **eval), listeners=[Listener()]) as run:
            run.train()
            place = run.save()
        weights.append((place / "model" / "model.safetensors").read_bytes())
    assert [step for step, _ in heard] == [1, 2]
    for _, results in heard:
        assert settings_of(results)["max_episode_steps"] == results.protocol["max_episode_steps"] == 8
        assert {one.steps for one in results.episodes} == {8}
    assert weights[0] == weights[1]


def test_one_run_measures_on_both_and_says_where_they_differ(tmp_path, capsys):
    with rlvla.build(**source(tmp_path)) as run:
        run.save()
        first, second = run.evaluate(), run.evaluate(sim={"max_episode_steps": 8})
        again = run.evaluate()
    assert [settings_of(one)["max_episode_steps"] for one in (first, second, again)] == [40, 8, 40]
    assert first.episodes == again.episodes
    assert [one.seed for one in first.episodes] == [one.seed for one in second.episodes]
    place = tmp_path / "both.json"
    words = [str(tmp_path / "run"), "--against", "tabletop", "--against.max-episode-steps", "8", "--json", str(place)]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    assert "only tabletop, max_episode_steps 40" in said and "only tabletop, max_episode_steps 8" in said
    assert [len(one["episodes"]) for one in json.loads(place.read_text())] == [4, 4]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--against", "tabletop"], "--against: got tabletop with the settings that success is measured with already"),
        (["--against.num-envs", "1"], "--against: missing; got --against.num_envs, wanted the simulator's name too"),
        (["--against", "tabletop", "--against.image-size", "64"], r"Camera\(.*height=64.*wanted Camera\(.*height=32"),
    ],
)
def test_two_evaluations_with_nothing_to_compare_are_refused_before_the_first(tmp_path, words, said):
    with rlvla.build(**source(tmp_path)) as run:
        run.save()
    with pytest.raises(ConfigError, match=said):
        command.main([str(tmp_path / "run"), *words])
    assert not list(tmp_path.glob("run/evaluations/*"))


def test_two_evaluations_of_different_tasks_are_refused_before_the_first(tmp_path):
    own = {**source(tmp_path, {"use": "fake", "num_envs": 2}), "model": "fake"}
    with rlvla.build(**own) as run:
        run.save()
    said = r"--against: fake has other tasks than fake \(got .* \(7 initial states\).*, wanted .*\): set them alike \(--against\.option value\)"
    with pytest.raises(ConfigError, match=said):
        command.main([str(tmp_path / "run"), "--against", "fake", "--against.initial-states", "7"])


def test_a_plugin_names_where_its_policies_are_measured(tmp_path):
    plugin = replace(find("sim", "tabletop"), when_measuring={"max_episode_steps": 16})
    own = source(tmp_path, configs.Choice(plugin, plugin.config(num_envs=2)))
    config = configs.read(own)
    assert checks.measured_on(config).config.max_episode_steps == 16
    assert checks.measured_on(config).config.num_envs == 2, "settings that it does not name are those trained on"
    asked = configs.read({**own, "eval": {"sim": {"max_episode_steps": 40}}})
    assert checks.measured_on(asked) is asked.sim


GPU = {"use": "libero-gpu", "suite": "libero_goal", "tasks": [3, 1], "num_envs": 128, "device": "cpu"}
CPU = {"use": "libero", "suite": "libero_goal", "tasks": [3, 1], "num_envs": 2}


@pytest.mark.parametrize(
    ("trained", "asked", "name", "num_envs"),
    [
        (GPU, None, "libero", 8),
        (GPU, {"num_envs": 32}, "libero", 32),
        (GPU, {"use": "libero", "num_envs": 32}, "libero", 32),
        (GPU, "libero-gpu", "libero-gpu", 128),
        (CPU, None, "libero", 2),
        (CPU, "libero-gpu", "libero-gpu", 256),
    ],
)
def test_libero_on_a_gpu_is_measured_by_libero_on_the_same_tasks(trained, asked, name, num_envs):
    pytest.importorskip("rlvla_sim_libero_gpu")
    config = configs.read({"sim": trained, "model": "tiny", "algo": "ppo", "scheduler": "sync", "eval": {"sim": asked}})
    run, specs = checks.measured(config, checks.check(config))
    assert (run.sim.name, run.sim.config.suite, run.sim.config.tasks) == (name, "libero_goal", (3, 1))
    assert specs.num_envs == run.sim.config.num_envs == sum(specs.slots) == num_envs
    assert getattr(run.sim.config, "layouts", None) is None, "episodes start as on libero: the seed places fixtures"
    assert checks.check(config).num_envs == trained["num_envs"]


@pytest.mark.parametrize(
    "words",
    [["--eval.sim", "tabletop", "--eval.sim.num-envs", "1"], ["--eval.sim.num-envs", "1", "--eval.sim=tabletop"]],
)
def test_flags_name_it_and_its_options_in_any_order(tmp_path, words):
    config = configs.read(source(tmp_path), words)
    assert config.eval.sim == {"use": "tabletop", "num_envs": "1"}
    assert checks.measured_on(config).config.num_envs == 1


@pytest.mark.parametrize(
    ("eval", "words"),
    [
        ({"sim": "tabletopp"}, "Did you mean 'tabletop'"),
        ({"sim": {"imagesize": 8}}, r"eval\.sim\.imagesize: no such option"),
        ({"sim": {"image_size": 64}}, r"eval\.sim: cameras of tabletop are not those of tabletop"),
        ({"sim": {"max_episode_steps": 8}, "tasks": [99]}, r"eval\.tasks: got \[99\]"),
        ({"sim": {"max_episode_steps": 0}}, r"eval\.sim\.max_episode_steps: got 0"),
    ],
)
def test_what_cannot_be_measured_on_is_said_before_anything_starts(tmp_path, eval, words):
    with pytest.raises(ConfigError, match=words):
        rlvla.build(**source(tmp_path, **eval))
    assert not list(tmp_path.iterdir())


def test_differences_pair_episodes_by_task_state_and_seed():
    def results(*solved):
        episodes = [
            EvalEpisode(number, task, f"task {task}", state, seed, success, success, 3, 0.0)
            for number, (task, state, seed, success) in enumerate(solved)
        ]
        return EvalResults(tuple(episodes), {}, 0, 0.0)

    first = results((0, 0, 7, True), (0, 1, 8, True), (1, None, 9, False), (1, None, 10, True))
    second = results((1, None, 9, True), (0, 1, 8, False), (0, 0, 7, True), (1, None, 11, True))
    assert differences(first, second) == [
        Difference("task 0", 2, 2, 1, 1, 0),
        Difference("task 1", 1, 0, 1, 0, 1),
        Difference("all", 3, 2, 2, 1, 1),
    ]
