"""Pictures of one task's scene, from any of the environments that run it.

robosuite makes one GL context an environment and never makes it current again, so with two environments in a process
each picture comes from the context made last. Here a context belongs to a task: meshes and textures are uploaded once,
whatever number of environments run it (1 to 2 GB each in software rendering), and it is made current before each use.
"""

from __future__ import annotations

import atexit
import importlib
import os
from typing import Any

import mujoco
import numpy as np

from rlvla.errors import SimulatorError
from rlvla_sim_libero.startup import renderer_hint, set_environment

_MAX_GEOMS = 1000  # as robosuite 1.4.0 (utils/binding_utils.py)


class Renderer:
    """Draws what LIBERO draws: the same scene options, so the same pixels."""

    def __init__(self, model: Any, size: int) -> None:
        """Make a GL context and upload the scene of ``model``.

        Raises:
            SimulatorError: no GL context; the first error and what to install.
        """
        kind = set_environment()
        self._gl = _make_context(kind, size)
        try:
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        except Exception as error:
            raise _failed(kind, error) from error
        atexit.register(self.close)  # before EGL is ended, which was registered earlier: no errors at interpreter exit
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        if size > self._context.offWidth or size > self._context.offHeight:
            mujoco.mjr_resizeOffscreen(
                max(size, self._context.offWidth), max(size, self._context.offHeight), self._context
            )
        self._size = size
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision shapes
        self._options.geomgroup[1] = 1  # what is to be seen
        self._perturbation = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def draw(self, model: Any, data: Any, camera: int, out: np.ndarray) -> None:
        """Draw what ``data`` holds into ``out`` (uint8 ``[size, size, 3]``), turned by 180 degrees."""
        self._gl.make_current()
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(
            model, data, self._options, self._perturbation, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        viewport = mujoco.MjrRect(0, 0, self._size, self._size)
        mujoco.mjr_render(viewport=viewport, scn=self._scene, con=self._context)
        pixels = np.empty((self._size, self._size, 3), np.uint8)
        mujoco.mjr_readPixels(rgb=pixels, depth=None, viewport=viewport, con=self._context)
        out[:] = pixels[::-1, ::-1]

    def close(self) -> None:
        """Free the context while it is the current one: freed under another, it would damage that one."""
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._gl = None
            atexit.unregister(self.close)


def check_rendering() -> str:
    """Make a GL context and free it; returns what draws: for instance ``llvmpipe (LLVM 15.0.6, 256 bits)`` or a GPU's name.

    Raises:
        SimulatorError: none can be made; the first error and what to install.
    """
    context = _make_context(set_environment(), 16)
    from OpenGL import GL

    text = GL.glGetString(GL.GL_RENDERER)
    context.free()
    return text.decode() if text else "unknown"


def _make_context(kind: str, size: int) -> Any:
    """Return a current GL context."""
    # A context that could not be made has none to free: else its destructor's complaint hides the first error.
    unmade = {"_context": None, "_buffer": None}
    try:
        if kind == "egl":
            _prefer_visible_gpu()
        context = type("Context", (importlib.import_module(f"mujoco.{kind}").GLContext,), unmade)(size, size)
        context.make_current()
    except Exception as error:
        raise _failed(kind, error) from error
    return context


def _failed(kind: str, error: Exception) -> SimulatorError:
    words = str(error).rstrip(".")
    return SimulatorError(f"{kind.upper()} rendering failed: {type(error).__name__}: {words}. {renderer_hint(kind)}")


def _prefer_visible_gpu() -> None:
    """Draw on the GPU that this process computes on, where nobody chose another one.

    EGL counts every GPU of the machine, whatever ``CUDA_VISIBLE_DEVICES`` says, so all workers would draw on the first.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if "MUJOCO_EGL_DEVICE_ID" in os.environ or not first.isdigit():
        return
    from mujoco.egl import egl_ext

    if int(first) < len(egl_ext.eglQueryDevicesEXT()):
        os.environ["MUJOCO_EGL_DEVICE_ID"] = first
