"""Pictures as the towers want them: scaled, cropped, rounded to uint8 as the public code does, on the model's device.

Every step is linear in rows and columns apart, so it is two small matrix products for a whole batch. Lanczos and bicubic
are antialiased (wider when shrinking); the crop is 0.9 of the *area*, corner-aligned bilinear, as TensorFlow's
``crop_and_resize`` in the original evaluation.

Letters: N rows, M cameras, H height, W width, O size of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rlvla.batch import ObservationBatch
from rlvla.specs import Camera
from rlvla_model_openvla_oft import jpeg

CROP_AREA = 0.9


def resampling(size: int, wanted: int, kind: Literal["lanczos", "bicubic"]) -> Tensor:
    """Return fp32 ``[wanted, size]``: weights of old pixels in each new one."""
    scale = size / wanted
    widen = max(scale, 1.0)
    centre_O = (torch.arange(wanted, dtype=torch.float64) + 0.5) * scale
    distance_OH = (torch.arange(size, dtype=torch.float64) + 0.5 - centre_O[:, None]) / widen
    weight_OH = (_lanczos3 if kind == "lanczos" else _cubic)(distance_OH)
    return (weight_OH / weight_OH.sum(1, keepdim=True)).float()


def cropping(size: int) -> Tensor:
    """Return fp32 ``[size, size]``: the middle ``sqrt(CROP_AREA)`` of a side, scaled up bilinearly, corners on corners."""
    side = math.sqrt(CROP_AREA)
    first, last = (1 - side) / 2 * (size - 1), (1 + side) / 2 * (size - 1)
    at_O = torch.linspace(first, last, size, dtype=torch.float64)
    distance_OH = (torch.arange(size, dtype=torch.float64) - at_O[:, None]).abs()
    return (1 - distance_OH).clamp_min(0).float()


def _lanczos3(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


class Pictures(nn.Module):
    """From a simulator's cameras to uint8 ``[N, M, 3, O, O]``.

    Args:
        cameras: of the simulator, in the checkpoint's order.
        size: O.
        resize: filter.
        through_jpeg: first make of them what a JPEG file would.
        crop: cut out the centre.
        mirrored: as the checkpoint saw them; None: as they come.
    """

    crop: Tensor

    def __init__(
        self,
        cameras: Sequence[Camera],
        size: int,
        resize: Literal["lanczos", "bicubic"],
        through_jpeg: bool,
        crop: bool,
        mirrored: bool | None,
    ) -> None:
        super().__init__()
        self._cameras, self._size, self._mirrored = tuple(cameras), size, mirrored
        self._jpeg, self._crops = through_jpeg, crop
        for number, camera in enumerate(self._cameras):
            self.register_buffer(f"rows_{number}", resampling(camera.height, size, resize), persistent=False)
            self.register_buffer(f"columns_{number}", resampling(camera.width, size, resize), persistent=False)
        self.register_buffer("crop", cropping(size), persistent=False)

    def forward(self, observation: ObservationBatch) -> Tensor:
        """Return all cameras' pictures.

        Raises:
            ValueError: a picture of another size than the simulator declared.
        """
        return torch.stack([self._one(number, observation) for number in range(len(self._cameras))], 1)

    def _one(self, number: int, observation: ObservationBatch) -> Tensor:
        camera = self._cameras[number]
        picture_NHW3 = observation.images[camera.name]
        if picture_NHW3.shape[1:] != (camera.height, camera.width, 3):
            raise ValueError(
                f"camera {camera.name!r}: got a picture {tuple(picture_NHW3.shape[1:])}, wanted "
                f"{(camera.height, camera.width, 3)}, as the simulator declares"
            )
        rows, columns = getattr(self, f"rows_{number}"), getattr(self, f"columns_{number}")
        picture_N3HW = self._upright(picture_NHW3.to(rows.device).permute(0, 3, 1, 2), camera).float()
        if self._jpeg:
            picture_N3HW = jpeg.round_trip(picture_N3HW)
        if picture_N3HW.shape[2:] != (self._size, self._size):
            picture_N3HW = _rounded(rows @ picture_N3HW @ columns.T)
        if self._crops:
            picture_N3HW = _rounded(self.crop @ picture_N3HW @ self.crop.T)
        return picture_N3HW.to(torch.uint8)

    def _upright(self, picture_N3HW: Tensor, camera: Camera) -> Tensor:
        turned = {"upright": [], "upside_down": [2], "rotated_180": [2, 3]}[camera.orientation]
        if self._mirrored is not None and self._mirrored != camera.mirrored:
            turned = [one for one in (2, 3) if (one in turned) != (one == 3)]
        return picture_N3HW.flip(turned) if turned else picture_N3HW


def _rounded(picture: Tensor) -> Tensor:
    return picture.round().clamp(0, 255)
