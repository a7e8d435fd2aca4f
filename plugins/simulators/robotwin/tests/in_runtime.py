"""Runs in the runtime's interpreter: what can only be seen, or arranged, beside the simulator. Prints facts as JSON.

``python in_runtime.py ROOT`` with an asset root of ``rlvla_sim_robotwin.toy_assets``.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.errors import SimulatorError
from rlvla.specs import Start
from rlvla_sim_robotwin import RoboTwinConfig, startup, toy_assets
from rlvla_sim_robotwin.episode import Episode
from rlvla_sim_robotwin.simulator import RoboTwinSimulator

HOME = np.array([*toy_assets.HOME, 1.0] * 2, np.float32)
SEED = 4


def config(root: str, **options: Any) -> RoboTwinConfig:
    return RoboTwinConfig(
        **{
            "task": "click_bell",
            "assets": root,
            "shader": "default",
            "cameras": ("head",),
            "head_camera": "L515",
            **options,
        }
    )


def click(episode: Episode) -> np.ndarray:
    """Return two chunks: closed fingers above the bell, then on it. float32 [2, 10, 14]."""
    top = np.array(episode._task.bell.get_contact_point(0)[:3])
    side = "left" if top[0] < 0 else "right"
    chunks = []
    for above in (0.1, 0.0):
        action = HOME.copy()
        first = 0 if side == "left" else 7
        action[first : first + 6] = toy_assets.reach(side, np.add(top, [0, 0, above]))
        action[first + 6] = 0.0
        chunks.append(np.tile(action, (10, 1)))
    return np.stack(chunks)


def scene(episode: Episode) -> list[float]:
    """Return where everything is."""
    entities = episode._task.scene.get_all_actors()
    return [float(number) for one in entities for number in (*one.get_pose().p, *one.get_pose().q)]


def unstable_seeds(root: str) -> dict[str, Any]:
    """Scenes in which a ball rolls do not come to rest."""
    import sapien
    from robotwin.envs.utils.create_actor import create_sphere

    plain = startup.import_task(config(root))

    class Rolling(plain):  # type: ignore[misc, valid-type]
        rolls: tuple[int, ...] = ()

        def load_actors(self) -> None:
            super().load_actors()
            if self.ep_num in self.rolls:
                ball = create_sphere(
                    self.scene, sapien.Pose([0.5, 0.3, 0.79]), radius=0.04, color=(1, 0, 0), name="ball"
                )
                (body,) = (one for one in ball.components if isinstance(one, sapien.physx.PhysxRigidDynamicComponent))
                body.set_linear_damping(0.0)
                body.set_angular_damping(0.0)
                body.set_angular_velocity([40.0, 0.0, 0.0])

    Rolling.rolls = (5, 6)
    episode = Episode(config(root, seed_attempts=3), Rolling)
    episode.reset(5)
    found: dict[str, Any] = {"played": episode.seed, "scene": scene(episode), "instruction": episode.instruction}
    other = Episode(config(root), plain)
    other.reset(7)
    found |= {"scene_of_7": scene(other), "instruction_of_7": other.instruction}
    began = time.monotonic()
    try:
        Episode(config(root, seed_attempts=2), Rolling).reset(5)
    except SimulatorError as error:
        found["given_up"] = str(error)
    found["seconds"] = time.monotonic() - began
    episode.close()
    other.close()
    return found


def stepped(root: str, chunks: np.ndarray, **options: Any) -> dict[str, Any]:
    """Step chunks from seed 4 and return what came of each."""
    simulator = RoboTwinSimulator(config(root, **options), 1)
    simulator.record_video([0])
    simulator.reset([0], [SEED], [Start(0)])
    results = []
    for chunk in chunks:
        result = simulator.step(chunk[None], np.ones(1, bool))
        assert result.frames is not None
        results.append(
            {
                **{name: getattr(result, name)[0].tolist() for name in ("reward", "terminated", "truncated", "valid")},
                "success": bool(result.success[0]),
                "frames": len(result.frames[0]),
                "last_frame_is_what_is_seen": bool(
                    (result.frames[0][-1] == result.observation.images["head"][0]).all()
                ),
            }
        )
        if result.terminated.any() or result.truncated.any():
            break
    simulator.close()
    return {"results": results}


def success(root: str) -> dict[str, Any]:
    episode = Episode(config(root), startup.import_task(config(root)))
    episode.reset(SEED)
    bell = [float(one) for one in episode._task.bell.get_contact_point(0)[:3]]
    chunks = click(episode)
    episode.close()
    going_on = {"ignore_terminations": True, "max_episode_steps": 35, "reward_coefficient": 5.0}
    four = np.concatenate([chunks, chunks[1:], chunks[1:]])
    return {
        "bell": bell,
        "ends": stepped(root, chunks, reward_coefficient=5.0),
        "goes_on": stepped(root, four, **going_on),
        "relative": stepped(root, four, relative_reward=True, **going_on),
    }


def as_upstream(root: str) -> dict[str, Any]:
    """The same seed and chunk in the runtime's own vector environment, whose settings here cannot fail."""
    from robotwin.config import load_task_config
    from robotwin.envs.vector_env import VectorEnv

    arguments = load_task_config("demo_clean")
    arguments |= {"task_name": "click_bell", "step_lim": 400, "planner_backend": "mplib", "save_path": "/tmp"}
    theirs = VectorEnv(arguments, 1, env_seeds=[SEED])
    theirs.reset(env_seeds=[SEED])
    ours = Episode(config(root), startup.import_task(config(root)))
    ours.reset(SEED)
    task = theirs.envs[0].task
    found: dict[str, Any] = {"scene": [scene(ours)], "their_scene": []}
    found["their_scene"].append(
        [float(n) for one in task.scene.get_all_actors() for n in (*one.get_pose().p, *one.get_pose().q)]
    )
    chunk = np.tile(HOME, (5, 1)) + np.linspace(0, 0.2, 5, dtype=np.float32)[:, None]
    task.gen_sparse_reward_data(chunk.astype(np.float64))
    ours.play(chunk, 0, film=False)
    for name, one in (("scene", ours._task), ("their_scene", task)):
        found[name].append(one.robot.left_entity.get_qpos().tolist())
    found["same_instruction"] = ours.instruction == task.get_instruction()
    theirs.close()
    ours.close()
    return found


def seeds_file(root: str, place: Path) -> dict[str, Any]:
    file = place / "seeds.json"
    file.write_text(json.dumps({"click_bell": {"task_name": "click_bell", "success_seeds": [9, SEED]}}))
    simulator = RoboTwinSimulator(config(root, seeds_path=str(file)), 1)
    simulator.reset([0], [123], [Start(0, 1)])
    found: dict[str, Any] = {"played": simulator._episodes[0].seed}
    for start in (Start(0, 2), Start(0), Start(1, 0)):
        try:
            simulator.reset([0], [0], [start])
        except SimulatorError as error:
            found[str(start.state) + str(start.task)] = str(error)
    simulator.close()
    return found


def randomisation(root: str) -> dict[str, Any]:
    everything = {
        "random_background": True,
        "cluttered_table": True,
        "clean_background_rate": 0.0,
        "random_light": True,
        "crazy_random_light_rate": 1.0,
        "random_table_height": 0.03,
        "random_head_camera_dis": 0.05,
    }
    found: dict[str, Any] = {}
    pictures = {}
    for name, options in (
        ("plain", {}),
        ("random", everything),
        ("again", everything),
        ("seen", {"random_background": True, "clean_background_rate": 0.0, "textures": "seen"}),
        ("unseen", {"random_background": True, "clean_background_rate": 0.0, "instructions": "unseen"}),
    ):
        simulator = RoboTwinSimulator(config(root, **options), 1)
        first = simulator.reset([0], [SEED], [Start(0)])
        pictures[name] = first.images["head"][0].copy()
        chunk = np.tile(HOME, (1, 4, 1)) + 0.05
        pictures[f"{name} after"] = simulator.step(chunk, np.ones(1, bool)).observation.images["head"][0].copy()
        found[f"instruction {name}"] = first.instruction[0]
        found[f"objects {name}"] = len(simulator._episodes[0]._task.scene.get_all_actors())
        simulator.close()
    found["equal"] = sorted(
        f"{one} = {other}"
        for one in pictures
        for other in pictures
        if one < other and (pictures[one] == pictures[other]).all()
    )
    return found


def missing_mesh(root: str, place: Path) -> dict[str, Any]:
    """One of two bells has lost its mesh: seeds that want the other one go on."""
    shutil.copytree(root, place / "part")
    for part in ("visual", "collision"):
        (place / "part/assets/objects/050_bell" / part / "base1.glb").unlink()
    episode = Episode(config(str(place / "part")), startup.import_task(config(str(place / "part"))))
    episode.reset(3)
    try:
        episode.reset(SEED)
    except SimulatorError as error:
        return {"said": str(error)}
    return {}


def standing_still(root: str) -> dict[str, Any]:
    """Ways that cannot be timed, and arms that stand still: the same noise for the same seed and step."""
    episode = Episode(config(root), startup.import_task(config(root)))
    joints = []
    for seed in (SEED, 9, SEED):
        episode.reset(seed)
        np.random.seed(len(joints))
        episode.play(np.tile(HOME, (3, 1)), 0, film=False)
        joints.append(episode._task.robot.left_entity.get_qpos().tolist())
    episode.close()
    return {"joints": joints}


def tables() -> dict[str, Any]:
    """What the runtime says of its tasks and cameras."""
    from robotwin.config import load_task_config
    from robotwin.description.instructions import load_task_instructions

    limits = load_task_config("_eval_step_limit")
    with startup.printed():
        classes = [hasattr(importlib.import_module(f"robotwin.envs.{name}"), name) for name in limits]
    wordings = [load_task_instructions(name) for name in limits]
    return {
        "limits": limits,
        "cameras": {name: [one["h"], one["w"]] for name, one in load_task_config("_camera_config").items()},
        "classes": all(classes),
        "wordings": all(one["seen"] and one["unseen"] for one in wordings),
    }


def main() -> None:
    root, place = sys.argv[1], Path(sys.argv[2])
    found = {
        "success": success(root),
        "unstable": unstable_seeds(root),
        "upstream": as_upstream(root),
        "seeds": seeds_file(root, place),
        "randomisation": randomisation(root),
        "missing": missing_mesh(root, place),
        "still": standing_still(root),
        "tables": tables(),
        "modules": sorted(
            {"torch", "open3d"} & {name for name, one in sys.modules.items() if getattr(one, "__file__", 0)}
        ),
    }
    (place / "facts.json").write_text(json.dumps(found))
    os._exit(0)  # the renderer prints harmless errors when the interpreter tears it down


if __name__ == "__main__":
    main()
