"""In which LIBERO tasks do objects come to rest elsewhere under another mujoco release?

    python benchmarks/libero_mujoco_versions.py dump scenes/                       # with mujoco 3.3.7 and LIBERO
    PYTHONPATH=mujoco-3.12.0 python benchmarks/libero_mujoco_versions.py settle scenes/    # for each release; needs numpy
    python benchmarks/libero_mujoco_versions.py compare scenes/ --output benchmarks/results/libero_mujoco_versions.json

``dump`` writes each task's XML, placed fixtures and first stored states. ``settle`` steps them for one second without control
(the arm sags alike in all releases) and notes where each object is. ``compare`` names the tasks in which one of the
objects lies more than 1 cm or 10 degrees from where it lies under 3.3.7. ``pip install --target mujoco-3.12.0 --no-deps
mujoco==3.12.0`` fetches a release beside the installed one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE = "3.3.7"
STEPS = 500
"""Of 2 ms."""
FAR_M, FAR_DEGREES = 0.01, 10.0


def dump(folder: Path, suites: list[str], states: int) -> None:
    """Write the scenes of all tasks of some suites."""
    from rlvla_sim_libero import startup
    from rlvla_sim_libero.tasks import SUITES

    startup.import_libero()
    from rlvla_sim_libero.scene import Scene

    for task in (one for suite in suites for one in SUITES[suite]):
        scene = Scene(startup.task_file(task))
        with np.load(startup.states_file(task), allow_pickle=False) as file:
            stored = file["states"][:states]
        rows = []
        for number, state in enumerate(stored):
            scene.reset(number, state, 0)
            rows.append(np.concatenate([scene.data.qpos, scene.data.qvel]))
        place = folder / task.suite / task.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "scene.xml").write_text(scene.env.model.get_xml())
        bodies = [
            scene.env.sim.model.body_id2name(int(scene.model.jnt_bodyid[joint]))
            for joint in np.flatnonzero(scene.model.jnt_type == 0)
        ]
        np.savez(
            place / "states.npz",
            states=np.array(rows),
            body_pos=scene.model.body_pos,
            body_quat=scene.model.body_quat,
            objects=np.array(bodies),
        )
        scene.close()


def settle(folder: Path) -> None:
    """Note where objects are after a second, under the mujoco that is imported."""
    import mujoco

    found: dict[str, Any] = {}
    for place in sorted(folder.glob("*/*/scene.xml")):
        model = mujoco.MjModel.from_xml_path(str(place))
        data = mujoco.MjData(model)
        with np.load(place.with_name("states.npz"), allow_pickle=False) as file:
            scene = dict(file)
        model.body_pos[:], model.body_quat[:] = scene["body_pos"], scene["body_quat"]
        poses = []
        for state in scene["states"]:
            mujoco.mj_resetData(model, data)
            data.qpos[:], data.qvel[:] = state[: model.nq], state[model.nq :]
            for _ in range(STEPS):
                mujoco.mj_step(model, data)
            poses.append({str(name): _pose(data, model.body(str(name)).id) for name in scene["objects"]})
        found["/".join(place.parts[-3:-1])] = poses
    (folder / f"mujoco-{mujoco.__version__}.json").write_text(json.dumps(found))
    sys.stdout.write(f"{mujoco.__version__}: {len(found)} tasks\n")


def _pose(data: Any, body: int) -> list[float]:
    return [*data.xpos[body].tolist(), *data.xmat[body].tolist()]


def compare(folder: Path, output: Path) -> None:
    """Name the tasks whose objects lie elsewhere."""
    told = {path.stem.removeprefix("mujoco-"): json.loads(path.read_text()) for path in folder.glob("mujoco-*.json")}
    reference = told.pop(REFERENCE)
    releases = {}
    for release in sorted(told, key=lambda name: [int(part) for part in name.split(".")]):
        moved = {}
        for task, states in told[release].items():
            if far := _farthest(reference[task], states):
                moved[task] = far
        releases[release] = {"tasks": len(told[release]), "moved": moved}
        sys.stdout.write(f"{release}: {len(moved)} of {len(told[release])} tasks: {json.dumps(moved)}\n")
    result = {"reference": REFERENCE, "seconds": STEPS * 0.002, "far": [FAR_M, FAR_DEGREES], "releases": releases}
    output.write_text(json.dumps(result, indent=1) + "\n")


def _farthest(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the objects that lie elsewhere: in how many states, and the largest distance (m) and turn (degrees)."""
    found: dict[str, Any] = {}
    for one, other in zip(before, after, strict=True):
        for name, pose in one.items():
            distance = float(np.linalg.norm(np.subtract(pose[:3], other[name][:3])))
            rotation = np.reshape(pose[3:], (3, 3)).T @ np.reshape(other[name][3:], (3, 3))
            turn = float(np.degrees(np.arccos(np.clip((np.trace(rotation) - 1) / 2, -1, 1))))
            if distance > FAR_M or turn > FAR_DEGREES:
                states, far, most = found.get(name, (0, 0.0, 0.0))
                found[name] = states + 1, round(max(far, distance), 3), round(max(most, turn), 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("dump", "settle", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suites", nargs="+", default=["libero_130"])
    parser.add_argument("--states", type=int, default=2, help="of each task")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.what == "dump":
        dump(options.folder, options.suites, options.states)
    elif options.what == "settle":
        settle(options.folder)
    else:
        compare(options.folder, options.output or options.folder / "compared.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
