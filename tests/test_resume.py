"""A run that was stopped and resumed is the run that was not."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import rlvla
from rlvla.errors import CheckpointError, ConfigError

PPO = {"use": "ppo", "window": 3, "minibatch_size": 8, "passes": 2}
FIXED = {**PPO, "partial_reset": False}
GRPO = {"use": "grpo", "group_size": 3, "groups_per_step": 2}
ADAPTIVE = {"task_sampling": "adaptive", "task_weights": (1.0, 2.0)}


def build(folder: Path, name: str, algo: dict, steps: int, sim="fake", model="fake", scheduler="sync", **run):
    options = {"directory": str(folder), "name": name, "steps": steps, "slots": 2, "threads": 1, "device": "cpu"}
    quiet = {"without": ["tensorboard", "display", "report"], "deterministic": True, "save_every": 2}
    options["sim_in_process"] = sim == "fake"  # worker processes, which take a second a run: tabletop has them
    sim = {"use": sim, "num_envs": 5} if isinstance(sim, str) else sim
    train = {"learning_rate": 1e-2, "final_learning_rate": 0.1}
    return rlvla.build(
        sim=sim, model=model, algo=algo, scheduler=scheduler, train=train, run={**options, **quiet, **run}
    )


def metrics(run_directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]
    steps = {line["step"]: line for line in lines if "step" in line and "train/learning_rate" in line}
    timed = ("time", "env_steps_per_second", "workers", "memory", "histograms")
    return [{k: v for k, v in steps[step].items() if not k.startswith(timed)} for step in sorted(steps)]


def same_checkpoints(one: Path, other: Path) -> None:
    for name in ("model/model.safetensors", "optimizer/model.safetensors", "episodes.safetensors"):
        assert (one / name).exists() == (other / name).exists()
        if (one / name).exists():
            mine, theirs = load_file(one / name), load_file(other / name)
            assert sorted(mine) == sorted(theirs)
            for key in mine:
                assert mine[key].tobytes() == theirs[key].tobytes(), f"{name}: {key}"
    states = [json.loads((place / "state.json").read_text()) for place in (one, other)]
    assert states[0] == states[1]


@pytest.mark.parametrize("algo", [PPO, FIXED, GRPO], ids=["windows", "fixed-length", "groups"])
@pytest.mark.parametrize("sim", ["fake", "tabletop"])
def test_resumed_equals_uninterrupted(tmp_path, algo, sim):
    chosen = sim if sim == "fake" else {"use": "tabletop", "num_envs": 5}
    model = "fake" if sim == "fake" else "tiny"
    with build(tmp_path, "whole", algo, 5, chosen, model) as whole:
        whole.train()
    with build(tmp_path, "parts", algo, 5, chosen, model) as parts:
        parts.train(steps=2)
    with rlvla.resume(tmp_path / "parts", {"run": {"steps": 5}}) as again:
        again.train()
    same_checkpoints(
        tmp_path / "whole" / "checkpoints" / "step_000005", tmp_path / "parts" / "checkpoints" / "step_000005"
    )
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")


@pytest.mark.parametrize("algo", [PPO, FIXED, GRPO], ids=["windows", "fixed-length", "groups"])
def test_following_success_survives_a_resume(tmp_path, algo):
    with build(tmp_path, "whole", algo, 5, **ADAPTIVE) as whole:
        whole.train()
    with build(tmp_path, "parts", algo, 5, **ADAPTIVE) as parts:
        parts.train(steps=2)
    with rlvla.resume(tmp_path / "parts", {"run": {"steps": 5}}) as again:
        again.train()
    ends = [tmp_path / name / "checkpoints" / "step_000005" for name in ("whole", "parts")]
    same_checkpoints(*ends)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    sampler = json.loads((ends[0] / "state.json").read_text())["graph"]["feed"]["sampler"]
    assert all(sampler["episodes"])


@pytest.mark.parametrize("algo", [PPO, GRPO], ids=["windows", "groups"])
def test_following_success_is_the_same_under_every_scheduler(tmp_path, algo):
    found = []
    for scheduler in ("sync", "async-rollout", {"use": "full-async", "max_staleness": 0}, "hybrid"):
        name = scheduler if isinstance(scheduler, str) else scheduler["use"]
        with build(tmp_path, name, algo, 4, scheduler=scheduler, **ADAPTIVE) as run:
            run.train()
        state = json.loads((tmp_path / name / "checkpoints" / "step_000004" / "state.json").read_text())
        found.append((metrics(tmp_path / name), state["graph"]["feed"]["sampler"]))
    batches = "rollout/generator_batch"  # who shares a batch is the scheduler's business
    numbers = [[{k: v for k, v in step.items() if not k.startswith(batches)} for step in steps] for steps, _ in found]
    assert numbers[0] == numbers[1] == numbers[2] == numbers[3]
    assert all(sampler == found[0][1] for _, sampler in found)


def test_a_resumed_run_plays_new_episodes(tmp_path):
    heard = []

    class Listener:
        @rlvla.hookimpl
        def on_step(self, step, metrics):
            heard.append((step, metrics["env_steps"]))

    with build(tmp_path, "run", PPO, 2) as run:
        run.train()
    with rlvla.resume(tmp_path / "run", {"run": {"steps": 4}}, listeners=[Listener]) as run:
        run.train()
        assert run._engine.graph.feed.next_ticket == 4 * 5
    assert [step for step, _ in heard] == [3, 4]


@pytest.mark.parametrize(
    ("before", "after"), [(PPO, FIXED), (FIXED, PPO)], ids=["to-fixed-length", "from-fixed-length"]
)
def test_partial_reset_may_change_between_runs(tmp_path, before, after):
    with build(tmp_path, "run", before, 2) as run:
        run.train()
    with rlvla.resume(tmp_path / "run", {"algo": after, "run": {"steps": 4}}) as run:
        run.train()
    assert [one["rollout/units"] for one in metrics(tmp_path / "run")] == [5.0] * 4


@pytest.mark.parametrize("ending", ["", "/", "//", "/checkpoints/step_000002/"])
def test_paths_may_end_as_they_like(tmp_path, ending, monkeypatch):
    with build(tmp_path, "my run", PPO, 2) as run:
        run.train()
    monkeypatch.chdir(tmp_path)
    with rlvla.resume("my run" + ending, {"run": {"steps": 3}}) as run:
        assert run.train().directory.resolve() == tmp_path / "my run"


def test_a_wrong_path_is_named_before_anything_starts(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere: no such folder"):
        rlvla.resume(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no complete checkpoint"):
        rlvla.resume(tmp_path / "empty")


def test_another_models_checkpoint_is_refused(tmp_path):
    with build(tmp_path, "run", PPO, 1) as run:
        run.train()
    with pytest.raises(CheckpointError, match="rlvla-fake"), rlvla.resume(tmp_path / "run", {"model": "tiny"}) as run:
        run.train(steps=2)


def test_a_finished_run_says_so(tmp_path):
    with build(tmp_path, "run", PPO, 2) as run:
        run.train()
    with rlvla.resume(tmp_path / "run") as run, pytest.raises(ConfigError, match="2 steps are done"):
        run.train()


def test_a_name_in_use_is_refused(tmp_path):
    with build(tmp_path, "run", PPO, 1) as run:
        run.train()
    with build(tmp_path, "run", PPO, 1) as run, pytest.raises(ConfigError, match="already holds checkpoints"):
        run.train()


def test_old_checkpoints_go_and_the_best_stays(tmp_path):
    with build(tmp_path, "run", PPO, 7, save_every=1, keep_last=2) as run:
        from rlvla import checkpoint

        run.train(steps=2)
        checkpoint.mark_best(run.directory, 2, 0.9)
        run.train(steps=7)
        assert checkpoint.steps(run.directory) == [2, 6, 7]


def test_a_killed_save_leaves_the_last_checkpoint(tmp_path):
    from rlvla import checkpoint

    with build(tmp_path, "run", PPO, 2) as run:
        run.train()
    place = checkpoint.path_of(tmp_path / "run", 9)
    with checkpoint.Writer(place) as writer:
        (writer.folder / "half").write_text("half")  # and then, say, the disk is full
    assert not place.exists()
    assert checkpoint.find(tmp_path / "run").name == "step_000002"
    (tmp_path / "run" / "checkpoints" / ".step_000009.part").mkdir()  # what a kill leaves
    assert checkpoint.find(tmp_path / "run").name == "step_000002"


def test_a_kill_between_the_renames_of_a_commit_loses_nothing(tmp_path):
    with build(tmp_path, "run", PPO, 1) as run:
        run.train()
    place = tmp_path / "run" / "checkpoints" / "step_000001"
    place.rename(place.with_name(".step_000001.old"))
    with rlvla.resume(tmp_path / "run", {"run": {"steps": 2}}) as run:
        run.train()
    assert (place.with_name("step_000002") / "state.json").is_file()


def test_an_abort_does_not_replace_a_better_checkpoint(tmp_path):
    class Raises:
        @rlvla.hookimpl
        def on_step(self, step):
            if step == 3:
                raise RuntimeError("stop here")

    with build(tmp_path, "whole", PPO, 5, save_every=1, keep_last=5) as whole:
        whole.train()
    run = build(tmp_path, "parts", PPO, 5, save_every=1, keep_last=5, strict_listeners=True)
    run.hooks.add(Raises())
    with pytest.raises(RuntimeError, match="stop here"):
        run.train()
    with rlvla.resume(tmp_path / "parts") as again:
        again.train()
    one, other = (tmp_path / name / "checkpoints" / "step_000002" for name in ("whole", "parts"))
    same_checkpoints(one, other)


def test_going_on_from_an_earlier_checkpoint_sets_the_later_ones_aside(tmp_path):
    from rlvla import checkpoint

    with build(tmp_path, "run", PPO, 4, save_every=1, keep_last=4) as run:
        run.train()
    with rlvla.resume(tmp_path / "run" / "checkpoints" / "step_000002", {"run": {"steps": 3}}) as run:
        run.train()
    assert checkpoint.steps(tmp_path / "run") == [1, 2, 3]
    names = {place.name for place in (tmp_path / "run" / "checkpoints").glob("superseded_*")}
    assert names == {"superseded_step_000003_1", "superseded_step_000004_1"}


def test_other_environments_do_not_replay_episodes(tmp_path):
    """#50."""
    with build(tmp_path, "run", PPO, 3) as run:
        run.train()
        before = list(run._engine.graph.feed.episodes)
    with rlvla.resume(tmp_path / "run", {"sim": {"num_envs": 3}, "run": {"steps": 4}}) as run:
        run.train()
        assert min(run._engine.graph.feed.episodes) >= max(before)


def test_a_damaged_file_is_one_error_that_names_the_checkpoint(tmp_path):
    with build(tmp_path, "run", PPO, 1) as run:
        run.train()
    for name in ("model/model.safetensors", "optimizer/model.safetensors"):
        file = tmp_path / "run" / "checkpoints" / "step_000001" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:20])
        with rlvla.resume(tmp_path / "run") as run, pytest.raises(CheckpointError, match=r"step_000001 cannot be read"):
            run.train(steps=2)
        file.write_bytes(whole)


def test_saving_a_run_that_only_evaluated_changes_nothing(tmp_path):
    with build(tmp_path, "run", PPO, 2) as run:
        run.train()
    place = tmp_path / "run" / "checkpoints" / "step_000002"
    before = {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()}
    with rlvla.resume(tmp_path / "run") as run:
        run.evaluate(episodes=2)
        assert run.save() == place
    assert {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()} == before


def test_a_worker_that_dies_while_its_episodes_are_saved_is_replaced(tmp_path, monkeypatch):
    from rlvla.actors.simulator import SimulatorActor
    from rlvla.errors import WorkerDied

    died, original = [], SimulatorActor.save

    def save(self, rows):
        if not died:
            died.append(self.slot)
            raise WorkerDied("sim-0: was killed")
        return original(self, rows)

    monkeypatch.setattr(SimulatorActor, "save", save)
    with build(tmp_path, "run", PPO, 4, save_every=2, sim_in_process=False) as run:
        run.train()
    state = json.loads((tmp_path / "run" / "checkpoints" / "step_000002" / "state.json").read_text())
    assert died
    assert True in state["graph"]["live"]
    assert False in state["graph"]["live"]
    with rlvla.resume(tmp_path / "run" / "checkpoints" / "step_000002") as run:
        run.train()
