"""Pictures as the tower wants them: the middle 0.95 of each side, scaled bilinearly, cut down to uint8, on the device.

Cropping and scaling are linear in rows and columns apart, so they are two small matrix products for a whole batch. The
public code multiplies by 255 and drops the fraction, where OpenVLA-OFT's rounds after scaling.

Letters: N rows, M cameras, H height, W width, O size of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rlvla.networks.pictures import picture_of, resampling
from rlvla.specs import Camera

CROP_SIDE = 0.95
_ROUNDING = 1e-3  # of a grey level: a whole number that came out just below itself is not cut down


def cropped_resampling(size: int, wanted: int) -> Tensor:
    """Return fp32 ``[wanted, size]``: weights of old pixels in each new one, none outside the middle ``CROP_SIDE``."""
    kept = int(size * CROP_SIDE)
    before = round((size - kept) / 2.0)
    weight_OH = torch.zeros(wanted, size)
    weight_OH[:, before : before + kept] = resampling(kept, wanted, "bilinear")
    return weight_OH


class Pictures(nn.Module):
    """From a simulator's cameras to uint8 ``[N, M, 3, O, O]``.

    Args:
        cameras: of the simulator, in the checkpoint's order.
        size: O.
        mirrored: as the checkpoint saw them; None: as they come.
    """

    def __init__(self, cameras: Sequence[Camera], size: int, mirrored: bool | None) -> None:
        super().__init__()
        self._cameras, self._mirrored = tuple(cameras), mirrored
        for number, camera in enumerate(self._cameras):
            self.register_buffer(f"rows_{number}", cropped_resampling(camera.height, size), persistent=False)
            self.register_buffer(f"columns_{number}", cropped_resampling(camera.width, size), persistent=False)

    def forward(self, images: TensorDict) -> Tensor:
        """Return all cameras' pictures.

        Args:
            images: camera name to uint8 ``[N, H, W, 3]``.

        Raises:
            ValueError: a picture of another size than the simulator declared.
        """
        return torch.stack([self._one(number, images) for number in range(len(self._cameras))], 1)

    def _one(self, number: int, images: TensorDict) -> Tensor:
        rows, columns = getattr(self, f"rows_{number}"), getattr(self, f"columns_{number}")
        picture_N3HW = picture_of(images, self._cameras[number], self._mirrored, rows.device)
        scaled = rows @ picture_N3HW @ columns.T
        return (scaled + _ROUNDING).clamp(0, 255).to(torch.uint8)  # type: ignore[no-any-return]
