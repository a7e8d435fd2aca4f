"""How far LIBERO on the GPU is from LIBERO: episodes under the same actions, and the same pictures side by side.

    python benchmarks/libero_gpu_agreement.py           # ten minutes on two cores, kernels compiled before; needs no GPU

Episodes: two tasks, one stored initial state each, 100 random actions and 100 of a script that picks the object up and carries
it to its goal (played on LIBERO, then repeated here). LIBERO is robosuite's environment under the same mujoco, by
``rlvla_sim_libero.scene``, which its tests hold equal to robosuite bit for bit. Beside it stands LIBERO against itself with
its initial joint positions rounded to float32 (1e-8 m): where that parts too, contacts have made more of a rounding.

Pictures: one state of a task of each suite, both cameras, 256 pixels, against the OpenGL renderer: mean difference in grey
levels, and how many of 65536 pixels show another geom (beside it, how many would if the picture were mirrored: what chance gives).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlvla_sim_libero import startup
from rlvla_sim_libero.tasks import SUITES, Task

startup.import_libero()

import mujoco  # noqa: E402

from rlvla.mujoco_warp.start import mjw, wp  # noqa: E402
from rlvla.mujoco_warp.worlds import Limits  # noqa: E402
from rlvla_sim_libero.renderer import Renderer  # noqa: E402
from rlvla_sim_libero.scene import Scene  # noqa: E402
from rlvla_sim_libero_gpu.batch import Batch, Look  # noqa: E402
from rlvla_sim_libero_gpu.starts import Begun, Starts  # noqa: E402

CAMERAS = ("agentview", "robot0_eye_in_hand")
LIMITS = Limits(contacts=300, constraints=900)
STEPS = 100
SIZE = 256
RESULTS = Path(__file__).parent / "results"
EPISODES = {
    # task: object, where it goes, where the fingers close beside its middle (m), how far below its top (m)
    SUITES["libero_object"][0]: ("alphabet_soup_1", "basket_1", (0.0, 0.0), 0.03),
    SUITES["libero_spatial"][0]: ("akita_black_bowl_1", "plate_1", (0.0, 0.052), 0.012),
}
DRAWN = [SUITES["libero_spatial"][0], SUITES["libero_object"][0], SUITES["libero_goal"][7], SUITES["libero_10"][4]]
DRAWN += [SUITES["libero_90"][10]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--only", choices=("episodes", "pictures"), help="one part; the other stays as it is in the file"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "libero_gpu_agreement.json")
    args = parser.parse_args()
    result = json.loads(args.output.read_text()) if args.output.exists() else {}
    result["versions"] = {name: startup.version(name) for name in ("mujoco", "mujoco-warp", "warp-lang", "robosuite")}
    if args.only != "pictures":
        parted = {task: episodes(task, args) for task in EPISODES}
        result["episodes"] = {task.name: summary(one) for task, one in parted.items()}
        figure(parted, args.output.with_suffix(".png"))
    if args.only != "episodes":
        result["pictures"] = pictures(args, args.output.with_name("libero_gpu_pictures.png"))
    args.output.write_text(json.dumps(result, indent=1) + "\n")


# ---- episodes -------------------------------------------------------------------------------------------------------


def episodes(task: Task, args: argparse.Namespace) -> dict[str, dict[str, np.ndarray]]:
    """Return, for random and scripted actions, how far episodes are apart after each action."""
    began = time.monotonic()
    scene = Scene(startup.task_file(task))
    begun = Starts(scene, 10, 1).get(0, 0, stored(task))
    random = np.random.default_rng(0).uniform(-1, 1, (args.steps, 7))
    actions = {"random": random, "scripted": scripted(scene, task, args.steps)}
    own = {name: replayed(scene, task, one, rounded=False) for name, one in actions.items()}
    near = {name: replayed(scene, task, one, rounded=True) for name, one in actions.items()}
    gpu = on_gpu(scene, begun, actions, args)
    told = {}
    for name in actions:
        told[name] = {**apart(own[name], gpu[name], "gpu"), **apart(own[name], near[name], "rounded")}
        told[name]["solved_libero"], told[name]["solved_gpu"] = own[name]["solved"], gpu[name]["solved"]
        said = {key: f"{values.max():.2g}" for key, values in told[name].items() if "solved" not in key}
        print(
            json.dumps({"s": round(time.monotonic() - began), "task": task.name, "actions": name, **said}), flush=True
        )
    scene.close()
    return told


def stored(task: Task) -> np.ndarray:
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        return np.asarray(file["states"][0], np.float64)


def scripted(scene: Scene, task: Task, steps: int) -> np.ndarray:
    """Return actions that pick an object up and put it where the task wants it, decided from the scene as it is played."""
    name, target, beside, depth = EPISODES[task]
    scene.reset(0, stored(task), 10)
    data, model, site = scene.data, scene.model, scene.robot().hand_site
    body, goal = model.body(f"{name}_main").id, model.body(f"{target}_main").id
    top = highest(scene, body)
    grasp = np.array([*(data.xpos[body][:2] + beside), top - depth])
    held = np.array([*(data.xpos[goal][:2] + beside), 0.0])
    stages = [  # where to, gripper, env steps at most, done when this near (m)
        (raised(grasp, 0.08), -1, 25, 0.012),
        (grasp, -1, 15, 0.006),
        (grasp, 1, 10, 0.0),
        (raised(grasp, 0.2), 1, 15, 0.02),
        (raised(held, grasp[2] + 0.2), 1, 25, 0.015),
        (raised(held, grasp[2] + 0.06), 1, 10, 0.01),
        (raised(held, grasp[2] + 0.06), -1, 10, 0.0),
        (raised(held, grasp[2] + 0.2), -1, 100, 0.0),
    ]
    actions = []
    for place, gripper, most, near in stages:
        for _ in range(most):
            away = place - data.site_xpos[site]
            move = 1.3 * away / 0.05
            actions.append([*(move / max(1.0, np.abs(move).max())), 0.0, 0.0, 0.0, gripper])
            scene.step(np.array(actions[-1]))
            if np.linalg.norm(away) < near or len(actions) == steps:
                break
        if len(actions) == steps:
            break
    return np.array(actions)


def raised(place: np.ndarray, height: float) -> np.ndarray:
    return place + np.array([0.0, 0.0, height])


def highest(scene: Scene, body: int) -> float:
    """Return the height of the top of a body's collision shapes, in metres."""
    model, data = scene.model, scene.data
    tops = []
    for geom in np.flatnonzero((model.geom_bodyid == body) & (model.geom_contype != 0)):
        centre, half = model.geom_aabb[geom][:3], model.geom_aabb[geom][3:]
        turn = data.geom_xmat[geom].reshape(3, 3)
        tops.append(data.geom_xpos[geom][2] + (turn @ centre)[2] + (np.abs(turn) @ half)[2])
    return float(max(tops))


def replayed(scene: Scene, task: Task, actions: np.ndarray, rounded: bool) -> dict[str, np.ndarray]:
    """Return LIBERO's episode under given actions."""
    scene.reset(0, stored(task), 10)
    if rounded:
        scene.data.qpos[:] = scene.data.qpos.astype(np.float32)
    seen = []
    for action in actions:
        solved = scene.step(action)
        seen.append((scene.data.qpos.copy(), hand(scene), solved))
    qpos, hands, solved = map(np.array, zip(*seen, strict=True))
    return {**poses(scene.model, qpos), "hand": hands, "solved": solved}


def hand(scene: Scene) -> np.ndarray:
    return np.array(scene.data.site_xpos[scene.robot().hand_site])


def on_gpu(scene: Scene, begun: Begun, actions: dict[str, np.ndarray], args: argparse.Namespace) -> dict[str, Any]:
    """Return the batch's episodes under given actions: a world for each sequence."""
    count, device = len(actions), args.device
    batch = Batch(scene, begun, count, limits=LIMITS, look=Look(CAMERAS, 16, 16), device=device)
    played = torch.as_tensor(np.stack(list(actions.values())), dtype=torch.float32, device=device)
    site, live, seen = scene.robot().hand_site, torch.ones(count, dtype=torch.bool, device=device), []
    with batch.worlds.turn():
        batch.begin(list(range(count)), [begun] * count)
        for step in range(played.shape[1]):
            batch.step(played[:, step], live)
            hands = batch.worlds["site_xpos"][:, site]
            seen.append([one.cpu().numpy().copy() for one in (batch.worlds["qpos"], hands, batch.solved)])
    assert not batch.worlds.problem(), batch.worlds.problem()
    told = {}
    for world, name in enumerate(actions):
        qpos, hands, solved = (np.stack([one[part][world] for one in seen]) for part in range(3))
        told[name] = {**poses(scene.model, qpos), "hand": hands, "solved": solved}
    return told


def poses(model: Any, qpos_TQ: np.ndarray) -> dict[str, np.ndarray]:
    """Return positions and quaternions of what moves freely, and all other joints."""
    free = [int(at) for at in model.jnt_qposadr[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]]
    pos = np.stack([qpos_TQ[:, at : at + 3] for at in free], 1).astype(np.float64)
    quat = np.stack([qpos_TQ[:, at + 3 : at + 7] for at in free], 1).astype(np.float64)
    return {"pos": pos, "quat": quat / np.linalg.norm(quat, axis=-1, keepdims=True)}


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Return, after each action, the distance of the hands (m) and of the objects that are farthest apart (m, rad)."""
    chord = np.minimum(
        np.linalg.norm(one["quat"] - other["quat"], axis=-1), np.linalg.norm(one["quat"] + other["quat"], axis=-1)
    )
    return {
        f"hand_m_{name}": np.linalg.norm(one["hand"] - other["hand"], axis=-1),
        f"objects_m_{name}": np.linalg.norm(one["pos"] - other["pos"], axis=-1).max(-1),
        f"objects_rad_{name}": (4 * np.arcsin(np.clip(chord / 2, 0, 1))).max(-1),
    }


def summary(told: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
    """Return what was found after 1, 10, 50 and all actions, and when the goal held."""
    found: dict[str, Any] = {}
    for name, values in told.items():
        length = len(values["solved_gpu"])
        places = [step for step in (1, 10, 50, length) if step <= length]
        found[name] = {
            key: {f"after_{step}": float(f"{one[:step].max():.3g}") for step in places}
            for key, one in values.items()
            if "solved" not in key
        }
        found[name]["steps_with_another_answer"] = int((values["solved_libero"] != values["solved_gpu"]).sum())
        for who in ("libero", "gpu"):
            first = np.flatnonzero(values[f"solved_{who}"])
            found[name][f"first_solved_{who}"] = int(first[0]) + 1 if len(first) else None
    return found


def figure(parted: dict[Task, dict[str, dict[str, np.ndarray]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shape = (len(parted), 2)
    drawn, axes = pyplot.subplots(*shape, figsize=(11, 7), sharex=True, sharey=True, squeeze=False)
    for row, (task, told) in enumerate(parted.items()):
        for column, (name, values) in enumerate(told.items()):
            axis = axes[row, column]
            for key, style in (("gpu", "-"), ("rounded", ":")):
                for what, colour in (("hand_m", "C0"), ("objects_m", "C1")):
                    label = f"{what[:-2]}, {'GPU' if key == 'gpu' else 'LIBERO from a rounded start'}"
                    axis.semilogy(np.maximum(values[f"{what}_{key}"], 1e-12), colour + style, label=label)
            axis.set_title(f"{task.suite}: {name} actions", fontsize=9)
            axis.set_xlabel("env steps")
            axis.set_ylabel("distance to LIBERO, m")
    axes[0, 0].legend(fontsize=8)
    drawn.tight_layout()
    drawn.savefig(path, dpi=90)


# ---- pictures -------------------------------------------------------------------------------------------------------


def pictures(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Return how far pictures of a state of each suite are apart; draws them beside each other."""
    from PIL import Image

    told, rows = {}, []
    for task in DRAWN:
        scene = Scene(startup.task_file(task))
        begun = Starts(scene, 10, 1).get(0, 0, stored(task))
        batch = Batch(scene, begun, 1, limits=LIMITS, look=Look(CAMERAS, SIZE, 512), device=args.device)
        with batch.worlds.turn():
            batch.begin([0], [begun])
            drawn = {name: one[0].cpu().numpy() for name, one in batch.draw().items()}
            things = segmented(batch)
        row = []
        for camera, (official, thing) in official_pictures(scene).items():
            grey = np.abs(drawn[camera].astype(int) - official).mean()
            told[f"{task.suite} {camera}"] = {
                "grey_levels": round(float(grey), 2),
                "pixels_of_another_geom": int((things[camera] != thing).sum()),
                "of_another_geom_if_mirrored": int((things[camera] != thing[:, ::-1]).sum()),
                "geoms_in_sight": len(np.unique(thing)),
            }
            row += [official, drawn[camera]]
        rows.append(np.concatenate(row, 1))
        print(json.dumps({task.suite: {name: one for name, one in told.items() if task.suite in name}}), flush=True)
        scene.close()
    Image.fromarray(np.concatenate(rows)).resize((SIZE * 2, SIZE * len(rows) // 2)).save(path)
    return told


def official_pictures(scene: Scene) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return camera name to LIBERO's picture of the present episode, and which geom each pixel shows."""
    pose, told = scene.pose(), {}
    things = official_segments(scene, pose)
    renderer = Renderer(scene.model, SIZE)
    for camera in CAMERAS:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        with scene.lamps_as_shown():
            renderer.draw(scene.model, pose, scene.camera(camera), picture)
        told[camera] = (picture, things[camera])
    renderer.close()
    return told


def official_segments(scene: Scene, pose: Any) -> dict[str, np.ndarray]:
    """Return camera name to which geom each pixel shows; closed before another GL context is made, which it would read from."""
    segments = mujoco.Renderer(scene.model, SIZE, SIZE)
    segments.enable_segmentation_rendering()
    options = mujoco.MjvOption()
    options.geomgroup[0], options.geomgroup[1] = 0, 1
    options.sitegroup[:] = 0
    told = {}
    for camera in CAMERAS:
        segments.update_scene(pose, camera, options)
        told[camera] = segments.render()[..., 0][:, ::-1].copy()
    segments.close()
    return told


def segmented(batch: Batch) -> dict[str, np.ndarray]:
    """Return camera name to which geom each pixel of the batch's first world shows."""
    worlds, model = batch.worlds, batch.worlds.mujoco_model
    with wp.ScopedDevice(wp.device_from_torch(worlds.device)):
        context = mjw.create_render_context(
            model, worlds.count, (SIZE, SIZE), False, False, True, enabled_geom_groups=[1], cam_active=list(CAMERAS)
        )
        mjw.refit_bvh(worlds.model, batch.shown, context)
        mjw.render(worlds.model, batch.shown, context)
        pixels = context.seg_data.numpy()[0].reshape(len(CAMERAS), SIZE, SIZE, -1)[..., 0]
    names = sorted(CAMERAS, key=lambda name: int(model.camera(name).id))
    return {name: pixels[place][:, ::-1] for place, name in enumerate(names)}


if __name__ == "__main__":
    main()
