"""Pictures as the towers want them: scaled, cropped, made uint8 as the public code does, on the model's device.

Every step is linear in rows and columns apart, so it is two small matrix products for a whole batch. Lanczos and bicubic
are antialiased (wider when shrinking), and rounded. The crop is 0.9 of the *area*, corner-aligned bilinear, as TensorFlow's
``crop_and_resize`` in the original evaluation, whose result goes through ``convert_image_dtype(x, uint8, saturate=True)``:
x in [0, 1] becomes the whole part of 255.5 x, so values lie half a step lower on average than rounding would put them.

Letters: N rows, M cameras, H height, W width, O size of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rlvla.batch import ObservationBatch
from rlvla.networks.pictures import picture_of, resampling, rounded
from rlvla.specs import Camera
from rlvla_model_openvla_oft import jpeg

CROP_AREA = 0.9


def cropping(size: int) -> Tensor:
    """Return fp32 ``[size, size]``: the middle ``sqrt(CROP_AREA)`` of a side, scaled up bilinearly, corners on corners."""
    side = math.sqrt(CROP_AREA)
    first, last = (1 - side) / 2 * (size - 1), (1 + side) / 2 * (size - 1)
    at_O = torch.linspace(first, last, size, dtype=torch.float64)
    distance_OH = (torch.arange(size, dtype=torch.float64) - at_O[:, None]).abs()
    return (1 - distance_OH).clamp_min(0).float()


def saturated(picture: Tensor) -> Tensor:
    """Return what TensorFlow's conversion of [0, 1] to uint8 makes of values in 0 to 255, still as fp32."""
    return (picture / 255 * 255.5).floor().clamp(0, 255)


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
        rows, columns = getattr(self, f"rows_{number}"), getattr(self, f"columns_{number}")
        picture_N3HW = picture_of(observation.images, self._cameras[number], self._mirrored, rows.device)
        if self._jpeg:
            picture_N3HW = jpeg.round_trip(picture_N3HW)
        if picture_N3HW.shape[2:] != (self._size, self._size):
            picture_N3HW = rounded(rows @ picture_N3HW @ columns.T)
        if self._crops:
            picture_N3HW = saturated(self.crop @ picture_N3HW @ self.crop.T)
        return picture_N3HW.to(torch.uint8)
