"""How near is a substep of LIBERO under another MuJoCo, or MuJoCo Warp, to one under 3.3.7, and does it have the same contacts?

    python benchmarks/libero_contacts.py record states/                  # with mujoco 3.3.7: an episode of three tasks
    python benchmarks/libero_contacts.py compare states/                 # where mujoco-warp is installed; minutes on a CPU

``record`` plays 60 random actions, the hand pressed down, and notes the state after each. ``compare`` sets every third of
them and steps once: MuJoCo and Warp as they come, and with the flags that rlvla sets (decision 089): meshes touch in one point, boxes
touch as MuJoCo's own. Told are contacts of a state by kinds of geoms, on average, and the largest difference in any velocity to
3.3.7's next substep: median and 90th percentile.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlvla_sim_libero import startup
from rlvla_sim_libero.tasks import SUITES

startup.import_libero()

import mujoco  # noqa: E402

from rlvla_sim_libero.scene import Scene  # noqa: E402

TASKS = {"libero_spatial": 0, "libero_object": 0, "libero_goal": 8}
RESULT = Path(__file__).parent / "results" / "libero_contacts.json"
PARTS = ("qpos", "qvel", "ctrl", "qacc_warmstart")
Step = Callable[[mujoco.MjData], tuple[np.ndarray, np.ndarray]]
"""Steps from where the data is; returns velocities and the geoms of each contact ``[n, 2]``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("record", "compare"))
    parser.add_argument("states", type=Path)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    args.states.mkdir(parents=True, exist_ok=True)
    if args.do == "record":
        for suite, number in TASKS.items():
            record(suite, number, args.states)
        return
    told = {f"{suite} {number}": compared(suite, number, args.states) for suite, number in TASKS.items()}
    versions = {name: startup.version(name) for name in ("mujoco", "mujoco-warp", "warp-lang")}
    args.output.write_text(json.dumps({"reference": "3.3.7", **versions, **told}, indent=1) + "\n")


def record(suite: str, number: int, folder: Path) -> None:
    """Write the states of an episode, and what a substep leads to from each."""
    task = SUITES[suite][number]
    scene, rng = Scene(startup.task_file(task)), np.random.default_rng(0)
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        scene.reset(0, file["states"][0], 10)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in PARTS}
    for step in range(60):
        action = rng.uniform(-1, 1, 7)
        if step < 35:
            action[2] = -0.9
        scene.step(action)
        for name, values in rows.items():
            values.append(getattr(scene.data, name).copy())
    states = {name: np.array(values) for name, values in rows.items()}
    places = {"body_pos": scene.model.body_pos, "body_quat": scene.model.body_quat}
    step_c = in_c(scene.model)
    data = mujoco.MjData(scene.model)
    next_qvel, pairs = zip(*(step_c(placed) for placed in each(data, states)), strict=True)
    np.savez(
        folder / f"{suite}_{number}.npz",
        **states,
        **places,
        next_qvel=np.array(next_qvel),
        kinds=json.dumps(kinds(scene.model, pairs)),
    )
    scene.close()


def each(data: mujoco.MjData, states: Any) -> Iterator[mujoco.MjData]:
    """Set every third state."""
    for row in range(0, len(states["qpos"]), 3):
        for name in PARTS:
            getattr(data, name)[:] = states[name][row]
        yield data


def in_c(model: mujoco.MjModel) -> Step:
    def step(data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        mujoco.mj_step(model, data)
        return data.qvel.copy(), data.contact.geom[: data.ncon].copy()

    return step


def in_warp(model: mujoco.MjModel, data: mujoco.MjData) -> Step:
    from rlvla.mujoco_warp.start import mjw

    mujoco.mj_forward(model, data)
    warp_model, world = mjw.put_model(model), mjw.put_data(model, data, 1, nconmax=300, njmax=900)

    def step(data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        for name in PARTS:
            getattr(world, name).assign(getattr(data, name)[None].astype(np.float32))
        mjw.step(warp_model, world)
        count = int(world.nacon.numpy()[0])
        return world.qvel.numpy()[0].copy(), world.contact.geom.numpy()[:count].copy()

    return step


def compared(suite: str, number: int, folder: Path) -> dict[str, Any]:
    """Return what each engine makes of the states of a task."""
    scene = Scene(startup.task_file(SUITES[suite][number]))
    with np.load(folder / f"{suite}_{number}.npz", allow_pickle=False) as file:
        states = dict(file)
    model = scene.model
    model.body_pos[:], model.body_quat[:] = states["body_pos"], states["body_quat"]
    own = model.opt.disableflags
    one_point, as_mujoco = mujoco.mjtDisableBit.mjDSBL_MULTICCD, mujoco.mjtDisableBit.mjDSBL_NATIVECCD
    ways = {
        "mujoco as it comes": (in_c, 0),
        "mujoco, meshes in one point": (in_c, one_point),
        "warp as it comes": (in_warp, 0),
        "warp, boxes as mujoco's": (in_warp, as_mujoco),
        "warp, boxes as mujoco's, meshes in one point": (in_warp, as_mujoco | one_point),
    }
    told: dict[str, Any] = {"3.3.7": {"contacts": json.loads(str(states["kinds"]))}}
    for name, (engine, flags) in ways.items():
        model.opt.disableflags = own & ~int(one_point) | int(flags)
        data = mujoco.MjData(model)
        step = in_c(model) if engine is in_c else in_warp(model, next(each(data, states)))
        qvel, pairs = zip(*(step(placed) for placed in each(data, states)), strict=True)
        apart = np.abs(np.array(qvel) - states["next_qvel"]).max(1)
        told[name] = {
            "contacts": kinds(model, pairs),
            "qvel_median": float(f"{np.median(apart):.2g}"),
            "qvel_90": float(f"{np.quantile(apart, 0.9):.2g}"),
        }
        print(suite, name, json.dumps(told[name]), flush=True)
    scene.close()
    return told


def kinds(model: mujoco.MjModel, pairs: Any) -> dict[str, float]:
    """Return contacts of a state by what touches, on average."""
    counts: Counter[str] = Counter()
    for geoms in pairs:
        for pair in geoms:
            names = sorted(mujoco.mjtGeom(int(model.geom_type[geom])).name.removeprefix("mjGEOM_") for geom in pair)
            counts[" ".join(names).lower()] += 1
    return {name: round(count / len(pairs), 2) for name, count in sorted(counts.items())}


if __name__ == "__main__":
    main()
