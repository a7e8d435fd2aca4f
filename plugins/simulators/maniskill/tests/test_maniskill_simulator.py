"""The contract on real cubes: equal to ManiSkill's own loop, chunks and their ends, workers, videos, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from maniskill_world import BOTH, STATE, copied, same

from rlvla.configs import Choice
from rlvla.errors import SimulatorError
from rlvla.plugin import find
from rlvla.specs import Start
from rlvla.video import read_video
from rlvla.worker import Host, open_simulator
from rlvla_sim_maniskill import ManiSkillConfig, cpu_vulkan, header, instance, startup, vulkan
from rlvla_sim_maniskill.simulator import ManiSkillSimulator

STARTS = [Start(0), Start(0)]


def choice(**options: Any) -> Choice:
    plugin = find("sim", "maniskill")
    return Choice(plugin, plugin.config(**{"backend": "cpu", "observation": "state", **options}))


def put_cube_on_the_goal(simulator: ManiSkillSimulator, row: int) -> None:
    env = simulator._instances[row].env
    pose = env.obj.pose.raw_pose.clone()
    pose[:, :2] = env.goal_region.pose.p[:, :2]
    env.obj.set_pose(type(env.obj.pose).create(pose))


# Equal to ManiSkill


@pytest.mark.parametrize("reward", ["normalized_dense", "sparse"])
def test_steps_are_those_of_maniskills_own_loop_bit_for_bit(actions: np.ndarray, reward: str) -> None:
    config = ManiSkillConfig(task="PickCube-v1", observation="state", backend="cpu", reward=reward)  # type: ignore[arg-type]
    ours = ManiSkillSimulator(config, rows=1)
    with startup.quiet():
        theirs = gymnasium.make(
            "PickCube-v1",
            obs_mode="state",
            control_mode="pd_ee_delta_pose",
            reward_mode=reward,
            sim_backend="physx_cpu",
            render_backend="sapien_cpu",
        )
        seen = ours.reset([0], [7], STARTS[:1])
        their, _ = theirs.reset(seed=ours._instances[0].env._episode_seed.tolist())
        assert np.array_equal(seen.state, their.numpy())
        for chunk in actions[:, :1]:
            result = ours.step(chunk, np.array([True]))
            steps = [theirs.step(torch.from_numpy(one[None])) for one in chunk[0]]
            assert np.array_equal(result.observation.state, steps[-1][0].numpy())
            assert np.array_equal(result.reward[0], np.array([one[1].item() for one in steps], np.float32))
    ours.close()
    theirs.close()


def test_one_moves_the_hand_by_what_the_spec_says(simulator: ManiSkillSimulator) -> None:
    """1 aims 0.1 m further, and -0.1 rad: ManiSkill turns the other way round. The hand gets a part of the way in a step."""
    from scipy.spatial.transform import Rotation

    moves = np.zeros((2, 1, 7), np.float32)
    moves[0, 0, 2] = -0.2
    moves[1, 0, 5] = 1.0
    first = copied(simulator.reset([0, 1], [3, 3], STARTS)).state
    assert simulator.spec.action[1].scale == -0.1
    for _ in range(4):
        last = simulator.step(moves, BOTH).observation.state
    assert 0.01 < first[0, 20] - last[0, 20] < 4 * 0.2 * 0.1
    turned = [Rotation.from_quat(one[1, 21:25], scalar_first=True) for one in (first, last)]
    about_z = (turned[1] * turned[0].inv()).as_rotvec()[2]
    assert -0.5 < about_z < -0.1


# Resets


def test_members_of_a_group_stay_equal_bit_for_bit(simulator: ManiSkillSimulator, actions: np.ndarray) -> None:
    seen = [simulator.reset([0, 1], [5, 5], STARTS)]
    seen += [simulator.step(np.repeat(chunk[:1], 2, 0), BOTH).observation for chunk in actions]
    assert all(np.array_equal(one.state[0], one.state[1]) for one in seen)


def rolled(simulator: ManiSkillSimulator, row: int, seed: int, towards: str = "") -> list[np.ndarray]:
    """Return the observed states of an episode whose actions follow from its seed (and state), pushing one way."""
    random, places, first = np.random.default_rng(seed), {}, 0
    for part in simulator.spec.state:
        places[part.name] = slice(first, first + part.size)
        first += part.size
    low, high = (
        np.array([getattr(part, end) for part in simulator.spec.action for _ in range(part.size)])
        for end in ("low", "high")
    )
    drift, active = random.random(len(low)), np.arange(2) == row
    states = [np.array(simulator.reset([row], [seed], STARTS[:1]).state[0])]
    for _ in range(20):
        action = low + (high - low) * np.clip(0.6 * drift + 0.4 * random.random(len(low)), 0, 1)
        if towards:
            action[:3] = np.clip(
                10 * (states[-1][places[towards]] - states[-1][places["extra/tcp_pose/position"]]), -1, 1
            )
        chunk = np.zeros((2, 3, len(low)), np.float32)
        chunk[row] = action
        states.append(np.array(simulator.step(chunk, active).observation.state[row]))
    return states


@pytest.mark.parametrize(
    ("task", "towards"),
    [
        ("PickCube-v1", "extra/obj_pose/position"),
        ("RotateSingleObjectInHandLevel0-v1", ""),
        ("MS-AntRun-v1", ""),
        ("UnitreeG1Stand-v1", ""),
        ("UnitreeG1TransportBox-v1", ""),
        ("Empty-v1", ""),
    ],
)
def test_equal_seeds_and_actions_give_equal_bits_whatever_was_touched_before(task: str, towards: str) -> None:
    options: dict[str, Any] = {"task": task, "observation": "state", "max_episode_steps": 60, "renderer": "none"}
    config = ManiSkillConfig(**options, backend="cpu", ignore_terminations=True)
    simulator = ManiSkillSimulator(config, rows=2)
    for seed in (200, 201):
        first = rolled(simulator, 0, seed, towards)
        saved = simulator.get_state([0])
        for row, other in ((1, seed + 1000), (0, seed + 2000)):
            rolled(simulator, row, other, towards)
        again = rolled(simulator, 1, seed, towards)
        assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
        assert np.array_equal(simulator.set_state([0], saved).state[0], first[-1])
    simulator.close()


def test_kept_scenes_remember_what_was_touched_and_say_so() -> None:
    config = ManiSkillConfig(task="MS-AntRun-v1", observation="state", backend="cpu", fresh_scenes=False)
    simulator = ManiSkillSimulator(config, rows=2)
    first = rolled(simulator, 0, 200)
    rolled(simulator, 1, 1200)
    again = rolled(simulator, 1, 200)
    assert not all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not simulator.spec.restorable
    assert "equal seeds and actions part where things touch" in " ".join(simulator.spec.notes)
    with pytest.raises(TypeError, match="restorable=False"):
        simulator.get_state([0])
    simulator.close()


def test_another_process_starts_goes_on_and_restores_with_the_same_bits(
    simulator: ManiSkillSimulator, actions: np.ndarray
) -> None:
    with open_simulator(choice(max_episode_steps=20), rows=1, horizon=4) as worker:
        there = copied(worker.reset([0], [5], STARTS[:1]))
        moved = copied(worker.step(actions[0][:1], np.array([True])).observation)
        worker.step(actions[1][:1], np.array([True]))
        saved = worker.get_state([0])
        wanted = copied(worker.step(actions[2][:1], np.array([True])).observation)
        worker.set_state([0], saved)
        again = copied(worker.step(actions[2][:1], np.array([True])).observation)
        versions = worker.versions()
    assert same(wanted, again), "an episode that passed through a worker goes on as it did"
    here = copied(simulator.reset([1], [5], STARTS[:1]))
    assert same(there, here)
    both = np.repeat(actions[0][:1], 2, 0)
    onward = copied(simulator.step(both, np.array([False, True])).observation)
    assert np.array_equal(moved.state[0], onward.state[1])
    assert (versions["mani-skill"], versions["sapien"], versions["physics"]) == ("3.0.1", "3.0.3", "cpu")


def test_tasks_that_build_another_scene_for_each_seed_are_functions_of_it() -> None:
    """PegInsertionSide draws the size of peg and hole, and builds them anew."""
    config = ManiSkillConfig(task="PegInsertionSide-v1", observation="state", backend="cpu")
    simulator = ManiSkillSimulator(config, rows=1)
    shown = [copied(simulator.reset([0], [seed], STARTS[:1])).state for seed in (1, 2, 1)]
    simulator.close()
    assert np.array_equal(shown[0], shown[2]) and not np.array_equal(shown[0], shown[1])


def test_two_robots_take_one_vector_of_actions() -> None:
    config = ManiSkillConfig(
        task="TwoRobotStackCube-v1", observation="state", backend="cpu", control_mode="pd_joint_pos"
    )
    simulator = ManiSkillSimulator(config, rows=1)
    simulator.reset([0], [1], STARTS[:1])
    before = simulator._instances[0].env.agent.agents[1].robot.get_qpos().clone()
    chunk = np.zeros((1, 6, 16), np.float32)
    chunk[0, :, 8] = 1.0  # the second robot's first joint
    result = simulator.step(chunk, np.array([True]))
    after = simulator._instances[0].env.agent.agents[1].robot.get_qpos()
    simulator.close()
    assert result.valid.all() and abs(float(after[0, 0] - before[0, 0])) > 0.1


# Ends


def test_success_in_a_chunk_ends_it_there(simulator: ManiSkillSimulator) -> None:
    simulator.reset([0, 1], [1, 2], STARTS)
    put_cube_on_the_goal(simulator, 0)
    result = simulator.step(np.zeros((2, 4, 7), np.float32), BOTH)
    assert result.valid.tolist() == [[True, False, False, False], [True] * 4]
    assert result.terminated.tolist() == [[True, False, False, False], [False] * 4]
    assert (result.success.tolist(), result.success_at_end.tolist()) == ([True, False], [True, False])
    assert result.reward[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(SimulatorError, match=r"rows \[0\] were stepped after their episode ended"):
        simulator.step(np.zeros((2, 4, 7), np.float32), BOTH)


def test_success_that_does_not_last_counts_once_and_not_at_the_end() -> None:
    config = ManiSkillConfig(task="PushCube-v1", observation="state", backend="cpu", ignore_terminations=True)
    simulator = ManiSkillSimulator(config, rows=1)
    simulator.reset([0], [1], STARTS[:1])
    put_cube_on_the_goal(simulator, 0)
    env = simulator._instances[0].env
    away = env.obj.pose.raw_pose.clone()
    away[:, 1] += 0.2
    act = simulator._instances[0]._act

    def then_away(action: torch.Tensor, running: torch.Tensor) -> Any:
        found = act(action, running)
        env.obj.set_pose(type(env.obj.pose).create(away))
        return found

    simulator._instances[0]._act = then_away  # type: ignore[method-assign]
    result = simulator.step(np.zeros((1, 3, 7), np.float32), np.array([True]))
    simulator.close()
    assert result.valid.all() and not result.terminated.any()
    assert (result.success.tolist(), result.success_at_end.tolist()) == ([True], [False])


def test_episodes_are_restored_with_the_bits_they_had(simulator: ManiSkillSimulator, actions: np.ndarray) -> None:
    simulator.reset([0, 1], [1, 2], STARTS)
    simulator.step(actions[0], BOTH)
    state = simulator.get_state([0])
    wanted = copied(simulator.step(actions[1], BOTH).observation).state[0]
    simulator.reset([0, 1], [3, 4], STARTS)
    simulator.set_state([1], state)
    chunk = actions[1][[1, 0]]
    assert np.array_equal(simulator.step(chunk, BOTH).observation.state[1], wanted)


# Videos


def test_a_policy_without_pictures_is_filmed_all_the_same(simulator: ManiSkillSimulator, tmp_path: Path) -> None:
    host = Host(simulator, 2)
    host.video(0, str(tmp_path / "given-up.mp4"))
    host.reset([0, 1], [1, 2], STARTS)  # an episode without a single action: there is nothing to see
    host.video(0, str(tmp_path / "episode.mp4"))
    host.reset([0, 1], [1, 2], STARTS)
    put_cube_on_the_goal(simulator, 0)
    host.step(np.zeros((2, 4, 7), np.float32), BOTH)
    assert host.videos == [str(tmp_path / "episode.mp4")]
    assert read_video(host.videos[0]).shape == (1, 512, 512, 3)
    assert not (tmp_path / "given-up.mp4").exists()


# Bad input


def test_several_rows_on_a_cpu_are_refused() -> None:
    with pytest.raises(
        SimulatorError, match="task PushCube-v1 cannot be made: RuntimeError: Cannot set the sim backend to 'cpu'"
    ):
        instance.made(STATE, 2, "cpu")


def test_a_gpu_that_is_not_there_does_not_become_the_cpu_in_silence() -> None:
    config = ManiSkillConfig(backend="cpu", renderer="gpu", observation="state")
    with pytest.raises(SimulatorError, match="this process sees no GPU"):
        instance.made(config, 1, "cpu")


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (np.full((2, 4, 7), np.nan), "not finite"),
        (np.zeros((2, 4, 8)), r"PushCube-v1 takes \[2 rows, H, 7\]"),
        (np.zeros((1, 4, 7)), r"actions have shape \(1, 4, 7\)"),
    ],
)
def test_actions_that_cannot_be_are_refused(simulator: ManiSkillSimulator, chunk: np.ndarray, words: str) -> None:
    simulator.reset([0, 1], [1, 2], STARTS)
    with pytest.raises(ValueError, match=words):
        simulator.step(chunk, BOTH)


def run_worker(config: ManiSkillConfig, **environment: str) -> str:
    """Start a worker with closed input, as a run does; returns its error."""
    code = (
        "import json, sys; from rlvla.worker import SubprocessSimulator; from rlvla.configs import Choice, plain;"
        "from rlvla.plugin import find; p = find('sim', 'maniskill');"
        "SubprocessSimulator(Choice(p, p.config(**json.loads(sys.argv[1]))), 1, 1).wait_ready()"
    )
    from rlvla.configs import plain

    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(plain(config))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,  # it would wait for ever
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode != 0
    return done.stderr


def test_no_vulkan_device_says_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "icd.json"
    broken.write_text(
        '{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere.so", "api_version": "1.3.0"}}'
    )
    error = run_worker(STATE, VK_ICD_FILENAMES=str(broken))
    assert "SAPIEN finds no usable Vulkan device" in error and "which it needs for state too" in error
    assert f"VK_ICD_FILENAMES={broken} is yours, and names the driver that was tried: unset it" in error
    assert "in the worker process" not in error


def test_upstreams_question_about_assets_is_not_waited_for(tmp_path: Path) -> None:
    """A header can be there without the assets: made on another machine."""
    data = json.loads(header.TABLE.read_text())
    data["tasks"] = {"PickSingleYCB-v1": data["tasks"]["PickCube-v1"]}
    file = tmp_path / "ycb.json"
    file.write_text(json.dumps(data))
    config = ManiSkillConfig(task="PickSingleYCB-v1", task_file=str(file), observation="state", backend="cpu")
    error = run_worker(config, MS_ASSET_DIR=str(tmp_path))
    assert "task PickSingleYCB-v1 needs downloaded assets" in error
    assert "python -m mani_skill.utils.download_asset ycb. They are in no package" in error


def test_every_task_of_maniskill_is_in_the_table_or_says_what_it_needs(simulator: ManiSkillSimulator) -> None:
    from mani_skill.utils.registration import REGISTERED_ENVS

    registered = {name for name, one in REGISTERED_ENVS.items() if one.cls.__module__.startswith("mani_skill.")}
    listed = [*header.tasks(None), *header.needing_assets(), *header.needing_packages()]
    assert sorted(registered) == sorted(listed)


def test_a_task_of_ones_own_needs_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from mani_skill.envs.tasks.tabletop.push_cube import PushCubeEnv\n"
        "from mani_skill.utils.registration import register_env\n"
        "@register_env('Mine-v1', max_episode_steps=9)\n"
        "class Mine(PushCubeEnv):\n"
        "    def get_language_instruction(self):\n"
        "        return ['move my cube'] * self.num_envs\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "mine.json"
    command = [sys.executable, "-m", "rlvla_sim_maniskill", "Mine-v1", "--module", "mine", "--output", str(file)]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, timeout=250)
    config = ManiSkillConfig(task="Mine-v1", task_file=str(file), observation="state", backend="cpu")
    simulator = ManiSkillSimulator(config, rows=1)
    assert simulator.spec.max_episode_steps == 9
    assert simulator.reset([0], [1], STARTS[:1]).instruction == ["move my cube"]
    simulator.close()
    with pytest.raises(SimulatorError, match="module 'nobody', which registers Mine-v1, cannot be imported"):
        startup.make("Mine-v1", module="nobody")
    with pytest.raises(SimulatorError, match="task 'Yours-v1': module 'mine' does not register it"):
        startup.make("Yours-v1", module="mine")


# Which driver draws


@pytest.fixture
def no_driver_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in vulkan.VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_driver_that_the_user_names_is_kept_and_made_absolute(
    no_driver_chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_driver_chosen / "mine.json").touch()
    monkeypatch.chdir(no_driver_chosen)
    monkeypatch.setenv("VK_DRIVER_FILES", "mine.json")
    assert vulkan.set_environment("auto") == str(no_driver_chosen / "mine.json") == os.environ["VK_ICD_FILENAMES"]
    monkeypatch.setenv("VK_ICD_FILENAMES", "other.json")
    with pytest.raises(SimulatorError, match=r"VK_ICD_FILENAMES=other.json: no such file other.json; wanted a Vulkan"):
        vulkan.set_environment("auto")


def test_the_unpacked_driver_is_found_unless_a_gpu_draws(
    no_driver_chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vulkan, "visible_gpus", lambda: 0)
    assert vulkan.set_environment("cpu") == ""
    cpu_vulkan.folder().mkdir(parents=True)
    for name in ("icd.json", "libvulkan_lvp.so"):
        (cpu_vulkan.folder() / name).touch()
    assert vulkan.set_environment("auto") == str(cpu_vulkan.folder() / "icd.json")
    assert "is yours" not in vulkan.hint("auto")
    monkeypatch.setenv("VK_ICD_FILENAMES", "")
    monkeypatch.setattr(vulkan, "visible_gpus", lambda: 1)
    assert vulkan.set_environment("auto") == ""
    assert "a MIG slice never has one" in vulkan.hint("auto")
    assert vulkan.set_environment("none") == str(cpu_vulkan.folder() / "icd.json"), "which works beside any GPU"
    monkeypatch.setattr(vulkan, "visible_gpus", lambda: 0)
    assert "sees no GPU" in vulkan.hint("gpu")
    monkeypatch.setattr(cpu_vulkan, "missing_libraries", lambda: ["libX11-xcb.so.1"])
    assert "links to libX11-xcb.so.1, which this machine lacks: apt-get install" in vulkan.hint("cpu")


def test_a_variable_is_named_as_the_user_set_it(no_driver_chosen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_driver_chosen / "mine.json").touch()
    monkeypatch.setenv("VK_DRIVER_FILES", str(no_driver_chosen / "mine.json"))
    vulkan.set_environment("cpu")
    assert vulkan.hint("cpu").startswith("VK_DRIVER_FILES=")


def test_tasks_are_surveyed_by_what_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvla_sim_maniskill import survey

    for gpus, unpacked, wanted in ((0, None, "cpu"), (1, Path("icd.json"), "cpu"), (1, None, "gpu")):
        monkeypatch.setattr(survey, "visible_gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr(cpu_vulkan, "manifest", lambda unpacked=unpacked: unpacked)
        assert survey._renderer() == wanted


def test_a_task_that_changed_since_its_file_was_written_is_named(tmp_path: Path) -> None:
    table = json.loads(header.TABLE.read_text())
    table["tasks"]["PushCube-v1"]["state"].pop()
    (tmp_path / "old.json").write_text(json.dumps(table))
    options = {"task_file": str(tmp_path / "old.json"), "observation": "state", "backend": "cpu"}
    simulator = ManiSkillSimulator(ManiSkillConfig(**options), rows=1)
    with pytest.raises(SimulatorError, match="its task file says .*: the task has changed since; write the file again"):
        simulator.reset([0], [0], [Start(0)])
    simulator.close()


def test_a_machine_that_needs_no_driver_gets_none(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(
        cpu_vulkan, "_release", lambda: {"ID": "debian", "VERSION_ID": "13", "PRETTY_NAME": "Debian 13"}
    )
    monkeypatch.setattr(cpu_vulkan, "bring", lambda: pytest.fail("it was brought"))
    monkeypatch.setattr(sys, "argv", ["cpu_vulkan"])
    assert cpu_vulkan.main() == 0
    assert "no CPU Vulkan driver unpacked: this is Debian 13, not Debian 12" in capsys.readouterr().out


def test_a_package_without_the_driver_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(cpu_vulkan.Unavailable, match="x.deb holds no libvulkan_lvp.so"):
        cpu_vulkan._place(tmp_path, "x.deb")
    (tmp_path / "usr/share/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "usr/share/vulkan/icd.d/lvp_icd.x86_64.json").write_text('{"ICD": {"library_path": "/usr/lib/x.so"}}')
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / "usr/lib/libvulkan_lvp.so").write_text("library")
    made = cpu_vulkan._place(tmp_path, "x.deb")
    assert made == cpu_vulkan.manifest()
    assert json.loads(made.read_text())["ICD"]["library_path"] == str(cpu_vulkan.folder() / "libvulkan_lvp.so")
