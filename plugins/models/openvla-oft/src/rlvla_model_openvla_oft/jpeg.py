"""What writing a picture as a JPEG file and reading it again does to it, for a whole batch on its device, without files.

The original evaluation does so, since training pictures were JPEGs: quality 95, colours at half resolution. Entropy coding
loses nothing, so what remains is arithmetic (ITU-T T.81; quantisation tables of its annex K): to brightness and colours,
colours averaged over 2 x 2, blocks of 8 x 8 through a cosine transform, rounded to multiples of a table, and all back.

Letters: N pictures, C planes, H height, W width.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

QUALITY = 95
# fmt: off
_BRIGHTNESS = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)
_COLOUR = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
    *(99,) * 32,
)
# fmt: on
_TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
_TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))


@cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return cosines, the tables of brightness and colour, and both colour matrices."""
    k, n = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    cosines = torch.cos((2 * n + 1) * k * math.pi / 16) * torch.where(k == 0, 8**-0.5, 0.5)
    scale = 200 - 2 * QUALITY
    tables = [((torch.tensor(one) * scale + 50) // 100).clamp(1, 255).reshape(8, 8) for one in (_BRIGHTNESS, _COLOUR)]
    matrices = [torch.tensor(one) for one in (_TO_YCC, _TO_RGB)]
    made = [one.float().to(device) for one in (cosines, *tables, *matrices)]
    return made[0], made[1], made[2], made[3], made[4]


def round_trip(picture_N3HW: Tensor) -> Tensor:
    """Return pictures as they come back, whole numbers from 0 to 255 in fp32 as they were."""
    cosines, brightness, colour, to_ycc, to_rgb = _constants(picture_N3HW.device)
    height, width = picture_N3HW.shape[2:]
    padded = F.pad(picture_N3HW, (0, -width % 16, 0, -height % 16), mode="replicate")
    ycc = torch.einsum("dc,nchw->ndhw", to_ycc, padded)
    ycc[:, 1:] += 128
    ycc = _whole(ycc)
    light = _through_blocks(ycc[:, :1], cosines, brightness)
    halved = _halved(ycc[:, 1:])
    colours = _doubled(_through_blocks(halved, cosines, colour))
    back = torch.cat([light, colours - 128], 1)
    return _whole(torch.einsum("dc,nchw->ndhw", to_rgb, back))[:, :, :height, :width]


def _through_blocks(plane_NCHW: Tensor, cosines: Tensor, table: Tensor) -> Tensor:
    """Return planes after each block's coefficients were rounded to multiples of a table."""
    blocks = (plane_NCHW - 128).unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    coefficients = torch.round(cosines @ blocks @ cosines.T / table) * table
    again = (cosines.T @ coefficients @ cosines).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return _whole(again + 128)


def _halved(plane: Tensor) -> Tensor:
    """Return means of 2 x 2, one half rounded down and up in turns, as libjpeg does against a drift."""
    bias_W = torch.arange(plane.shape[3] // 2, device=plane.device) % 2 * 0.25 + 0.25
    return (F.avg_pool2d(plane, 2) + bias_W).floor()


def _doubled(plane: Tensor) -> Tensor:
    """Return planes scaled up by a triangle, rounded likewise."""
    bias_W = 0.5 - torch.arange(2 * plane.shape[3], device=plane.device) % 2 / 16
    return (F.interpolate(plane, scale_factor=2, mode="bilinear") + bias_W).floor().clamp(0, 255)


def _whole(plane: Tensor) -> Tensor:
    return plane.round().clamp(0, 255)
