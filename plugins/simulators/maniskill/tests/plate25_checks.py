"""What test_plate25 looks at inside a scene, in the process that has one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from mani_skill.utils.structs.pose import Pose

from rlvla.specs import Start
from rlvla_sim_maniskill import ManiSkillConfig, survey
from rlvla_sim_maniskill.simulator import ManiSkillSimulator

STILL = np.zeros((1, 4, 7), np.float32)
ONE = np.array([True])


def _made(assets: str, name: str, objects: str = "test") -> ManiSkillSimulator:
    config = ManiSkillConfig(
        task=f"PutOnPlateInScene25{name}",
        assets=assets,
        objects=objects,  # type: ignore[arg-type]
        backend="cpu",
    )
    return ManiSkillSimulator(config, 1)


def look_closer(assets: str) -> None:
    """Raise AssertionError where a task does not do what it is for."""
    _an_object_on_the_plate_is_success(assets)
    _the_object_is_moved_after_five_steps(assets)
    _textures_change_what_they_should(assets)
    _maniskills_own_task_with_downloads_runs_from_its_header(Path(assets).parent)


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
        simulator = _made(assets, name, "train")
        observation = simulator.reset([0], [3], [Start(0)])
        shown[name] = observation.images["3rd_view_camera"][0]
        simulator.close()
    corner = {name: picture[:40, :40] for name, picture in shown.items()}
    assert corner["Main-v3"].std((0, 1)).max() == 0, "the table is its photograph"
    assert corner["VisionTexture05-v1"].std((0, 1)).max() == 0, "a texture on things leaves the table alone"
    assert corner["VisionWhole05-v1"].std((0, 1)).max() > 10, "a texture over all is on the table too"
    assert shown["VisionTexture05-v1"].std() > 0 and (shown["VisionTexture05-v1"] != shown["Main-v3"]).any()


def _maniskills_own_task_with_downloads_runs_from_its_header(folder: Path) -> None:
    """It supports one observation mode alone, paints a photograph behind what it draws, and tells of grasps."""
    name = "PutCarrotOnPlateInScene-v1"
    file = folder / "carrot.json"
    file.write_text(json.dumps(survey.survey([name])))
    simulator = ManiSkillSimulator(ManiSkillConfig(task=name, task_file=str(file), backend="cpu"), 1)
    observation = simulator.reset([0], [3], [Start(0)])
    assert observation.instruction == ["put carrot on plate"]
    assert observation.images["3rd_view_camera"][0, 0, 0].tolist() == [10, 200, 30], "the photograph's corner"
    assert observation.images["3rd_view_camera"].std() > 5, "and something before it"
    assert simulator._instances[0]._grasp_and_place and simulator.step(STILL, ONE).valid.all()
    simulator.close()
