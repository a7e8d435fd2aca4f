"""Recipes are runs: each is checked as `rlvla train` would, and the benchmark's cells are what they say."""

import importlib.util
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlvla import cli, configs
from rlvla.batch import ObservationBatch
from rlvla.checks import check
from rlvla.configs import overridden
from rlvla.simulator import Observation
from rlvla.specs import ActionPart, Camera, SimulatorSpec, StatePart, TaskSpec

ROOT = Path(__file__).parents[1]
RECIPES = sorted(ROOT.glob("examples/tiny_*.py"))


def benchmark():
    spec = importlib.util.spec_from_file_location("learning_tabletop", ROOT / "benchmarks/learning_tabletop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine of 8 GPUs, in a cluster where a recipe is for one."""
    monkeypatch.setattr("rlvla.checks.visible_gpus", lambda: 8)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_fits_together(file):
    config = configs.read(configs.read_file(file))
    check(config)
    for part in (config.model.name, config.sim.name, config.algo.name, config.scheduler.name, config.run.device):
        assert part in file.stem.split("_"), f"{file.stem} does not name {part}"


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/openvla-oft_*.py")), ids=lambda file: file.stem)
def test_a_recipe_of_openvla_oft_fits_a_checkpoint(file, tmp_path):
    tiny = pytest.importorskip("rlvla_model_openvla_oft.tiny")
    recipe = configs.read_file(file)
    key = recipe["model"]["unnorm_key"]
    changes = {"model": {"path": str(tmp_path)}}
    if (sim := recipe["sim"])["use"] == "robotwin":
        seeds = tmp_path / "seeds.json"
        seeds.write_text(json.dumps({sim["task"]: {"task_name": sim["task"], "success_seeds": list(range(1000))}}))
        changes["sim"] = {"seeds_path": str(seeds)}
    action_dim = 14 if sim["use"] == "robotwin" else 7
    tiny.write(tmp_path, action_dim=action_dim, data_sets=(key if key == "tiny" else f"{key}_no_noops", "other"))
    config = configs.read(overridden(recipe, changes))
    check(config)
    for part in (config.model.name, config.sim.name, config.algo.name, config.scheduler.name, config.run.device):
        assert part in file.stem.split("_"), f"{file.stem} does not name {part}"


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/gr00t_*.py")), ids=lambda file: file.stem)
def test_a_recipe_of_gr00t_fits_a_checkpoint(file, tmp_path):
    tiny = pytest.importorskip("rlvla_model_gr00t.tiny")
    recipe = configs.read_file(file)
    pytest.importorskip(f"rlvla_sim_{recipe['sim']['use'].replace('-', '_')}")
    tags, cameras = (recipe["model"]["embodiment_tag"], "other"), len(recipe["model"]["cameras"])
    tiny.write(tmp_path, tags=tags, cameras=cameras, weights=False)
    config = configs.read(overridden(recipe, {"model": {"path": str(tmp_path), "tokenizer_path": None}}))
    check(config)
    for part in (config.model.name, config.sim.name, config.algo.name, config.scheduler.name, config.run.device):
        assert part in file.stem.split("_"), f"{file.stem} does not name {part}"


SEVERAL = [file for ways in ("*-gpus.py", "*-nodes.py") for file in sorted(ROOT.glob(f"examples/{ways}"))]


@pytest.mark.parametrize("file", SEVERAL, ids=lambda file: file.stem)
def test_a_recipe_of_several_gpus_is_planned_on_a_laptop(file, monkeypatch, capsys):
    """Without GPUs, a cluster or a checkpoint; smaller, as the virtual run takes its time."""
    for kind, name in zip(("model", "sim"), file.stem.split("_"), strict=False):
        pytest.importorskip(f"rlvla_{kind}_{name.replace('-', '_')}")
    monkeypatch.setattr("rlvla.checks.visible_gpus", lambda: 0)
    monkeypatch.setattr("rlvla.cli.plan.visible_gpus", lambda: 0)
    monkeypatch.setattr("rlvla.plan._MANY", 0)  # nothing faster is looked for
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    devices = configs.read_file(file)["run"]["devices"]
    smaller = ["--sim.num-envs", "64", "--run.slots", "32", "--algo.windows-per-step", "64", "--cores", "8"]
    assert cli.main(["plan", str(file), *smaller]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^assumed: \S+ as it is published, since model\.path: checkpoints/\S+: no such folder here", said)
    assert f"assumed: {devices} of {devices} GPUs are elsewhere; machines: 1, of 8 cores each" in said
    assert "controller: on the machine that starts the run" in said


def test_the_preset_of_gr00t_and_robotwin_moves_two_arms(tmp_path):
    """RoboTwin's action and state: for each arm six absolute joint positions and a gripper that 0 closes."""
    torch, tiny = pytest.importorskip("torch"), pytest.importorskip("rlvla_model_gr00t.tiny")
    from rlvla.noise import Noise

    arms = [(f"{side}_{part}", size) for side in ("left", "right") for part, size in (("arm", 6), ("gripper", 1))]
    action = [
        ActionPart(name, size, "absolute", -3.7, 3.7, "rad", "joint")
        if size == 6
        else ActionPart(name, size, "gripper", 0.0, 1.0, closes_at="low")
        for name, size in arms
    ]
    roles = {"head": "primary", "left_wrist": "wrist_left", "right_wrist": "wrist_right"}
    simulator = SimulatorSpec(
        cameras=tuple(Camera(name, 24, 32, role) for name, role in roles.items()),
        state=tuple(StatePart(name, size, "rad" if size == 6 else "") for name, size in arms),
        action=tuple(action),
        control_hz=250 / 15,
        max_episode_steps=400,
        tasks=(TaskSpec("place_empty_cup"),),
    )
    tiny.write(tmp_path, tags=("new_embodiment",), cameras=3, action_dim=14, state_dim=14)
    preset = runpy.run_path(str(ROOT / "examples/pairs.py"))["gr00t_robotwin"]()
    choice = configs.read_choice("model", {"use": "gr00t", "path": str(tmp_path), "dtype": "fp32", **preset})
    model = choice.plugin.load()(choice.config, simulator, None, generator=torch.Generator())
    generator = np.random.default_rng(0)
    pictures = {name: generator.integers(0, 256, (2, 24, 32, 3), np.uint8) for name in roles}
    told = ["place the empty cup on the coaster with the left arm"] * 2
    seen = ObservationBatch.of(Observation(pictures, np.zeros((2, 14), np.float32), told), 64)
    with torch.no_grad():
        chunk = model.act(model.preprocess(seen), Noise(torch.arange(2))).actions
    assert chunk.shape == (2, 10, 14)
    middle = model.codec(torch.zeros(1, 1, 14))[0, 0]  # of what the data holds: joints as they are, fingers half open
    statistics = json.loads((tmp_path / "experiment_cfg/metadata.json").read_text())["new_embodiment"]["statistics"]
    wanted = [
        (low + high) / 2
        for name, _ in arms
        for low, high in zip(*(statistics["action"][name][end] for end in ("min", "max")), strict=True)
    ]
    torch.testing.assert_close(middle, torch.tensor(wanted))
    assert middle[6] == middle[13] == 0.5


def test_cells_of_the_learning_benchmark_fit_and_differ():
    module = benchmark()
    seen = []
    for name, (example, changes) in module.CELLS.items():
        recipe = runpy.run_path(str(ROOT / "examples" / example))["recipe"]()
        for change in changes:
            recipe = overridden(recipe, change)
        config = configs.read(recipe)
        specs = check(config)
        assert config.algo.name == name.partition("-")[0]
        if not name.startswith("bc"):
            assert specs.algo.ratio_level == name.split("-")[1]
            assert specs.algo.credit_level == ("action" if name.endswith("credit-action") else "chunk")
        this = name.endswith("-64"), config.to_dict()  # those start from other weights
        assert this not in seen
        seen.append(this)


def test_the_token_recipe_is_the_benchmarks_cell():
    module = benchmark()
    _, changes = module.CELLS["ppo-token"]
    recipe = runpy.run_path(str(ROOT / "examples/tiny_tabletop_ppo_sync_cpu.py"))["recipe"]()
    for change in changes:
        recipe = overridden(recipe, change)
    shown = runpy.run_path(str(ROOT / "examples/tiny_tabletop_ppo_token_sync_cpu.py"))["recipe"]()
    del recipe["algo"]["target_kl"]  # of a chunk; never reached by a token
    assert recipe == shown


def test_a_run_is_claimed_once(tmp_path):
    module = benchmark()
    file = tmp_path / "results.json"
    assert module.claim(file, "bc", 0)
    assert not module.claim(file, "bc", 0)
    with module.locked(file) as results:
        results["runs"]["bc/0"] = {"pid": 2**22 + 1}  # of a process that is no more
    assert module.claim(file, "bc", 0)
    with module.locked(file) as results:
        results["runs"]["bc/0"] = {"success": 0.5}
    assert not module.claim(file, "bc", 0)


def test_table_and_curves_say_what_was_not_run(tmp_path):
    pytest.importorskip("matplotlib")
    module = benchmark()
    file = tmp_path / "results.json"
    curve = [[1, 100.0, 0.5, 0.1], [2, 200.0, 1.0, 0.3]]
    one = {"success": 0.95, "steps": 120, "env_steps": 200.0, "cpu_seconds": 60.0, "curve": curve}
    file.write_text(json.dumps({"machine": "2-core x86-64 CPU", "runs": {"ppo-chunk/1": one, "bc/0": {"pid": 1}}}))
    text = module.render(file)
    assert "| ppo-chunk | not run | 0.950 | not run | 0.95 | 0 k | 120 | 60 |" in text
    assert "| bc | not run | not run | not run |" in text
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("tiny", [True, False], ids=["tiny", "full"])
def test_cells_of_the_benchmark_on_two_gpus_fit(tmp_path, monkeypatch, tiny):
    """They are in one place each, with the transport that is to be shown."""
    pytest.importorskip("rlvla_model_gr00t")
    pytest.importorskip("rlvla_sim_libero")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = runpy.run_path(str(ROOT / "benchmarks" / "two_gpus.py"))
    options = SimpleNamespace(tiny=tiny, envs=64, slots=16, micro_batch=64, steps=8)
    found = {}
    for name in module["CELLS"]:
        specs = check(configs.read(module["recipe"](name, tmp_path / name, options)))
        found[name] = specs.placement.ranks, len(specs.placement.generator), specs.transport
    one = "store" if tiny else "process"
    assert found == {
        "one-local": (1, 1, "reference"),
        "one": (1, 1, one),
        "one-all": (1, 1, one),
        "pair": (1, 1, one),
        "collocated": (2, 2, "process"),
        "fsdp": (2, 2, "process"),
        "disaggregated": (1, 1, "broadcast"),
        "apart": (1, 1, "process"),
        "hybrid": (2, 1, "process"),
        "batched": (1, 1, "process"),
        "batched-hybrid": (1, 1, "process"),
    }
