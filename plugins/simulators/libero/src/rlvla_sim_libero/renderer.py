"""Pictures of one task's scene, from any of the environments that run it.

robosuite makes one GL context an environment and never makes it current again, so with two environments in a process
each picture comes from the context made last. Here a context belongs to a look: meshes, textures and materials are uploaded
once (545 MiB for libero_spatial in software rendering), whatever number of environments and of tasks of one scene are drawn
with them, and it is made current before each use.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib
import mmap
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


class Renderers:
    """The GL contexts of a process: one for all models that look alike, as the tasks of libero_spatial do."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._made: dict[bytes, Renderer] = {}
        self._users: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._made)

    def lend(self, model: Any) -> tuple[bytes, Renderer]:
        """Return who draws a model, with the look to give back. The model's textures are gone then: the context has them."""
        look = look_of(model)
        if look not in self._made:
            self._made[look] = Renderer(model, self._size)
        self._users[look] = self._users.get(look, 0) + 1
        _forget(model.tex_data)
        return look, self._made[look]

    def give_back(self, look: bytes) -> None:
        """Free what draws a look when its last model is gone."""
        self._users[look] -= 1
        if self._users[look] == 0:
            del self._users[look]
            self._made.pop(look).close()


def look_of(model: Any) -> bytes:
    """Return a digest of all of a model that MuJoCo uploads to a GL context: where it is equal, so are the contexts."""
    digest = hashlib.blake2b(digest_size=16)
    planes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    uploaded = [name for name in dir(model) if name.startswith(("mesh_", "tex_", "mat_", "hfield_", "skin_", "flex_"))]
    arrays = {name: getattr(model, name) for name in uploaded}
    arrays |= {"planes": planes, "sizes": model.geom_size[planes], "materials": model.geom_matid[planes]}
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            digest.update(f"{name}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value))
    digest.update(repr((model.vis, model.stat.extent, model.stat.meansize)).encode())
    return digest.digest()


def _forget(array: np.ndarray) -> None:
    """Give the pages of an array back to the system; what is read of it later is zero."""
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0 and hasattr(mmap, "MADV_DONTNEED"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


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
            _check_device()
        context = type("Context", (importlib.import_module(f"mujoco.{kind}").GLContext,), unmade)(size, size)
        context.make_current()
    except SimulatorError:
        raise
    except Exception as error:
        raise _failed(kind, error) from error
    return context


def _check_device() -> None:
    """Refuse a device number that EGL does not have."""
    device = os.environ.get("MUJOCO_EGL_DEVICE_ID")
    if device is None:
        return
    from mujoco.egl import egl_ext

    count = len(egl_ext.eglQueryDevicesEXT())
    if not device.isdecimal() or int(device) >= count:
        there = f"0 to {count - 1}" if count > 1 else "0 alone" if count else "none"
        raise SimulatorError(
            f"EGL rendering failed: MUJOCO_EGL_DEVICE_ID={device}: EGL devices here have the numbers {there}, whatever "
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} says; correct it, or unset it to take the first of "
            "those that are visible, or that works"
        )


def _failed(kind: str, error: Exception) -> SimulatorError:
    words = str(error).rstrip(".")
    return SimulatorError(f"{kind.upper()} rendering failed: {type(error).__name__}: {words}. {renderer_hint(kind)}")


def _prefer_visible_gpu() -> None:
    """Draw on the GPU that this process computes on, where nobody chose another one.

    EGL counts every GPU of the machine, whatever ``CUDA_VISIBLE_DEVICES`` says, so all workers would draw on the first.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if "MUJOCO_EGL_DEVICE_ID" in os.environ or not first.isdecimal():
        return
    from mujoco.egl import egl_ext

    if int(first) < len(egl_ext.eglQueryDevicesEXT()):
        os.environ["MUJOCO_EGL_DEVICE_ID"] = first
