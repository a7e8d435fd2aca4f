"""The environment of :mod:`rlvla_sim_maniskill.plate25`: a WidowX arm, a table that is a photograph, things to put on plates.

All things of the data set stand in a scene; those that an episode does not use are parked out of sight. What the camera sees
of neither robot nor things is replaced by the table's photograph, as in ManiSkill's digital twins. Imported in the process
that runs the simulator, where it registers the tasks.

Letters: n rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import sapien
import torch
from mani_skill.agents.robots.widowx.widowx import WidowX250S  # noqa: F401  (registers the robot)
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.tasks.digital_twins.bridge_dataset_eval.base_env import WidowX250SBridgeDatasetFlatTable
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.geometry import rotation_conversions
from mani_skill.utils.registration import REGISTERED_ENVS, register_env
from mani_skill.utils.structs.pose import Pose
from mani_skill.utils.structs.types import SimConfig

from rlvla.errors import SimulatorError
from rlvla_sim_maniskill import plate25
from rlvla_sim_maniskill.plate25 import CAMERA, Episode, ObjectSet

_ARM = (-0.01840777, 0.0398835, 0.22242722, -0.00460194, 1.36524296, 0.00153398)
_FINGERS = (0.037, 0.037)
_ROBOT_PLACE, _ROBOT_TURN = (0.147, 0.028, 0.870), (0.0, 0.0, 0.0, 1.0)
_OUT_OF_THE_WAY = (0.147, 0.028, 1.870)
"""Of the robot while things fall to rest."""
_TABLE_TURN, _TABLE_PLACE = (0.707, 0.707, 0.0, 0.0), (2.0634, 2.8313, 0.0)
_FRICTION = 1.0
_GRASPED_STEPS = 5
_BESIDE, _ABOVE, _TOUCH = 0.01, 0.05, 0.03
"""On the plate: within its half length and this much (m); not higher above it than this (m); pressing at least so much (N)."""
_REST_STEPS, _MORE_REST_STEPS = 50, 600
_MOVING = (1e-3, 1e-2)
"""Of things that have not come to rest (m/s, rad/s)."""


class PutOnPlate(BaseEnv):  # type: ignore[misc]
    """One of :data:`rlvla_sim_maniskill.plate25.VARIANTS`.

    Args:
        variant: its name.
        objects: what is drawn from: for training, held out, or both.
        assets: folder of the data set; None: beside ManiSkill's own downloads.
    """

    SUPPORTED_OBS_MODES = ("none", "rgb+segmentation")
    SUPPORTED_REWARD_MODES = ("sparse", "none")

    def __init__(
        self, *args: Any, variant: str, objects: ObjectSet = "train", assets: str | None = None, **kwargs: Any
    ):
        self.variant, self.object_set = plate25.VARIANTS[variant], objects
        self._root = plate25.folder(assets)
        self._entries = {kind: plate25.things(self._root, kind) for kind in _THINGS}
        self._table_entries = plate25.tables(self._root)
        self._names = {kind: list(entries) for kind, entries in self._entries.items()}
        self._table_names = list(self._table_entries)
        self._tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._episodes: dict[int, Episode] = {}
        super().__init__(*args, robot_uids=WidowX250SBridgeDatasetFlatTable, **kwargs)

    # ---- the scene --------------------------------------------------------------------------------------------------

    @property
    def _default_sim_config(self) -> SimConfig:
        return SimConfig(sim_freq=500, control_freq=5, spacing=20)

    @property
    def _default_human_render_camera_configs(self) -> CameraConfig:
        return CameraConfig("render_camera", sapien.Pose([0.6, 0.5, 1.5], [0.25, -0.2, 0.06, -0.94]), 512, 512, fov=1.0)

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(_ROBOT_PLACE, _ROBOT_TURN))
        for robot in self.agent.robot._objs:  # else the arm is darker than in ManiSkill's own Bridge scenes
            sapien_utils.set_articulation_render_material(robot, specular=0.9, roughness=0.3)

    def _load_scene(self, options: dict[str, Any]) -> None:
        stage = plate25.maniskill_data() / "tasks/bridge_v2_real2sim_dataset/stages/bridge_table_1_v1.glb"
        builder = self.scene.create_actor_builder()
        turned = sapien.Pose(q=_TABLE_TURN)
        builder.add_nonconvex_collision_from_file(str(stage), pose=turned)
        builder.add_visual_from_file(str(stage), pose=turned)
        builder.initial_pose = sapien.Pose(_TABLE_PLACE)
        self._whole(builder.build_static(name="arena"), stage, stage)
        self._things = {kind: [self._thing(kind, n) for n in range(len(self._names[kind]))] for kind in _THINGS}
        self._sizes = {
            kind: torch.stack([self._size(kind, n) for n in range(len(some))]) for kind, some in self._things.items()
        }

    def _thing(self, kind: str, number: int) -> Any:
        """Build one object (plate), parked."""
        name = self._names[kind][number]
        entry, place = self._entries[kind][name], self._root / kind / name
        scale = [entry.scale[0]] * 3
        material = sapien.physx.PhysxMaterial(_FRICTION, _FRICTION, 0.0)
        builder = self.scene.create_actor_builder()
        builder.add_multiple_convex_collisions_from_file(
            str(place / "collision.obj"), scale=scale, material=material, density=entry.density
        )
        builder.add_visual_from_file(str(plate25.shape_of(place)), scale=scale)
        builder.initial_pose = sapien.Pose(_parked(kind, number))
        return self._whole(builder.build(name=name), place / "collision.obj", plate25.shape_of(place))

    def _whole(self, actor: Any, collision: Path, shape: Path) -> Any:
        """Return an actor that has what files give it: of a damaged one SAPIEN says a word, and goes on without.

        Raises:
            SimulatorError: a file gave nothing.
        """
        parts = actor._objs[0].components
        solid = any(len(one.collision_shapes) for one in parts if hasattr(one, "collision_shapes"))
        seen = not self.scene.can_render() or any(map(_is_drawn, parts))
        for file, there in ((collision, solid), (shape, seen)):
            if not there:
                raise SimulatorError(f"{file} holds no mesh that can be read: download it again")
        return actor

    def _size(self, kind: str, number: int) -> torch.Tensor:
        """Return length, width and height (m) as the thing was modelled."""
        entry = self._entries[kind][self._names[kind][number]]
        span = np.subtract(entry.bbox.max, entry.bbox.min) * entry.scale[0]
        return torch.as_tensor(span, dtype=torch.float32, device=self.device)

    def _load_lighting(self, options: dict[str, Any]) -> None:
        self.scene.set_ambient_light([0.3, 0.3, 0.3])
        for direction, colour in (([0, 0, -1], [2.2] * 3), ([-1, -0.5, -1], [0.7] * 3), ([1, 1, -1], [0.7] * 3)):
            self.scene.add_directional_light(direction, colour)

    def _after_reconfigure(self, options: dict[str, Any]) -> None:
        shown = [actor._objs[0].per_scene_id for some in self._things.values() for actor in some]
        shown += [link._objs[0].entity.per_scene_id for link in self.agent.robot.get_links()]
        self._shown_ids = torch.tensor(shown, dtype=torch.int16, device=self.device)

    # ---- an episode -------------------------------------------------------------------------------------------------

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        rows = [int(row) for row in env_idx]
        for row in rows:
            self._episodes[row] = plate25.draw(self.variant, self.object_set, self._batched_episode_rng[row])
        if not hasattr(self, "_once"):
            self._forget_all()
        for values in (self._grasped_steps, self._counted_at, *self._once.values()):
            values[env_idx] = 0
        self.agent.robot.set_pose(sapien.Pose(_OUT_OF_THE_WAY, _ROBOT_TURN))
        self._put_things(rows)
        if self.num_envs == 1:  # a batch is stepped as a whole: others would fall along
            self._rest()
        self.agent.robot.set_pose(sapien.Pose(_ROBOT_PLACE, _ROBOT_TURN))
        joints = [(*np.add(_ARM, self._episodes[row].joints), *_FINGERS) for row in rows]
        self.agent.reset(init_qpos=torch.tensor(joints, dtype=torch.float32, device=self.device))
        for kind, halves in self._half_sizes.items():
            halves[rows] = self._upright_halves(kind)[rows]

    def _forget_all(self) -> None:
        """Make what is remembered of each row's episode."""
        self._grasped_steps, self._counted_at = (
            torch.zeros(self.num_envs, dtype=torch.int32, device=self.device) for _ in range(2)
        )
        self._once = {
            name: torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
            for name in ("is_src_obj_grasped", "consecutive_grasp")
        }
        self._half_sizes = {kind: torch.zeros(self.num_envs, 3, device=self.device) for kind in _THINGS}

    def _put_things(self, rows: list[int]) -> None:
        """Give every thing its place in these rows; the reset mask keeps the others'."""
        for kind, things in self._things.items():
            for number, actor in enumerate(things):
                poses = [self._pose_of(kind, number, self._episodes[row]) for row in rows]
                actor.set_pose(Pose.create(torch.tensor(poses, dtype=torch.float32, device=self.device)))

    def _pose_of(self, kind: str, number: int, episode: Episode) -> tuple[float, ...]:
        """Return position and quaternion of a thing at an episode's start."""
        meant = episode.object_ if kind == "more_carrot" else episode.plate
        distracts = {"object": "more_carrot", "plate": "more_plate", None: ""}[self.variant.distractor] == kind
        place = None
        if number == meant:
            place = 0 if kind == "more_carrot" else 1
        elif distracts and number == episode.second:
            place = 2
        if place is None:
            return (*_parked(kind, number), 1.0, 0.0, 0.0, 0.0)
        height = self.variant.heights[place]
        return (*episode.places[place], height, *_turned(episode.turn if kind == "more_carrot" else 0.0))

    def _rest(self) -> None:
        """Let things fall to rest."""
        for steps in (_REST_STEPS, _MORE_REST_STEPS):
            for _ in range(steps):
                self.scene.step()
            moving = [self._meant(kind) for kind in _THINGS]
            fast = sum(float(torch.linalg.norm(one.linear_velocity)) for one in moving) > _MOVING[0]
            turning = sum(float(torch.linalg.norm(one.angular_velocity)) for one in moving) > _MOVING[1]
            if not (fast or turning):
                return

    def _meant(self, kind: str, row: int = 0) -> Any:
        """Return the object (plate) that a row's instruction names."""
        episode = self._episodes[row]
        return self._things[kind][episode.object_ if kind == "more_carrot" else episode.plate]

    def _poses(self, kind: str) -> torch.Tensor:
        """Return position and quaternion of what is meant, ``[n, 7]``."""
        return torch.stack([self._meant(kind, row).pose.raw_pose[row] for row in range(self.num_envs)])

    def _upright_halves(self, kind: str) -> torch.Tensor:
        """Return half the extents of what is meant along the world's axes, ``[n, 3]``, as it lies now."""
        numbers = [self._number(kind, row) for row in range(self.num_envs)]
        rotation = rotation_conversions.quaternion_to_matrix(self._poses(kind)[:, 3:])
        return (rotation.abs() @ (self._sizes[kind][numbers] / 2)[..., None]).squeeze(-1)

    def _number(self, kind: str, row: int) -> int:
        episode = self._episodes[row]
        return episode.object_ if kind == "more_carrot" else episode.plate

    def _after_control_step(self) -> None:
        if not self.variant.moves or self.object_set == "train":
            return
        for row in range(self.num_envs):
            if int(self._elapsed_steps[row]) + 1 == plate25.MOVED_AFTER:
                self._move_object(row)

    def _move_object(self, row: int) -> None:
        """Put the object of one row elsewhere."""
        episode, actor = self._episodes[row], self._meant("more_carrot", row)
        pose = actor.pose.raw_pose.clone()
        new = (*episode.places[2], self.variant.heights[2], *_turned(episode.turn))
        pose[row] = torch.tensor(new, dtype=torch.float32, device=self.device)
        actor.set_pose(Pose.create(pose))
        if self.gpu_sim_enabled:
            self.scene._gpu_apply_all()

    # ---- what happens in it -----------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, torch.Tensor]:
        """Return whether the object is held, was held for five steps in a row, and lies on the plate; bool ``[n]`` each."""
        held = torch.stack([self.agent.is_grasping(self._meant("more_carrot", r))[r] for r in range(self.num_envs)])
        fresh = self._elapsed_steps != self._counted_at  # a second look at the same step counts nothing
        self._counted_at = self._elapsed_steps.clone()
        self._grasped_steps = torch.where(fresh, torch.where(held, self._grasped_steps + 1, 0), self._grasped_steps)
        self._once["is_src_obj_grasped"] = self._once["is_src_obj_grasped"] | (held & fresh)
        self._once["consecutive_grasp"] = self._once["consecutive_grasp"] | (self._grasped_steps >= _GRASPED_STEPS)
        return {**self._once, "success": self._on_plate()}

    def _on_plate(self) -> torch.Tensor:
        apart = self._poses("more_carrot")[:, :3] - self._poses("more_plate")[:, :3]
        thing, plate = self._half_sizes["more_carrot"], self._half_sizes["more_plate"]
        beside = torch.linalg.norm(apart[:, :2], dim=1) <= plate.amax(1) + _BESIDE
        above = (apart[:, 2] > 0) & (apart[:, 2] - plate[:, 2] - thing[:, 2] <= _ABOVE)
        pairs = [(self._meant("more_carrot", row), self._meant("more_plate", row)) for row in range(self.num_envs)]
        forces = torch.stack([self.scene.get_pairwise_contact_forces(*pair)[row] for row, pair in enumerate(pairs)])
        return beside & above & (torch.linalg.norm(forces, dim=1) > _TOUCH)

    def get_language_instruction(self) -> list[str]:
        """Return what each row is asked to do."""
        said = []
        for row in range(self.num_envs):
            episode = self._episodes[row]
            names = [self._entries[kind][self._names[kind][self._number(kind, row)]].name for kind in _THINGS]
            said.append(episode.words.format(*names))
        return said

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, torch.Tensor]:
        if not self.obs_mode_struct.use_state:
            return {}
        return {"object_pose": self._poses("more_carrot"), "plate_pose": self._poses("more_plate")}

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def _get_obs_sensor_data(self, apply_texture_transforms: bool = True) -> dict[str, Any]:
        seen: dict[str, Any] = super()._get_obs_sensor_data(apply_texture_transforms)
        picture = seen[CAMERA]
        rgb, ids = picture["rgb"][..., :3].float(), picture["segmentation"][..., 0]
        things = torch.isin(ids, self._shown_ids.to(ids.device))[..., None]
        mixed = [self._mixed(rgb[row], things[row], self._episodes[row].table) for row in range(self.num_envs)]
        picture["rgb"] = torch.stack(mixed).clamp(0, 255).to(torch.uint8)
        return seen

    def _mixed(self, rgb: torch.Tensor, things: torch.Tensor, table: int) -> torch.Tensor:
        """Return a picture ``[height, width, 3]`` on a table's photograph, with its texture where the variant has one."""
        photograph, texture = self._table(table, rgb)
        share = self._table_entries[self._table_names[table]].mix * self.variant.strength
        if self.variant.texture == "things":
            rgb = rgb * (1 - share) + _stretched(texture, things) * share
        whole = torch.where(things, rgb, photograph)
        if self.variant.texture == "picture":
            whole = whole * (1 - share) + _cut(texture, things) * share
        return whole

    def _table(self, number: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return photograph and texture of a table, float32 RGB; read once. A texture over all is twice as large."""
        if number not in self._tables:
            name = self._table_names[number]
            place, entry = self._root / "more_table", self._table_entries[name]
            height, width = like.shape[:2]
            double = 2 if self.variant.texture == "picture" else 1
            self._tables[number] = (
                _read(place / "imgs" / name, height, width, like.device),
                _read(place / "textures" / entry.texture, height * double, width * double, like.device),
            )
        return self._tables[number]


_THINGS = ("more_carrot", "more_plate")


def _is_drawn(part: Any) -> bool:
    """Return whether a body has something to draw, which SAPIEN reads only now."""
    try:
        return any(len(shape.parts) for shape in getattr(part, "render_shapes", ()))
    except RuntimeError:
        return False


def _parked(kind: str, number: int) -> tuple[float, float, float]:
    """Return where a thing lies that an episode does not use: side by side, out of the camera's sight."""
    return (1.0 if kind == "more_carrot" else 2.0, 0.3 * number, 1.0)


def _turned(half_turns: float) -> tuple[float, float, float, float]:
    """Return the quaternion of a turn about the vertical."""
    return float(np.cos(np.pi * half_turns / 2)), 0.0, 0.0, float(np.sin(np.pi * half_turns / 2))


def _read(path: Path, height: int, width: int, device: torch.device) -> torch.Tensor:
    stored = cv2.imread(str(path))
    if stored is None:
        raise SimulatorError(f"{path} is no picture that can be read: download it again")
    picture = cv2.cvtColor(cv2.resize(stored, (width, height)), cv2.COLOR_BGR2RGB)
    return torch.as_tensor(picture, dtype=torch.float32, device=device)


def _box(things: torch.Tensor) -> tuple[int, int, int, int]:
    """Return the first and last row and column where there is something."""
    rows, columns = (torch.nonzero(things[..., 0].any(1 - axis)).flatten() for axis in (0, 1))
    if not len(rows):
        return 0, things.shape[0] - 1, 0, things.shape[1] - 1
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


def _stretched(texture: torch.Tensor, things: torch.Tensor) -> torch.Tensor:
    """Return a picture that holds the texture, scaled to the box around the things."""
    top, bottom, left, right = _box(things)
    size = (bottom - top + 1, right - left + 1)
    scaled = torch.nn.functional.interpolate(texture.permute(2, 0, 1)[None], size=size, mode="bilinear")
    whole = torch.zeros_like(texture)
    whole[top : bottom + 1, left : right + 1] = scaled[0].permute(1, 2, 0)
    return whole


def _cut(texture: torch.Tensor, things: torch.Tensor) -> torch.Tensor:
    """Return the part of a texture of twice the size that the middle of the things says: it moves with them."""
    height, width = things.shape[:2]
    top, bottom, left, right = _box(things)
    y, x = min(max((top + bottom) // 2, 1), height - 1), min(max((left + right) // 2, 1), width - 1)
    return texture[y : y + height, x : x + width]


def _register() -> None:
    for name in plate25.VARIANTS:
        if name not in REGISTERED_ENVS:
            register_env(name, max_episode_steps=80, variant=name)(PutOnPlate)


_register()
