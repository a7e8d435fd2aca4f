"""Pictures on a model's device: resampling as small matrix products, turned upright.

Every step is linear in rows and columns apart, so it is two small matrix products for a whole batch. Filters are
antialiased (wider when shrinking).

Letters: N rows, H height, W width, O size of the result.
"""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvla.specs import Camera

Filter = Literal["lanczos", "bicubic", "bilinear"]


def resampling(size: int, wanted: int, kind: Filter) -> Tensor:
    """Return fp32 ``[wanted, size]``: weights of old pixels in each new one."""
    scale = size / wanted
    widen = max(scale, 1.0)
    centre_O = (torch.arange(wanted, dtype=torch.float64) + 0.5) * scale
    distance_OH = (torch.arange(size, dtype=torch.float64) + 0.5 - centre_O[:, None]) / widen
    weight_OH = {"lanczos": _lanczos3, "bicubic": _cubic, "bilinear": _triangle}[kind](distance_OH)
    return (weight_OH / weight_OH.sum(1, keepdim=True)).float()


def _lanczos3(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_min(0)


def picture_of(images: TensorDict, camera: Camera, mirrored: bool | None, device: torch.device) -> Tensor:
    """Return one camera's pictures as fp32 ``[N, 3, H, W]`` in 0 to 255, upright.

    Args:
        images: camera name to uint8 ``[N, H, W, 3]``, as the simulator gave them.
        camera: which.
        mirrored: left and right exchanged; None: as they come.
        device: where to.

    Raises:
        ValueError: a picture of another size than the simulator declared.
    """
    picture_NHW3 = images[camera.name]
    if picture_NHW3.shape[1:] != (camera.height, camera.width, 3):
        raise ValueError(
            f"camera {camera.name!r}: got a picture {tuple(picture_NHW3.shape[1:])}, wanted "
            f"{(camera.height, camera.width, 3)}, as the simulator declares"
        )
    turned = {"upright": [], "upside_down": [2], "rotated_180": [2, 3]}[camera.orientation]
    if mirrored is not None and mirrored != camera.mirrored:
        turned = [one for one in (2, 3) if (one in turned) != (one == 3)]
    picture_N3HW: Tensor = picture_NHW3.to(device).permute(0, 3, 1, 2)
    return (picture_N3HW.flip(turned) if turned else picture_N3HW).float()


def rounded(picture: Tensor) -> Tensor:
    """Return what is left after uint8, still as fp32."""
    return picture.round().clamp(0, 255)
