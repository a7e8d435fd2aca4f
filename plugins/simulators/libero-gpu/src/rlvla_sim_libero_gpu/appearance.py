"""What a compiled LIBERO model is changed to before it is drawn by rays: smaller textures, and highlights as MuJoCo has them."""

from __future__ import annotations

import copy

import mujoco
import numpy as np

_DULL = 1e-5
"""Shininess in place of 0, at which the ray renderer drops the highlight that OpenGL draws."""
_SUN = 0.1
"""Share of a directional light that is left. OpenGL cuts what lights add up to at 1 before it multiplies a texture with it, the ray
renderer after it, so tables of kitchens, which have such a light from above beside the others, would be white (measured: 14 grey
levels from LIBERO's picture instead of 45)."""


def drawable(model: mujoco.MjModel, texture_size: int) -> mujoco.MjModel:
    """Return a copy of a compiled model whose physics is the same.

    Args:
        model: of a LIBERO task.
        texture_size: longest side of a texture in pixels; larger ones are averaged down by whole factors. (The renderer has no
            mipmaps, so large textures flicker, and 4096 pixels of each object fill 256 MiB.)
    """
    model = copy.copy(model)
    model.mat_shininess[:] = np.maximum(model.mat_shininess, _DULL)
    directional = model.light_type == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    model.light_diffuse[directional] *= _SUN
    model.light_specular[directional] *= _SUN
    for texture in range(model.ntex):
        if model.tex_type[texture] == mujoco.mjtTexture.mjTEXTURE_2D:
            _shrink(model, texture, texture_size)
    return model


def _shrink(model: mujoco.MjModel, texture: int, size: int) -> None:
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    factor = -(-max(height, width) // size)
    if factor == 1:
        return
    channels, at = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
    pixels = model.tex_data[at : at + height * width * channels].reshape(height, width, channels)
    down, across = min(factor, height), min(factor, width)  # a side never vanishes
    rows, columns = height // down, width // across
    blocks = pixels[: rows * down, : columns * across].reshape(rows, down, columns, across, channels)
    small = blocks.mean((1, 3), dtype=np.float32).round().astype(np.uint8)
    model.tex_data[at : at + small.size] = small.ravel()
    model.tex_height[texture], model.tex_width[texture] = rows, columns
