"""The tasks ``PutOnPlateInScene25...``: what each varies, what an episode draws, which files they need. Light.

25 objects, 17 plates and 21 table pictures of a public data set, a WidowX arm, one picture of 640x480. RL is trained on the
first 16 objects and tables (``objects: train``) and measured on held-out ones (``objects: test``). Each task below varies one
thing. Numbers and names: github.com/RLinf/RLinf, ``rlinf/envs/maniskill/tasks`` (after github.com/gen-robot/RL4VLA,
arXiv:2505.19789); the task is ours, so scores near published ones are comparable, equal bits are not to be expected:

* an object's scale is the first of its list, not drawn when a scene is built;
* wordings of ``...Instruct-v1`` are ours;
* an episode is drawn from its seed, not from a number that runs over all combinations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

from annotated_types import Gt, MinLen

from rlvla.checkpoint_header import Finite, read_as, read_json
from rlvla.errors import CheckpointError
from rlvla.specs import ActionPart, StatePart
from rlvla_sim_maniskill.header import CameraHeader, ControlMode, TaskHeader

ObjectSet = Literal["train", "test", "all"]
Places = Literal["grid", "around", "two_objects", "two_plates"]
DATA_SET = "RLinf/maniskill_assets"
SUITE = "plate25"
CAMERA = "3rd_view_camera"
KINDS = {"more_carrot": 25, "more_plate": 17, "more_table": 21}
"""Folder of the data set to the number of entries in its ``model_db.json``."""


@dataclass(frozen=True)
class Range:
    """Numbers ``first`` to ``first + count - 1``."""

    first: int
    count: int


@dataclass(frozen=True)
class Split:
    """What is trained on, and what is held out."""

    train: Range
    test: Range

    def of(self, objects: ObjectSet) -> Range:
        """Return the numbers of a set; ``all``: both."""
        if objects == "all":
            first = min(self.train.first, self.test.first)
            end = max(one.first + one.count for one in (self.train, self.test))
            return Range(first, end - first)
        return self.train if objects == "train" else self.test


_OBJECTS = Split(Range(0, 16), Range(0, 16))
_NEW_OBJECTS = Split(Range(0, 16), Range(16, 9))
_TABLES = Split(Range(0, 16), Range(0, 16))
_NEW_TABLES = Split(Range(0, 16), Range(16, 5))
_ALL_TABLES = Split(Range(0, 21), Range(0, 21))
_PLATE = Split(Range(0, 1), Range(0, 1))
_NEW_PLATES = Split(Range(0, 1), Range(1, 16))


@dataclass(frozen=True)
class Variant:
    """What a task varies between training and test; everything else is as in training."""

    name: str
    objects: Split = _OBJECTS
    plates: Split = _PLATE
    tables: Split = _TABLES
    places: Places = "grid"
    """Where things lie: on the grid of 6x6 places, in test ``around`` it, or with a second object or plate beside them."""
    heights: tuple[float, float, float] = (0.90, 0.90, 0.90)
    """Object, plate and second thing are dropped from there (m)."""
    distractor: Literal["object", "plate"] | None = None
    """A second object (plate) lies beside the one that is meant."""
    moves: bool = False
    """In test the object is put elsewhere after ``MOVED_AFTER`` steps."""
    robot_pose: bool = False
    """In test the arm starts from another pose."""
    wording: bool = False
    """In test the instruction is worded otherwise."""
    texture: Literal["things", "picture"] | None = None
    """A picture is mixed over the robot and the things, or over all."""
    strength: float = 0.0
    """How much of it, times what the table's entry says."""


MOVED_AFTER = 5
VARIANTS: Mapping[str, Variant] = {
    one.name: one
    for one in (
        Variant("PutOnPlateInScene25Main-v3", objects=_NEW_OBJECTS, tables=_NEW_TABLES),
        Variant("PutOnPlateInScene25VisionImage-v1", tables=_NEW_TABLES),
        Variant("PutOnPlateInScene25VisionTexture03-v1", texture="things", strength=0.3),
        Variant("PutOnPlateInScene25VisionTexture05-v1", texture="things", strength=0.5),
        Variant("PutOnPlateInScene25VisionWhole03-v1", texture="picture", strength=0.3),
        Variant("PutOnPlateInScene25VisionWhole05-v1", texture="picture", strength=0.5),
        Variant("PutOnPlateInScene25Carrot-v1", objects=_NEW_OBJECTS),
        Variant("PutOnPlateInScene25Plate-v1", plates=_NEW_PLATES),
        Variant("PutOnPlateInScene25Instruct-v1", wording=True),
        Variant(
            "PutOnPlateInScene25MultiCarrot-v1",
            objects=_NEW_OBJECTS,
            places="two_objects",
            heights=(0.95, 0.92, 1.0),
            distractor="object",
        ),
        Variant(
            "PutOnPlateInScene25MultiPlate-v1",
            plates=_NEW_PLATES,
            tables=_ALL_TABLES,
            places="two_plates",
            heights=(1.0, 0.92, 0.96),
            distractor="plate",
        ),
        Variant("PutOnPlateInScene25Position-v1", places="around", heights=(0.95, 0.95, 0.95)),
        Variant("PutOnPlateInScene25EEPose-v1", robot_pose=True),
        Variant("PutOnPlateInScene25PositionChangeTo-v1", places="two_objects", heights=(0.95, 0.92, 1.0), moves=True),
    )
}

OWN_WORDS = "put {} on {}"
NEW_WORDS = (
    "lay the {} onto the {}",
    "the {} belongs on the {}",
    "bring the {} over to the {} and let go of it there",
    "can you get the {} onto the {}?",
    "drop the {} off at the {}",
    "I want to see the {} on the {}",
    "the {} has to end up on the {}",
    "use the {} and rest it upon the {}",
)

# ---- an episode -----------------------------------------------------------------------------------------------------

CENTRE, HALF = (-0.16, 0.0), 0.075
"""Of the square on the table that the grid lies in (m)."""
CLOSE, FAR = 0.070, 0.150
"""Things lie farther apart than this (m); the second of two alike farther than ``FAR``."""
TURNS = (0.0, 0.25, 0.5, 0.75)
"""Of the object about the vertical, in half turns."""
NEW_TURNS = (-0.125, -0.375, -0.625, -0.875)
JOINT_OFFSETS = (-0.15, -0.08, 0.0, 0.08, 0.15)
"""Of the first five joints (rad) where the arm starts elsewhere."""
WRIST_OFFSETS = (-0.6, -0.3, 0.0, 0.3, 0.6)
LEAN = 0.25
"""Shoulder and elbow together are off by at most this (rad): the hand stays above the table."""


@dataclass(frozen=True)
class Episode:
    """What is where."""

    object_: int
    plate: int
    table: int
    places: tuple[tuple[float, float], ...]
    """Of object, plate, and (where there is one) the second thing, or where the object is moved to."""
    turn: float
    """Of the object about the vertical, in half turns."""
    second: int | None = None
    """Number of the second object (plate)."""
    joints: tuple[float, ...] = (0.0,) * 6
    """Offsets of the arm's joints (rad)."""
    words: str = OWN_WORDS


def draw(variant: Variant, objects: ObjectSet, random: Any) -> Episode:
    """Draw an episode with a numpy generator (``RandomState``)."""
    test = objects != "train"
    new = test and (objects == "test" or bool(random.randint(2)))
    around = variant.places == "around" and new
    episode = Episode(
        object_=_number(variant.objects.of(objects), random),
        plate=_number(variant.plates.of(objects), random),
        table=_number(variant.tables.of(objects), random),
        places=_places(variant.places, around, random),
        turn=_one(NEW_TURNS if around else TURNS, random),
    )
    if variant.distractor == "object":
        episode = replace(episode, second=_other(variant.objects.of(objects), episode.object_, random))
    elif variant.distractor == "plate":
        there = Range(0, 17) if objects != "test" else variant.plates.test
        episode = replace(episode, second=_other(there, episode.plate, random))
    if variant.robot_pose and new:
        episode = replace(episode, joints=_joints(random))
    if variant.wording and new:
        episode = replace(episode, words=_one(NEW_WORDS, random))
    return episode


def _one(some: Any, random: Any) -> Any:
    return some[random.randint(len(some))]


def _number(range_: Range, random: Any) -> int:
    return range_.first + int(random.randint(range_.count))


def _other(range_: Range, not_this: int, random: Any) -> int:
    """Draw a number of a range that is another one."""
    return _one([number for number in range(range_.first, range_.first + range_.count) if number != not_this], random)


def _places(places: Places, around: bool, random: Any) -> tuple[tuple[float, float], ...]:
    """Draw places that are far enough from each other; all such combinations are equally likely."""
    cells = _ring() if around else _grid()
    while True:
        one, plate, second = (_one(cells, random) for _ in range(3))
        if places in ("grid", "around"):
            if _distance(one, plate) > CLOSE:
                return one, plate
        elif _apart(places, one, plate, second):
            return one, plate, second


def _apart(places: Places, one: Any, plate: Any, second: Any) -> bool:
    alike = _distance(one, second) if places == "two_objects" else _distance(plate, second)
    unlike = _distance(plate, second) if places == "two_objects" else _distance(one, second)
    return _distance(one, plate) > CLOSE and unlike > CLOSE and alike > FAR


def _distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    return float(((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5)


def _cell(x: int, y: int) -> tuple[float, float]:
    """Return the place of a cell; 0 to 5 lie in the square."""
    return CENTRE[0] + HALF * (0.4 * x - 1), CENTRE[1] + HALF * (0.4 * y - 1)


def _grid() -> list[tuple[float, float]]:
    return [_cell(x, y) for x in range(6) for y in range(6)]


def _ring() -> list[tuple[float, float]]:
    """Return the cells next to the square."""
    return [_cell(x, y) for x in range(-1, 7) for y in range(-1, 7) if x in (-1, 6) or y in (-1, 6)]


def _joints(random: Any) -> tuple[float, ...]:
    while True:
        arm = [_one(JOINT_OFFSETS, random) for _ in range(5)]
        if abs(arm[1] + arm[2]) <= LEAN:
            return (*arm, _one(WRIST_OFFSETS, random))


# ---- files ----------------------------------------------------------------------------------------------------------


def maniskill_data() -> Path:
    """Return where ManiSkill keeps what it downloads."""
    return Path(os.environ.get("MS_ASSET_DIR") or Path.home() / ".maniskill") / "data"


def folder(assets: str | None) -> Path:
    """Return the folder of the data set's ``carrot`` part: what is configured, else beside ManiSkill's own downloads."""
    root = Path(assets).expanduser() if assets is not None else maniskill_data() / DATA_SET.replace("/", "--")
    return root / "carrot"


def commands(assets: str | None) -> str:
    """Return what brings everything."""
    return (
        f"hf download --repo-type dataset {DATA_SET} --local-dir {folder(assets).parent} && "
        "python -m mani_skill.utils.download_asset bridge_v2_real2sim && "
        "python -m mani_skill.utils.download_asset widowx250s"
    )


def missing(assets: str | None) -> list[Path]:
    """Return every file that the tasks open and that is not there."""
    return [path for path in _wanted(folder(assets)) if not path.is_file()]


_Positive = Annotated[Finite, Gt(0)]
_Name = Annotated[str, MinLen(1)]


@dataclass(frozen=True)
class Box:
    """Ends of a thing along its own axes (m)."""

    min: tuple[Finite, Finite, Finite]
    max: tuple[Finite, Finite, Finite]


@dataclass(frozen=True)
class Thing:
    """An object or a plate in ``model_db.json``."""

    name: _Name
    """In instructions."""
    bbox: Box
    scale: Annotated[tuple[_Positive, ...], MinLen(1)] = (1.0,)
    """The first counts."""
    density: _Positive = 1000.0


@dataclass(frozen=True)
class Table:
    """A table in ``model_db.json``."""

    texture: _Name
    mix: Annotated[Finite, Gt(-1)]
    """How much of the texture, times what the task says."""


def things(root: Path, kind: str) -> dict[str, Thing]:
    """Return the objects (plates) of the data set's list, by folder.

    Raises:
        CheckpointError: the list cannot be read, or is damaged.
    """
    return read_as(dict[str, Thing], *_list(root / kind))


def tables(root: Path) -> dict[str, Table]:
    """Return the tables of the data set's list, by picture; errors as of :func:`things`."""
    return read_as(dict[str, Table], *_list(root / "more_table"))


def _list(place: Path) -> tuple[dict[str, Any], Path]:
    file = place / "model_db.json"
    entries = read_json(file)
    inner = [*entries, *(str(one.get("texture", "")) for one in entries.values() if isinstance(one, dict))]
    if outside := [name for name in inner if name and Path(name).name != name]:
        raise CheckpointError(f"{file} names {outside[0]!r}, wanted names of files beside it; download it again")
    return entries, file


def _robot() -> Path:
    return maniskill_data() / "robots/widowx/wx250s.urdf"


def _wanted(root: Path) -> Iterator[Path]:
    yield _robot()
    yield maniskill_data() / "tasks/bridge_v2_real2sim_dataset/stages/bridge_table_1_v1.glb"
    for kind in KINDS:
        database = root / kind / "model_db.json"
        yield database
        if database.is_file() and not _damage(root, kind):
            yield from _files_of(root, kind)


def _files_of(root: Path, kind: str) -> Iterator[Path]:
    place = root / kind
    if kind == "more_table":
        for name, table in tables(root).items():
            yield place / "imgs" / name
            yield place / "textures" / table.texture
    else:
        for name in things(root, kind):
            yield place / name / "collision.obj"
            yield shape_of(place / name)


def _damage(root: Path, kind: str) -> str:
    """Say what is wrong with a list that is there; empty: nothing."""
    try:
        found = len(tables(root) if kind == "more_table" else things(root, kind))
    except CheckpointError as error:
        return str(error)
    return f"{root / kind / 'model_db.json'}: {found} entries, wanted {KINDS[kind]}" if found != KINDS[kind] else ""


def shape_of(place: Path) -> Path:
    """Return the file that a thing looks like: the first that is there of .obj, .dae and .glb."""
    files = [place / f"textured.{ending}" for ending in ("obj", "dae", "glb")]
    return next((file for file in files if file.is_file()), files[0])


def damages(assets: str | None) -> list[str]:
    """Return what is wrong with the robot's description and the data set's lists, where they are there."""
    root = folder(assets)
    found = [_damage(root, kind) for kind in KINDS if (root / kind / "model_db.json").is_file()]
    return [one for one in (_robot_damage(_robot()), *found) if one]


def _robot_damage(file: Path) -> str:
    try:
        if file.is_file():
            ElementTree.parse(file)
    except ElementTree.ParseError as error:
        return f"{file} is no XML that can be read ({error}): python -m mani_skill.utils.download_asset widowx250s"
    return ""


# ---- headers --------------------------------------------------------------------------------------------------------


def headers() -> dict[str, TaskHeader]:
    """Return the headers of all variants."""
    return {name: _header(name) for name in VARIANTS}


def _header(name: str) -> TaskHeader:
    joints = [("qpos", "rad", "m"), ("qvel", "rad/s", "m/s")]
    proprioception = tuple(
        StatePart(f"agent/{kind}/{number}", size, unit, "joint")
        for kind, arm, fingers in joints
        for number, (size, unit) in enumerate(((6, arm), (2, fingers)))
    )
    things = tuple(
        part
        for thing in ("object", "plate")
        for part in (
            StatePart(f"extra/{thing}_pose/position", 3, "m"),
            StatePart(f"extra/{thing}_pose/rotation", 4, rotation="quaternion_wxyz"),
        )
    )
    mode = ControlMode(
        parts=(
            ActionPart("position", 3, "delta", unit="m", frame="base"),
            ActionPart("rotation", 3, "delta", -1.570796, 1.570796, "rad", "base", "euler_xyz"),
            ActionPart("gripper", 1, "gripper", frame="joint", closes_at="low"),
        ),
        state=(
            StatePart("controller/arm/target_pose/position", 3, "m", "base"),
            StatePart("controller/arm/target_pose/rotation", 4, "", "base", "quaternion_wxyz"),
        ),
    )
    return TaskHeader(
        name=name,
        max_episode_steps=80,
        control_hz=5.0,
        rewards=("grasp_and_place", "sparse", "none"),
        cameras=(CameraHeader(CAMERA, 480, 640),),
        proprioception=proprioception,
        state=proprioception + things,
        control_modes={"arm_pd_ee_target_delta_pose_align2_gripper_pd_joint_pos": mode},
        instruction=OWN_WORDS.format("object", "plate"),
        module="rlvla_sim_maniskill.plate25_env",
    )
