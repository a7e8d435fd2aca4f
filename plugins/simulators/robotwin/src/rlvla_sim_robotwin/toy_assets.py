"""``python -m rlvla_sim_robotwin.toy_assets FOLDER``: a small asset root of own geometry in the published layout.

A two-armed robot and the objects of two tasks (``place_empty_cup``, ``click_bell``), made of cylinders and boxes: enough to
try an installation, and what the tests run on. Nothing of it comes from RoboTwin's assets, and nothing learned on it says
anything about the benchmark. Runs in the simulator's own interpreter (it needs trimesh).

Lengths are in metres. Objects are y-up, as RoboTwin's are.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIDES = {"left": "fl", "right": "fr"}
"""Prefixes of links and joints."""
BASE = {"left": (-0.3, -0.45, 0.9), "right": (0.3, -0.45, 0.9)}
"""Shoulders in the world, where the first joint's axis crosses the second's."""
UPPER, FORE, HAND = 0.32, 0.28, 0.20
"""Shoulder to elbow, elbow to wrist, wrist to fingertips."""
HOME = (0.0, -1.1, 1.9, 0.77, 0.0, 0.0)
GRIPPER = (-0.005, 0.045)
"""Travel of a finger, closed and open."""
_ROBOT_POSE = (0.0, -0.65, 0.0, 0.70710678, 0.0, 0.0, 0.70710678)
"""In the world: x of the robot is the world's y."""
_COLOURS = {"dark": "0.15 0.16 0.2 1", "light": "0.55 0.6 0.7 1", "orange": "0.85 0.45 0.1 1"}


def reach(side: str, tip: Sequence[float]) -> tuple[float, ...]:
    """Return the six joint angles that put the fingertips at a point of the world, pointing down.

    Raises:
        ValueError: the point is out of reach.
    """
    x, y, z = (float(to) - base for to, base in zip(tip, BASE[side], strict=True))
    turn = math.atan2(-x, y)  # from straight ahead, to the left
    along, up = math.hypot(x, y), z + HAND
    squared = along**2 + up**2
    bend = (squared - UPPER**2 - FORE**2) / (2 * UPPER * FORE)
    if not -1 <= bend <= 1:
        raise ValueError(f"{tuple(tip)} is out of the {side} arm's reach")
    elbow = math.acos(bend)
    shoulder = -math.atan2(up, along) - math.atan2(FORE * math.sin(elbow), UPPER + FORE * math.cos(elbow))
    return (turn, shoulder, elbow, math.pi / 2 - shoulder - elbow, 0.0, 0.0)


# ---- the robot ------------------------------------------------------------------------------------------------------


def _link(name: str, size: Sequence[float], centre: Sequence[float], colour: str, *, solid: bool = False) -> str:
    at, box = " ".join(map(str, centre)), " ".join(map(str, size))
    shape = f'<origin xyz="{at}"/><geometry><box size="{box}"/></geometry>'
    collision = f"<collision>{shape}</collision>" if solid else ""
    return (
        f'<link name="{name}"><inertial><origin xyz="{at}"/><mass value="0.3"/>'
        '<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial>'
        f'<visual>{shape}<material name="{name}"><color rgba="{_COLOURS[colour]}"/></material></visual>{collision}</link>'
    )


def _joint(
    name: str, kind: str, parent: str, child: str, at: Sequence[float], axis: str = "0 0 1", low: float = -3.14
) -> str:
    high = 0.05 if kind == "prismatic" else 3.14
    limit = f'<limit lower="{low}" upper="{high}" effort="100" velocity="3.14"/>' if kind != "fixed" else ""
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{" ".join(map(str, at))}"/><axis xyz="{axis}"/>{limit}</joint>'
    )


def _arm(side: str) -> list[str]:
    """Return an arm that lies straight ahead where all joints are zero; positive pitch turns it down."""
    p = SIDES[side]
    x, y, z = BASE[side]
    shoulder = (y - _ROBOT_POSE[1], -x, z)  # in the robot's own frame
    parts = [
        _link(f"{p}_base_link", (0.08, 0.08, 0.06), (0, 0, -0.05), "dark"),
        _joint(f"{p}_base_joint", "fixed", "footprint", f"{p}_base_link", shoulder),
        _link(f"{p}_link1", (0.07, 0.07, 0.07), (0, 0, 0), "dark"),
        _joint(f"{p}_joint1", "revolute", f"{p}_base_link", f"{p}_link1", (0, 0, 0)),
        _link(f"{p}_link2", (UPPER, 0.04, 0.04), (UPPER / 2, 0, 0), "light"),
        _joint(f"{p}_joint2", "revolute", f"{p}_link1", f"{p}_link2", (0, 0, 0), "0 1 0"),
        _link(f"{p}_link3", (FORE, 0.035, 0.035), (FORE / 2, 0, 0), "light"),
        _joint(f"{p}_joint3", "revolute", f"{p}_link2", f"{p}_link3", (UPPER, 0, 0), "0 1 0"),
        _link(f"{p}_link4", (0.04, 0.03, 0.03), (0.02, 0, 0), "dark"),
        _joint(f"{p}_joint4", "revolute", f"{p}_link3", f"{p}_link4", (FORE, 0, 0), "0 1 0"),
        _link(f"{p}_link5", (0.03, 0.03, 0.03), (0.015, 0, 0), "dark"),
        _joint(f"{p}_joint5", "revolute", f"{p}_link4", f"{p}_link5", (0.04, 0, 0)),
        _link(f"{p}_link6", (0.04, 0.1, 0.03), (0.03, 0, 0), "dark"),
        _joint(f"{p}_joint6", "revolute", f"{p}_link5", f"{p}_link6", (0.03, 0, 0), "1 0 0"),
    ]
    length = HAND - 0.12
    for number, sign in ((7, 1), (8, -1)):
        finger = f"{p}_link{number}"
        parts += [
            _link(finger, (length, 0.012, 0.02), (length / 2, 0, 0), "orange", solid=True),
            _joint(
                f"{p}_joint{number}", "prismatic", f"{p}_link6", finger, (0.05, 0.012 * sign, 0), f"0 {sign} 0", -0.01
            ),
        ]
    camera = f"{side}_camera"
    parts += [
        f'<link name="{camera}"><inertial><mass value="0.01"/>'
        '<inertia ixx="1e-5" iyy="1e-5" izz="1e-5" ixy="0" ixz="0" iyz="0"/></inertial></link>',
        _joint(f"{camera}_joint", "fixed", f"{p}_link6", camera, (-0.04, 0, 0.08)),
    ]
    return parts


def _urdf() -> str:
    trunk = _link("footprint", (0.2, 0.7, 0.06), (0.2, 0, 0.82), "dark")
    return "\n".join(['<?xml version="1.0"?><robot name="toy">', trunk, *_arm("left"), *_arm("right"), "</robot>"])


def _robot_config() -> dict[str, Any]:
    prefixes = list(SIDES.values())
    identity = np.eye(3, dtype=int).tolist()
    return {
        "urdf_path": "./urdf/toy.urdf",
        "joint_stiffness": 1000,
        "joint_damping": 200,
        "gripper_stiffness": 1000,
        "gripper_damping": 200,
        "move_group": [f"{p}_link6" for p in prefixes],
        "ee_joints": [f"{p}_joint6" for p in prefixes],
        "arm_joints_name": [[f"{p}_joint{number}" for number in range(1, 7)] for p in prefixes],
        "gripper_name": [{"base": f"{p}_joint7", "mimic": [[f"{p}_joint8", 1.0, 0.0]]} for p in prefixes],
        "gripper_bias": 0.12,
        "gripper_scale": list(GRIPPER),
        "homestate": [list(HOME), list(HOME)],
        "delta_matrix": identity,
        "global_trans_matrix": identity,
        "robot_pose": [list(_ROBOT_POSE)],
        "planner": "mplib_RRT",
        "dual_arm": True,
        "rotate_lim": [0, 1],
        "grasp_perfect_direction": ["front_right", "front_left"],
        "static_camera_list": [
            _camera("head_camera", [0, -0.55, 1.4], [0, 0.55, -0.75]),
            _camera("front_camera", [0, -0.45, 0.85], [0, 1, -0.1]),
        ],
    }


def _camera(name: str, position: list[float], forward: list[float]) -> dict[str, Any]:
    return {"name": name, "type": "D435", "position": position, "forward": forward, "left": [-1, 0, 0]}


def _write_robot(folder: Path) -> None:
    import yaml

    (folder / "urdf").mkdir(parents=True)
    (folder / "urdf" / "toy.urdf").write_text(_urdf())
    (folder / "config.yml").write_text(yaml.safe_dump(_robot_config(), sort_keys=False))
    for arm in SIDES:  # read with every planner
        curobo = {"robot_cfg": {"kinematics": {}}, "planner": {"frame_bias": [0.0, 0.0, 0.0]}}
        (folder / f"curobo_{arm}_tmp.yml").write_text(yaml.safe_dump(curobo))


# ---- objects and textures -------------------------------------------------------------------------------------------


def _at(height: float) -> list[list[float]]:
    """Return the pose of a point above an object's origin."""
    pose = np.eye(4)
    pose[1, 3] = height
    return pose.tolist()  # type: ignore[no-any-return]


def _write_object(
    folder: Path, mesh: Any, *, ids: Sequence[int], colour: tuple[int, int, int], top: float, functional: float
) -> None:
    """Write an object: its picture, its convex hull to collide with, and its points."""
    import trimesh

    for part in ("visual", "collision"):
        (folder / part).mkdir(parents=True)
    material = trimesh.visual.material.PBRMaterial(baseColorFactor=[*colour, 255])
    for number in ids:
        shown = mesh.copy()
        shown.visual = trimesh.visual.TextureVisuals(material=material)
        shown.export(folder / "visual" / f"base{number}.glb")
        mesh.convex_hull.export(folder / "collision" / f"base{number}.glb")
        about = {
            "center": mesh.bounds.mean(0).tolist(),
            "extents": mesh.extents.tolist(),
            "scale": [1.0, 1.0, 1.0],
            "transform_matrix": np.eye(4).tolist(),
            "target_pose": [np.eye(4).tolist()],
            "functional_matrix": [_at(functional)],
            "contact_points_pose": [_at(top)],
            "contact_points_group": [[0]],
            "contact_points_mask": [True],
            "orientation_point": np.eye(4).tolist(),
            "stable": True,
        }
        (folder / f"model_data{number}.json").write_text(json.dumps(about))


def _standing(radius: float, height: float) -> Any:
    """Return a cylinder that stands on the origin, y-up."""
    import trimesh

    mesh = trimesh.creation.cylinder(radius=radius, height=height, sections=32)
    mesh.apply_transform(trimesh.transformations.rotation_matrix(-math.pi / 2, [1, 0, 0]))
    mesh.apply_translation([0, height / 2, 0])
    return mesh


def _write_objects(folder: Path) -> None:
    _write_object(folder / "021_cup", _standing(0.03, 0.08), ids=(0,), colour=(60, 110, 220), top=0.08, functional=0.0)
    _write_object(
        folder / "019_coaster", _standing(0.05, 0.008), ids=(0,), colour=(120, 70, 30), top=0.008, functional=0.008
    )
    _write_object(
        folder / "050_bell", _standing(0.035, 0.04), ids=(0, 1), colour=(220, 190, 40), top=0.04, functional=0.04
    )
    (folder / "objaverse").mkdir()
    empty: dict[str, Any] = {"item_names": [], "list_of_items": {}, "z_max": {}, "radius": {}, "z_offset": {}}
    (folder / "objaverse" / "list.json").write_text(json.dumps(empty))
    (folder / "same.json").write_text("{}")


def _write_textures(folder: Path) -> None:
    from PIL import Image

    for part, first in (("seen", 0), ("unseen", 3)):
        (folder / part).mkdir(parents=True)
        for number in range(3):
            noise = np.random.default_rng(first + number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((256, 256), Image.Resampling.NEAREST).save(folder / part / f"{number}.png")


def write(folder: Path) -> Path:
    """Write the asset root; returns it.

    Args:
        folder: to make; it will contain ``assets/``.
    """
    there = folder / "assets"
    _write_robot(there / "embodiments" / "aloha-agilex")
    _write_objects(there / "objects")
    _write_textures(there / "background_texture")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rlvla_sim_robotwin.toy_assets", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to make; sim.assets takes it")
    folder = parser.parse_args().folder
    if folder.exists() and any(folder.iterdir()):
        sys.stderr.write(f"{folder} is there and not empty; give a folder that is to be made\n")
        return 2
    write(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sys.stdout.write(f"asset root in {folder}: {size / 1024:.0f} KiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
