"""With the true runtime in a worker process: the whole contract, killed and hanging workers, what is missing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvla.actors.simulator import SimulatorActor
from rlvla.configs import Choice, read_choice
from rlvla.errors import SimulatorError, WorkerDied
from rlvla.specs import Start
from rlvla.worker import SubprocessSimulator
from rlvla_sim_robotwin import toy_assets

pytestmark = pytest.mark.timeout(400)
HORIZON, LIMIT, SEED = 10, 25, 4
HOME = np.array([*toy_assets.HOME, 1.0] * 2, np.float32)
BELL = (-0.1511574, -0.0274013, 0.781)
"""Where the bell of seed 4 is touched."""


def choice(toy: str | None, **options: Any) -> Choice:
    settings = {"task": "click_bell", "assets": toy, "shader": "default", "max_episode_steps": LIMIT, **options}
    return read_choice("sim", {"use": "robotwin", **settings})


@pytest.fixture(scope="module")
def actor(interpreter: str, toy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorActor]:
    log = tmp_path_factory.mktemp("log") / "sim-0.log"

    def start() -> SubprocessSimulator:
        return SubprocessSimulator(choice(toy), 1, HORIZON, log=log, name="sim-0")

    made = SimulatorActor(0, start, 1, HORIZON)
    made.ready()
    yield made
    made.close()


@pytest.fixture
def worker(actor: SimulatorActor) -> SubprocessSimulator:
    assert isinstance(actor._runner, SubprocessSimulator)
    return actor._runner


def reset(worker: SubprocessSimulator, seed: int = SEED) -> tuple[dict[str, np.ndarray], np.ndarray, str]:
    observation = worker.reset([0], [seed], [Start(0)])
    pictures = {name: one[0].copy() for name, one in observation.images.items()}
    return pictures, observation.state[0].copy(), observation.instruction[0]


def chunk(tip: tuple[float, float, float] | None = None) -> np.ndarray:
    """Return actions that send the left arm's closed fingers to a point; None: that stand still."""
    action = HOME.copy()
    if tip is not None:
        action[:6], action[6] = toy_assets.reach("left", tip), 0.0
    return np.tile(action, (1, HORIZON, 1))


ALL = np.ones(1, bool)


def test_an_observation_is_what_the_spec_declares(worker: SubprocessSimulator) -> None:
    pictures, state, instruction = reset(worker)
    assert {name: one.shape for name, one in pictures.items()} == {
        "head": (240, 320, 3),
        "left_wrist": (240, 320, 3),
        "right_wrist": (240, 320, 3),
    }
    assert all(one.std() > 3 for one in pictures.values())
    assert np.allclose(state, HOME, atol=1e-5)
    assert "bell" in instruction


def test_a_reset_is_a_function_of_its_seed(worker: SubprocessSimulator) -> None:
    first = reset(worker)
    worker.step(chunk(), ALL)
    other = reset(worker, 3)
    again = reset(worker)
    assert all((first[0][name] == again[0][name]).all() for name in first[0])
    assert (first[1] == again[1]).all() and first[2] == again[2]
    assert (first[0]["head"] != other[0]["head"]).any() and first[2] != other[2]


def test_a_chunk_that_succeeds(worker: SubprocessSimulator) -> None:
    reset(worker)
    x, y, z = BELL
    result = worker.step(chunk((x, y, z + 0.1)), ALL)
    assert not result.success[0]
    result = worker.step(chunk(BELL), ALL)
    executed = int(result.valid[0].sum())
    assert result.success[0] and result.terminated[0, executed - 1] and 1 <= executed < HORIZON
    assert result.reward[0].sum() == result.reward[0, executed - 1] == 1.0
    yellow = (result.observation.images["left_wrist"][0].astype(int) @ [1, 1, -2] > 150).sum()
    assert yellow > 1000, "the bell lies below the left hand"
    with pytest.raises(SimulatorError, match="stepped after their episode ended: reset them first"):
        worker.step(chunk(), ALL)


def test_a_step_limit_that_chunks_do_not_divide_is_exact(worker: SubprocessSimulator) -> None:
    reset(worker)
    results = [worker.step(chunk(), ALL) for _ in range(2)]
    assert not results[-1].truncated.any()
    last = worker.step(chunk(), ALL)
    assert last.valid[0].tolist() == [True] * 5 + [False] * 5
    assert last.truncated[0].tolist() == [False] * 4 + [True] + [False] * 5
    assert not last.terminated.any() and not last.success.any()


def test_an_action_of_another_robot_is_refused(worker: SubprocessSimulator) -> None:
    reset(worker)
    with pytest.raises(ValueError, match=r"got a chunk of shape \(1, 10, 7\), wanted \(1, 10, 14\).*right_gripper: 1"):
        worker.step(np.zeros((1, HORIZON, 7), np.float32), ALL)
    with pytest.raises(SimulatorError, match="not finite"):
        worker.step(np.full((1, HORIZON, 14), np.nan, np.float32), ALL)


def test_targets_far_away_are_cut_to_the_bounds(worker: SubprocessSimulator) -> None:
    reset(worker)
    began = time.monotonic()
    result = worker.step(np.full((1, HORIZON, 14), 1e9, np.float32), ALL)
    assert time.monotonic() - began < 60 and result.valid.all()
    assert result.observation.state.max() <= 3.7 + 1e-5


def test_results_name_what_drew_and_planned(worker: SubprocessSimulator) -> None:
    versions = worker.versions()
    assert versions["rlinf-robotwin-runtime"] == "0.1.3" and versions["shader"] == "default"
    assert versions["planner"] == "mplib" and versions["renderer"] and versions["numpy"].startswith("1.")


def test_a_video_has_a_frame_for_the_start_and_each_action(worker: SubprocessSimulator, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    worker.video(0, str(tmp_path / "one.mp4"))
    reset(worker)
    paths = []
    for _ in range(3):
        worker.step(chunk(), ALL)
        paths += worker.videos
    assert paths == [str(tmp_path / "one.mp4")]
    with av.open(paths[0]) as film:
        assert sum(1 for _ in film.decode(video=0)) == 1 + LIMIT


def test_a_worker_that_crashes_and_one_that_is_killed_are_replaced(
    actor: SimulatorActor, worker: SubprocessSimulator
) -> None:
    before = reset(worker)
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(WorkerDied, match="sim-0: its worker process was killed by SIGSEGV"):
        worker.step(chunk(), ALL)
    actor.replace()
    assert isinstance(actor._runner, SubprocessSimulator) and actor._runner.pid != worker.pid
    after = reset(actor._runner)
    assert all((before[0][name] == after[0][name]).all() for name in before[0]) and before[2] == after[2]
    os.kill(actor._runner.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="killed by SIGKILL"):
        actor._runner.step(chunk(), ALL)
    actor.replace()


# ---- what is missing, and what takes too long -----------------------------------------------------------------------


def start(one: Choice) -> SubprocessSimulator:
    return SubprocessSimulator(one, 1, HORIZON, name="robotwin")


def refusal(one: Choice) -> str:
    worker = start(one)
    try:
        with pytest.raises(SimulatorError) as caught:
            worker.wait_ready()
    finally:
        worker.close()
    return str(caught.value)


def test_all_that_is_missing_is_said_at_once(interpreter: str, tmp_path: Path) -> None:
    said = refusal(choice(str(tmp_path), planner="curobo", shader="ray-tracing"))
    assert f"RoboTwin assets not found (at {tmp_path}, missing: assets/background_texture, assets/objects" in said
    assert "curobo is not importable" in said
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        assert "This driver cannot run RoboTwin's ray-tracing shader" in said


def test_a_tasks_own_objects_are_asked_for(interpreter: str, toy: str) -> None:
    said = refusal(choice(toy, task="beat_block_hammer"))
    assert "missing: assets/objects/020_hammer)" in said


def test_a_driver_that_draws_nothing_is_named_with_others(
    interpreter: str, toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "icd.json").write_text("{}")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "icd.json"))
    said = refusal(choice(toy))
    assert said.startswith("robotwin: SAPIEN cannot render with this driver")
    assert "lavapipe of Mesa 25" in said and "SwiftShader" in said and "rendering device" in said


def test_a_start_that_takes_too_long_ends_within_its_limit(interpreter: str, toy: str) -> None:
    worker = start(choice(toy, first_call_timeout_s=0.05))
    with pytest.raises(WorkerDied, match="robotwin: its worker process was ended: its start took longer than 0.05 s"):
        worker.wait_ready()
    worker.close()


def test_a_first_picture_that_takes_too_long_ends_within_its_limit(interpreter: str, toy: str) -> None:
    worker = start(choice(toy)).wait_ready()
    worker.spec = replace(worker.spec, first_call_timeout_s=0.5)  # the start may take longer
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="robotwin: its worker process was ended: its first call 'reset' took longer"):
        worker.reset([0], [SEED], [Start(0)])
    assert time.monotonic() - began < 60
    worker.close()
