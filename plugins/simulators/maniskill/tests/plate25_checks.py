"""What test_plate25 looks at inside a scene, in the process that has one: it prints :func:`outcomes` as JSON."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mani_skill.utils.structs.pose import Pose

from rlvla.errors import SimulatorError
from rlvla.specs import Start
from rlvla.testing import check_simulator
from rlvla_sim_maniskill import ManiSkillConfig, survey
from rlvla_sim_maniskill.plate25_env import PutOnPlate
from rlvla_sim_maniskill.simulator import ManiSkillSimulator

STILL = np.zeros((1, 4, 7), np.float32)
ONE = np.array([True])


def _made(assets: str, name: str, objects: str = "test", observation: str = "state") -> ManiSkillSimulator:
    config = ManiSkillConfig(
        task=f"PutOnPlateInScene25{name}",
        assets=assets,
        objects=objects,  # type: ignore[arg-type]
        observation=observation,  # type: ignore[arg-type]
        backend="cpu",
    )
    return ManiSkillSimulator(config, 1)


def outcomes(assets: str) -> dict[str, Any]:
    """Do all of it in this process, since one takes seconds to start.

    Returns:
        ``damaged``: what a simulator said of each damaged file; ``contract`` and ``tasks``: what failed, by check.
    """
    damaged = _damaged_files(assets)
    tasks = (
        _an_object_on_the_plate_is_success,
        _a_grasp_that_idle_rows_drift_into_is_none,
        _the_object_is_moved_after_five_steps,
        _textures_change_what_they_should,
        _maniskills_own_task_with_downloads_runs_from_its_header,
    )
    failed = {check.__name__: _failure(check, assets) for check in (_keeps_the_contract, *tasks)}
    return {"damaged": damaged, "contract": failed.pop(_keeps_the_contract.__name__), "tasks": failed}


def _failure(check: Callable[[str], None], assets: str) -> str:
    try:
        check(assets)
    except Exception:
        return traceback.format_exc()
    return ""


DAMAGED = (
    "carrot/more_carrot/thing_03/collision.obj",
    "carrot/more_plate/plate_00/textured.glb",
    "carrot/more_table/imgs/*.png",
)


def _damaged_files(root: str) -> dict[str, str]:
    config = ManiSkillConfig(task="PutOnPlateInScene25Main-v3", backend="cpu", renderer="cpu", assets=root)
    said = dict.fromkeys(DAMAGED, "no error")
    for file in DAMAGED:
        whole = {path: path.read_bytes() for path in Path(root).glob(file)}
        assert whole, file
        try:
            for path, content in whole.items():
                path.write_bytes(content[:40])
            ManiSkillSimulator(config, 1).reset([0], [1], [Start(0)])
        except SimulatorError as error:
            said[file] = str(error)
        finally:
            for path, content in whole.items():
                path.write_bytes(content)
    return said


def _keeps_the_contract(assets: str) -> None:
    """Reset, chunk, ends, restored episodes: bit for bit, like any other task. Pictures of 640x480 are slow: few."""
    config = {"task": "PutOnPlateInScene25Main-v3", "assets": assets, "backend": "cpu"}
    config |= {"max_episode_steps": 4, "observation": "state"}
    pictures = {"observation": "rgb", "wording": "seen", "objects": "all", "max_episode_steps": 2}
    check_simulator("maniskill", config, rows=2, variations=(pictures,))


def _an_object_on_the_plate_is_success(assets: str) -> None:
    simulator = _made(assets, "Main-v3")
    simulator.reset([0], [3], [Start(0)])
    env = simulator._instances[0].env
    on_plate = env._poses("more_plate").clone()
    on_plate[:, 2] += 0.02
    env._meant("more_carrot").set_pose(Pose.create(on_plate))
    result = simulator.step(STILL, ONE)
    assert result.success.all() and result.terminated[0, :2].any(), "it lies on the plate"
    assert not result.reward.any(), "placed without having been held: worth nothing"
    simulator.reset([0], [3], [Start(0)])
    env._once["is_src_obj_grasped"] = torch.ones(1, dtype=torch.bool)
    env._meant("more_carrot").set_pose(Pose.create(on_plate))
    result = simulator.step(STILL, ONE)
    assert abs(float(result.reward.sum()) - 1.1) < 1e-6, f"held and placed: got {result.reward}"
    simulator.close()


def _a_grasp_that_idle_rows_drift_into_is_none(assets: str) -> None:
    env: Any = SimpleNamespace(
        num_envs=2,
        agent=SimpleNamespace(is_grasping=lambda actor: torch.tensor([False, True])),
        _meant=lambda kind, row: None,
        _on_plate=lambda: torch.zeros(2, dtype=torch.bool),
        _elapsed_steps=torch.tensor([4, 3]),  # a GPU steps row 1, too, which was not asked for
        _counted_at=torch.tensor([3, 3]),
        _grasped_steps=torch.zeros(2, dtype=torch.int32),
        _once={name: torch.zeros(2, dtype=torch.bool) for name in ("is_src_obj_grasped", "consecutive_grasp")},
    )
    assert PutOnPlate.evaluate(env)["is_src_obj_grasped"].tolist() == [False, False]
    env._elapsed_steps = torch.tensor([4, 4])
    assert PutOnPlate.evaluate(env)["is_src_obj_grasped"].tolist() == [False, True]


def _the_object_is_moved_after_five_steps(assets: str) -> None:
    for objects, moved in (("train", False), ("test", True)):
        simulator = _made(assets, "PositionChangeTo-v1", objects)
        simulator.reset([0], [3], [Start(0)])
        env = simulator._instances[0].env
        places = []
        for _ in range(2):
            places.append(env._poses("more_carrot")[0, :2].clone())
            simulator.step(STILL, ONE)
        places.append(env._poses("more_carrot")[0, :2].clone())
        assert float((places[1] - places[0]).abs().max()) < 0.01, "it lay still for four steps"
        assert (float((places[2] - places[1]).norm()) > 0.1) == moved, f"{objects}: {places}"
        simulator.close()


def _textures_change_what_they_should(assets: str) -> None:
    shown = {}
    for name in ("Main-v3", "VisionTexture05-v1", "VisionWhole05-v1"):
        simulator = _made(assets, name, "train", "rgb")
        observation = simulator.reset([0], [3], [Start(0)])
        shown[name] = observation.images["3rd_view_camera"][0]
        simulator.close()
    corner = {name: picture[:40, :40] for name, picture in shown.items()}
    assert corner["Main-v3"].std((0, 1)).max() == 0, "the table is its photograph"
    assert corner["VisionTexture05-v1"].std((0, 1)).max() == 0, "a texture on things leaves the table alone"
    assert corner["VisionWhole05-v1"].std((0, 1)).max() > 10, "a texture over all is on the table too"
    assert shown["VisionTexture05-v1"].std() > 0 and (shown["VisionTexture05-v1"] != shown["Main-v3"]).any()


def _maniskills_own_task_with_downloads_runs_from_its_header(assets: str) -> None:
    """It supports one observation mode alone, paints a photograph behind what it draws, and tells of grasps."""
    name = "PutCarrotOnPlateInScene-v1"
    file = Path(assets).with_name("carrot.json")
    file.write_text(json.dumps(survey.survey([name])))
    simulator = ManiSkillSimulator(ManiSkillConfig(task=name, task_file=str(file), backend="cpu"), 1)
    observation = simulator.reset([0], [3], [Start(0)])
    assert observation.instruction == ["put carrot on plate"]
    assert observation.images["3rd_view_camera"][0, 0, 0].tolist() == [10, 200, 30], "the photograph's corner"
    assert observation.images["3rd_view_camera"].std() > 5, "and something before it"
    assert simulator._instances[0]._grasp_and_place and simulator.step(STILL, ONE).valid.all()
    simulator.close()


if __name__ == "__main__":
    print(json.dumps(outcomes(sys.argv[1])))
