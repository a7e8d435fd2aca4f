"""Learning from demonstrations: alone (bc), beside RL, and as a start for it."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

import rlvla
from rlvla import checkpoint
from rlvla.actors.trainer import TrainerActor
from rlvla.configs import TrainConfig
from rlvla.demonstrations import Demonstrations, record
from rlvla.errors import ConfigError
from rlvla.plugin import find
from rlvla.testing.scheduler import Recorder

QUIET = {"without": ["tensorboard", "display", "report"], "strict_listeners": True, "device": "cpu", "threads": 1}
PPO = {"use": "ppo", "window": 3, "minibatch_size": 8, "passes": 2}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "demos"
    record(sim={"use": "fake", "num_envs": 8}, episodes=60, path=folder)
    return str(folder)


def build(folder, demos=None, algo=None, model="fake", listeners=(), train=None, eval=None, **run):
    algo = algo or {"use": "bc", "path": demos, "minibatch_size": 16, "minibatches_per_step": 4}
    options = {"directory": str(folder), "name": "run", "steps": 3, "slots": 2, **QUIET, **run}
    options.setdefault("sim_in_process", options.get("runtime", "local") == "local")  # workers take a second a run
    sim = {"use": "fake", "num_envs": 5}
    return rlvla.build(sim=sim, model=model, algo=algo, train=train, eval=eval, run=options, listeners=listeners)


def weights(folder):
    return load_file(checkpoint.find(folder) / "model" / "model.safetensors")


def equal(one, other):
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def trainer(demos, seed=0, algo=None, **train):
    plugin, sim, policy = find("algo", "bc"), find("sim", "fake"), find("model", "fake")
    config = plugin.config(path=demos, minibatch_size=16, minibatches_per_step=4, **(algo or {}))
    made = policy.load()(
        policy.config(), sim.describe(sim.config()), plugin.describe(config), generator=torch.Generator().manual_seed(0)
    )
    return TrainerActor(made, plugin.load()(config), TrainConfig(**train), seed=seed, steps=10)


# ---- bc --------------------------------------------------------------------------------------------------------------


def test_a_linear_policy_learns_the_expert_from_demonstrations(tmp_path, demos):
    heard = Recorder()
    algo = {"use": "bc", "path": demos, "minibatch_size": 64, "minibatches_per_step": 20}
    with build(tmp_path, algo=algo, train={"learning_rate": 0.1}, steps=15, listeners=[heard]) as run:
        before = run.evaluate(episodes=40).success
        run.train()
        after = run.evaluate(episodes=40).success
    nll = [one["train/nll"] for one in heard.metrics]
    assert nll[-1] < 0.6 * nll[0]
    assert after > max(0.6, before), (before, after)
    assert heard.metrics[-1]["env_steps"] == 0
    assert heard.metrics[-1]["train/staleness_max"] == 0


def test_nothing_is_rolled_out(tmp_path, demos, monkeypatch):
    from rlvla import engine

    monkeypatch.setattr(engine.Engine, "_make_slots", lambda *_: pytest.fail("a simulator was started"))
    with build(tmp_path, demos) as run:
        assert "nothing is rolled out" in run.plan()
        run.train()
    assert checkpoint.steps(tmp_path / "run") == [3]


def test_a_run_without_episodes_is_not_warned_about_their_failure(tmp_path, demos, caplog):
    from rlvla.metrics import NO_SUCCESS_STEPS

    algo = {"use": "bc", "path": demos, "minibatch_size": 4, "minibatches_per_step": 1}
    with build(tmp_path, algo=algo, steps=NO_SUCCESS_STEPS + 1) as run:
        run.train()
    assert "no episode was solved" not in caplog.text


def test_resumed_is_uninterrupted(tmp_path, demos):
    with build(tmp_path, demos, name="whole", steps=4) as run:
        run.train()
    with build(tmp_path, demos, name="parts", steps=2) as run:
        run.train()
    # the learning rate is constant, so the number of steps planned does not matter
    with rlvla.resume(tmp_path / "parts", {"run": {"steps": 4}}) as run:
        run.train()
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_the_gradient_is_that_of_the_masked_mean(demos):
    """Against a loop over the samples of the first training step."""
    actor = trainer(demos, learning_rate=0.0)
    read = Demonstrations(demos)
    from rlvla.seeds import derive

    samples = read.samples(read.drawn(derive(0, "demonstrations"), 0, 64), 3)
    inputs = actor.model.preprocess(samples.observations)
    logp = actor.model.evaluate(inputs, actor.model.replay_of(inputs, samples.actions)).logp.detach()
    assert not samples.valid.all()
    wanted = [-float(logp[s, h].sum()) for s in range(64) for h in range(3) if samples.valid[s, h]]
    receipt = actor.train([], 0)
    assert receipt.metrics["train/nll"] == pytest.approx(sum(wanted) / (2 * len(wanted)), rel=1e-5)
    assert receipt.metrics["train/samples"] == 64


@pytest.mark.parametrize("size", [1, 5])
def test_micro_batches_change_nothing_but_memory(demos, size):
    one, other = trainer(demos, learning_rate=1e-2), trainer(demos, learning_rate=1e-2, micro_batch=size)
    for actor in (one, other):
        actor.train([], 0)
    torch.testing.assert_close(one.model.policy, other.model.policy, rtol=1e-5, atol=1e-7)


def test_seed_and_step_choose_the_samples(demos):
    drawn = []
    for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0)):
        actor = trainer(demos, seed=seed)
        drawn.append(actor._taught_by(demos).units(step, 64, 0).observations.state)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def test_an_entropy_bonus_keeps_the_policy_less_sure(demos):
    entropy = []
    for weight in (0.0, 0.5):
        actor = trainer(demos, algo={"entropy_weight": weight}, learning_rate=0.05)
        for step in range(10):
            receipt = actor.train([], step)
        entropy.append(receipt.metrics["train/entropy"])
    assert entropy[1] > entropy[0]


# ---- beside RL -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [PPO, {"use": "grpo", "group_size": 3, "groups_per_step": 2}], ids=["ppo", "grpo"])
def test_imitation_beside_rl_changes_it_by_its_weight(tmp_path, demos, algo):
    found = {}
    for name, train in (
        ("none", {}),
        ("zero", {"demonstrations": demos, "imitation_weight": 0.0}),
        ("some", {"demonstrations": demos, "imitation_weight": 0.5, "imitation_batch": 32}),
    ):
        heard = Recorder()
        with build(tmp_path, algo=algo, name=name, deterministic=True, train=train, listeners=[heard]) as run:
            run.train()
        found[name] = weights(tmp_path / name), heard.metrics[-1]
    assert equal(found["none"][0], found["zero"][0])
    assert not equal(found["none"][0], found["some"][0])
    assert "train/imitation_nll" not in found["none"][1]
    assert found["some"][1]["train/imitation_nll"] < found["zero"][1]["train/imitation_nll"]


def test_imitation_beside_rl_resumes_exactly(tmp_path, demos):
    train = {"demonstrations": demos}
    with build(tmp_path, algo=PPO, name="whole", steps=4, deterministic=True, train=train) as run:
        run.train()
    with build(tmp_path, algo=PPO, name="parts", steps=2, deterministic=True, train=train) as run:
        run.train()
    with rlvla.resume(tmp_path / "parts", {"run": {"steps": 4}}) as run:
        run.train()
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_imitation_in_micro_batches(tmp_path, demos):
    for name, size in (("whole", None), ("parts", 3)):
        train = {"demonstrations": demos, "micro_batch": size, "learning_rate": 1e-2, "imitation_weight": 1.0}
        with build(tmp_path, algo=PPO, name=name, steps=1, deterministic=True, train=train) as run:
            run.train()
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name in one:
        torch.testing.assert_close(torch.from_numpy(one[name]), torch.from_numpy(other[name]), rtol=1e-5, atol=1e-6)


# ---- on several ranks ------------------------------------------------------------------------------------------------

RANK = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, {folder!r})
import test_imitation, test_trainer
from rlvla.imitation import Teacher
rank, world = int(sys.argv[1]), int(sys.argv[2])
assembled = Teacher._assembled
def keep(self, index_S, version):
    drawn.append(index_S.clone())
    return assembled(self, index_S, version)
Teacher._assembled = keep
for beside in (False, True):
    store, drawn = "{place}/" + ("beside" if beside else "alone"), []
    if world > 1:
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    if beside:
        actor = test_trainer.trainer(demonstrations={demos!r}, imitation_weight=0.5, imitation_batch=9)
        rows = range(6) if world == 1 else ([0, 1, 2, 3], [4, 5])[rank]
        receipt = actor.train(test_trainer.feed(actor, rows), 0)
    else:
        actor = test_imitation.trainer({demos!r}, learning_rate=1e-2)
        for step in range(2):
            receipt = actor.train([], step)
    saved = {{"weights": test_trainer.weights(actor), "metrics": receipt.metrics, "drawn": drawn}}
    torch.save(saved, store + "." + str(world) + str(rank))
    if world > 1:
        dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory, demos):
    """Return what one rank of one, and each of two, drew and learned: ``alone``, and ``beside`` RL."""
    place = tmp_path_factory.mktemp("ranks")
    code = RANK.format(folder=str(Path(__file__).parent), place=place, demos=demos)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(world)], env=environment)
        for rank, world in ((0, 1), (0, 2), (1, 2))
    ]
    assert [process.wait(250) for process in started] == [0, 0, 0]
    return {
        how: [torch.load(place / f"{how}.{name}", weights_only=True) for name in ("10", "20", "21")]
        for how in ("alone", "beside")
    }


def agree(alone, both):
    for one in both:
        for name, wanted in alone["weights"].items():
            assert (one["weights"][name] - wanted).abs().max() <= 1e-6 * wanted.abs().max(), name
        assert sorted(one["metrics"]) == sorted(alone["metrics"])
        for name, wanted in alone["metrics"].items():
            assert one["metrics"][name] == pytest.approx(wanted, rel=1e-5, abs=1e-7), name


def test_two_ranks_clone_what_one_does(on_ranks):
    """They share each minibatch of the one, no sample twice; weights agree to 1e-6 after 8 optimizer steps."""
    alone, *both = on_ranks["alone"]
    for step in range(2):
        parts = [one["drawn"][step] for one in both]
        assert [len(part) for part in parts] == [32, 32]
        assert len(torch.cat(parts).unique()) == 64
        assert torch.equal(torch.stack(parts, 1).flatten(), alone["drawn"][step])
    agree(alone, both)


def test_two_ranks_imitate_beside_rl_as_one_does(on_ranks):
    """With an odd number of samples and unequal units."""
    alone, *both = on_ranks["beside"]
    for place, wanted in enumerate(alone["drawn"]):
        assert [len(one["drawn"][place]) for one in both] == [5, 4]
        assert torch.equal(torch.cat([one["drawn"][place] for one in both]).sort().values, wanted.sort().values)
    agree(alone, both)


# ---- a start for RL --------------------------------------------------------------------------------------------------


def test_rl_starts_from_cloned_weights(tmp_path, demos, caplog):
    """The policy is the cloned one, bit for bit; only the value head is fresh, and the log says so."""
    tiny = {"use": "tiny", "cameras": ["primary"], "image_size": 16, "patch": 4}
    algo = {"use": "bc", "path": demos, "minibatch_size": 16, "minibatches_per_step": 1}
    with build(tmp_path, algo=algo, model=tiny, name="bc", steps=1) as run:
        run.train()
    path = str(checkpoint.find(tmp_path / "bc") / "model")
    with (
        caplog.at_level(logging.WARNING),
        build(tmp_path, algo=PPO, model={**tiny, "path": path}, train={"learning_rate": 0.0}, steps=1) as run,
    ):
        run.train()
    assert "has no value head of this width: it starts fresh" in caplog.text
    cloned, started = weights(tmp_path / "bc"), weights(tmp_path / "run")
    shutil.rmtree(tmp_path / "bc")
    assert rlvla.load(tmp_path / "run", device="cpu").model.values is not None  # needs no other run
    assert {name for name in started if name not in cloned} == {"values.weight", "values.bias"}
    assert equal(cloned, started)


def test_other_differences_are_still_refused(tmp_path, demos):
    from rlvla.errors import CheckpointError

    tiny = {"use": "tiny", "image_size": 16, "patch": 4}
    algo = {"use": "bc", "path": demos, "minibatch_size": 16, "minibatches_per_step": 1}
    with build(tmp_path, algo=algo, model=tiny, name="bc", steps=1) as run:
        run.train()
    path = str(checkpoint.find(tmp_path / "bc") / "model")
    with (
        build(tmp_path, algo=PPO, model={**tiny, "hidden": 64, "path": path}, steps=1) as run,
        pytest.raises(CheckpointError, match=r"trunk\.0\.bias"),
    ):
        run.train()


def test_a_cloned_policy_is_loaded_and_measured_without_the_demonstrations(tmp_path, demos):
    shutil.copytree(demos, tmp_path / "copy")
    with build(tmp_path, str(tmp_path / "copy"), steps=1) as run:
        run.train()
    shutil.rmtree(tmp_path / "copy")
    with rlvla.resume(tmp_path / "run") as run:
        assert len(run.evaluate(episodes=2).episodes) == 2
    assert rlvla.load(tmp_path / "run", device="cpu") is not None
    with (
        rlvla.resume(tmp_path / "run", {"run": {"steps": 2}}) as run,
        pytest.raises(ConfigError, match=r"algo\.path: "),
    ):
        run.train()


# ---- wrong settings --------------------------------------------------------------------------------------------------


def test_a_folder_is_wanted(tmp_path):
    with pytest.raises(ConfigError, match=r"algo\.path: missing; wanted a folder of demonstrations"):
        build(tmp_path, algo={"use": "bc"})


def test_folders_that_do_not_fit_die_early_and_together(tmp_path, demos):
    other = tmp_path / "other"
    shutil.copytree(demos, other)
    file = other / "demonstrations.json"
    header = json.loads(file.read_text())
    header["spec"]["control_hz"] = 5.0
    file.write_text(json.dumps(header))
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, str(tmp_path / "none"), train={"demonstrations": str(other)})
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith("algo.path: ")
    assert caught.value.problems[1].startswith("train.demonstrations: ")
    assert "recorded at 5 actions a second" in caught.value.problems[1]


def test_a_model_that_cannot_be_taught_is_refused(tmp_path, demos, monkeypatch):
    from dataclasses import replace

    from rlvla.testing import fakes

    plugin = find("model", "fake")
    deaf = replace(plugin, describe=lambda config: replace(fakes.describe_model(config), imitation=False))
    with pytest.raises(ConfigError, match=r"cannot be taught demonstrated actions.*leave out train\.demonstrations"):
        build(tmp_path, algo=PPO, model=deaf, train={"demonstrations": demos})
