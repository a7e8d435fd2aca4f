"""Stand-ins of the assets of ``PutOnPlateInScene25...``, generated: boxes, plain pictures and an arm of boxes, in the public
layout. The arm has the joints, limits and links that ManiSkill's WidowX names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import trimesh
from PIL import Image

TABLE_TOP = 0.86
PLATE = (0.12, 0.12, 0.01)

# name, parent, child, kind, place, axis, lower and upper limit
_JOINTS = (
    ("waist", "base_link", "shoulder_link", "revolute", (0, 0, 0.072), (0, 0, 1), -3.1, 3.1),
    ("shoulder", "shoulder_link", "upper_arm_link", "revolute", (0, 0, 0.039), (0, 1, 0), -1.9, 1.9),
    ("elbow", "upper_arm_link", "upper_forearm_link", "revolute", (0.05, 0, 0.25), (0, 1, 0), -2.1, 1.6),
    ("forearm_roll", "upper_forearm_link", "lower_forearm_link", "revolute", (0.175, 0, 0), (1, 0, 0), -3.1, 3.1),
    ("wrist_angle", "lower_forearm_link", "wrist_link", "revolute", (0.075, 0, 0), (0, 1, 0), -1.7, 2.1),
    ("wrist_rotate", "wrist_link", "gripper_link", "revolute", (0.065, 0, 0), (1, 0, 0), -3.1, 3.1),
    ("ee_gripper", "gripper_link", "ee_gripper_link", "fixed", (0.09, 0, 0), (1, 0, 0), 0, 0),
    ("left_finger", "gripper_link", "left_finger_link", "prismatic", (0.09, 0, 0), (0, 1, 0), 0.015, 0.037),
    ("right_finger", "gripper_link", "right_finger_link", "prismatic", (0.09, 0, 0), (0, -1, 0), 0.015, 0.037),
)
_SIZES = {"left_finger_link": (0.04, 0.01, 0.02), "right_finger_link": (0.04, 0.01, 0.02), "ee_gripper_link": None}


def write(maniskill: Path, data_set: Path) -> None:
    """Write everything: what ManiSkill would download, and the data set."""
    _robot(maniskill / "data/robots/widowx")
    _stage(maniskill / "data/tasks/bridge_v2_real2sim_dataset/stages")
    _bridge(maniskill / "data/tasks/bridge_v2_real2sim_dataset")
    random = np.random.default_rng(0)
    _things(data_set / "carrot/more_carrot", 25, lambda: tuple(random.uniform(0.02, 0.04, 3)), "thing")
    _things(data_set / "carrot/more_plate", 17, lambda: PLATE, "plate")
    _tables(data_set / "carrot/more_table", random)


def _robot(place: Path) -> None:
    links = ["base_link", *(joint[2] for joint in _JOINTS)]
    parts = [_link(name, _SIZES.get(name, (0.03, 0.03, 0.03))) for name in links]
    parts += [_joint(*joint) for joint in _JOINTS]
    place.mkdir(parents=True)
    (place / "wx250s.urdf").write_text(f'<robot name="wx250s">{"".join(parts)}</robot>')


def _link(name: str, size: tuple[float, float, float] | None) -> str:
    inertia = '<inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" iyz="0"/>'
    shape = ""
    if size is not None:
        box = f'<geometry><box size="{size[0]} {size[1]} {size[2]}"/></geometry>'
        shape = f"<visual>{box}</visual><collision>{box}</collision>"
    return f'<link name="{name}"><inertial><mass value="0.1"/>{inertia}</inertial>{shape}</link>'


def _joint(name: str, parent: str, child: str, kind: str, place: tuple, axis: tuple, lower: float, upper: float) -> str:
    xyz, about = (" ".join(map(str, some)) for some in (place, axis))
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/><origin xyz="{xyz}" rpy="0 0 0"/>'
        f'<axis xyz="{about}"/><limit lower="{lower}" upper="{upper}" effort="100" velocity="3"/></joint>'
    )


def _stage(place: Path) -> None:
    """A slab; glTF has y upwards, and the task moves and turns the stage."""
    place.mkdir(parents=True)
    slab = trimesh.creation.box((1.0, 0.1, 1.0))
    slab.apply_translation((-0.16 - 2.0634, TABLE_TOP - 0.05, 2.8313))
    slab.export(place / "bridge_table_1_v1.glb")


def _bridge(place: Path) -> None:
    """What ManiSkill's own PutCarrotOnPlateInScene-v1 has besides."""
    sizes = {"bridge_carrot_generated_modified": (0.06, 0.03, 0.03), "bridge_plate_objaverse_larger": PLATE}
    entries = {}
    for name, size in sizes.items():
        box, half = trimesh.creation.box(size), np.array(size) / 2
        (place / "custom/models" / name).mkdir(parents=True)
        box.export(place / "custom/models" / name / "collision.obj")
        box.export(place / "custom/models" / name / "textured.glb")
        entries[name] = {"bbox": {"min": (-half).tolist(), "max": half.tolist()}, "scales": [1.0]}
    (place / "custom/info_bridge_custom_v0.json").write_text(json.dumps(entries))
    (place / "real_inpainting").mkdir()
    Image.new("RGB", (640, 480), (10, 200, 30)).save(place / "real_inpainting/bridge_real_eval_1.png")


def _things(place: Path, count: int, size: object, word: str) -> None:
    entries = {}
    for number in range(count):
        name, extent = f"{word}_{number:02d}", np.array(size())  # type: ignore[operator]
        (place / name).mkdir(parents=True)
        box = trimesh.creation.box(extent)
        box.export(place / name / "collision.obj")
        box.visual.vertex_colors = [40 + 8 * number, 120, 200 - 7 * number, 255]
        box.export(place / name / "textured.glb")
        entries[name] = {
            "name": f"{word} {number}",
            "bbox": {"min": (-extent / 2).tolist(), "max": (extent / 2).tolist()},
            "scale": [1.0],
        }
    (place / "model_db.json").write_text(json.dumps(entries))


def _tables(place: Path, random: np.random.Generator) -> None:
    entries = {}
    for folder in ("imgs", "textures"):
        (place / folder).mkdir(parents=True)
    for number in range(21):
        name, texture = f"{number:03d}.png", f"texture_{number:03d}.png"
        Image.new("RGB", (64, 48), tuple(random.integers(0, 256, 3).tolist())).save(place / "imgs" / name)
        Image.fromarray(random.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(place / "textures" / texture)
        entries[name] = {"texture": texture, "mix": 1.0}
    (place / "model_db.json").write_text(json.dumps(entries))
