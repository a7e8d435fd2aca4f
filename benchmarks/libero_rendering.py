"""What a picture of LIBERO costs, and what of it: a process draws by turns whole pictures and pictures that lack something.

    python benchmarks/libero_rendering.py --output results/libero_rendering.json --machine "one H200, 16 CPU cores"
    MUJOCO_GL=egl python benchmarks/libero_rendering.py --output /tmp/rendering.json --machine "2 CPU cores" --pictures 4

Milliseconds of a picture of both cameras, 256 pixels wide. ``whole``: as simulators draw it. ``no reflection``: the scene is not drawn a
second time, mirrored, for the one box that reflects (pictures differ where it is seen). ``no geoms``: what is left without any.
``no reading``: pixels stay on the GPU. ``no antialiasing``: one sample a pixel instead of four (pictures differ). With a GPU also:
what a thread that multiplies matrices loses beside that, as a share of its rate, while pictures are drawn without a pause.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from rlvla_sim_libero import startup
from rlvla_sim_libero.renderer import Renderer
from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero.tasks import SUITES

CAMERAS = ("agentview", "robot0_eye_in_hand")
SIZE = 256


class Pictures:
    """Draws one state of a task in several ways."""

    def __init__(self, suite: str, task: int, samples: int | None = None) -> None:
        self.scene = Scene(startup.task_file(SUITES[suite][task]))
        self.scene.reset(0, None, 10)
        self.model, self.data = self.scene.model, self.scene.env.sim.data
        self.model, self.data = getattr(self.model, "_model", self.model), getattr(self.data, "_data", self.data)
        mujoco.mj_forward(self.model, self.data)
        if samples is not None:
            self.model.vis.quality.offsamples = samples
        self.renderer = Renderer(self.model, SIZE)
        self._cameras = [self.scene.camera(name) for name in CAMERAS]
        self._out = np.empty((SIZE, SIZE, 3), np.uint8)
        self.triangles = sum(
            int(self.model.mesh_facenum[self.model.geom_dataid[geom]])
            for geom in np.flatnonzero(
                (self.model.geom_group == 1) & (self.model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)
            )
        )

    def whole(self) -> None:
        for camera in self._cameras:
            self.renderer.draw(self.model, self.data, camera, self._out)

    def without(self, reflection: bool = True, geoms: bool = True, reading: bool = True) -> None:
        """Draw with MuJoCo's own calls, but for what is left out."""
        mine = self.renderer
        viewport = mujoco.MjrRect(0, 0, SIZE, SIZE)
        mine._gl.make_current()
        for camera in self._cameras:
            mine._camera.fixedcamid = camera
            kind = mujoco.mjtCatBit.mjCAT_ALL if geoms else 0
            mujoco.mjv_updateScene(
                self.model, self.data, mine._options, mine._perturbation, mine._camera, int(kind), mine._scene
            )
            mine._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = reflection
            mujoco.mjr_render(viewport=viewport, scn=mine._scene, con=mine._context)
            mine._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = True
            if reading:
                mujoco.mjr_readPixels(rgb=self._out, depth=None, viewport=viewport, con=mine._context)
            else:
                mujoco.mjr_finish()


def milliseconds(draw: Callable[[], None], pictures: int) -> float:
    draw()
    began = time.perf_counter()
    for _ in range(pictures):
        draw()
    return 1e3 * (time.perf_counter() - began) / pictures / len(CAMERAS)


def share_left(draw: Callable[[], None], seconds: float) -> float:
    """Return the rate of a thread that multiplies matrices on the GPU beside drawing, as a share of its rate alone."""
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def products() -> float:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                a @ a
            torch.cuda.synchronize()
            count += 10
        return count / (time.perf_counter() - began)

    products()
    alone, beside = products(), []
    thread = threading.Thread(target=lambda: beside.append(products()))
    draw()
    thread.start()
    while thread.is_alive():
        draw()
    return beside[0] / alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what the result says it was measured on")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--suite", default="libero_spatial")
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=200, help="of each kind and camera")
    parser.add_argument("--seconds", type=float, default=2.0, help="of products beside drawing, where there is a GPU")
    options = parser.parse_args()
    try:
        import torch

        gpu = torch.cuda.is_available()
    except ImportError:
        gpu = False
    many = Pictures(options.suite, options.task)
    ways: dict[str, Callable[[], None]] = {
        "whole": many.whole,
        "no reflection": lambda: many.without(reflection=False),
        "no geoms": lambda: many.without(geoms=False),
        "no reading": lambda: many.without(reading=False),
        "no antialiasing": Pictures(options.suite, options.task, samples=0).whole,
    }
    found: dict[str, Any] = {"machine": options.machine, "date": time.strftime("%Y-%m-%d"), "suite": options.suite}
    found |= {"task": options.task, "triangles": many.triangles, "ms": {}, "share_left_to_products": {}}
    for name, draw in ways.items():
        found["ms"][name] = round(milliseconds(draw, options.pictures), 3)
        if gpu:
            found["share_left_to_products"][name] = round(share_left(draw, options.seconds), 3)
        print(name, found["ms"][name], found["share_left_to_products"].get(name, ""), flush=True)
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
