"""What cameras of all worlds see, drawn at once by rays.

Letters: N worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlvla.mujoco_warp.start import mjw, wp
from rlvla.mujoco_warp.worlds import Worlds


class Pictures:
    """Cameras of N worlds.

    Args:
        worlds: that are looked at.
        cameras: name in the model to (height, width).
        geom_groups: that are drawn.
        shadows: draw them.
        skybox: draw it where nothing else is; else black.
        samples: a pixel's rays along each side.
        data: of mujoco_warp, drawn in place of the worlds' own: positions of geoms, cameras and lights that were kept.
        looks: has a ``mujoco_model`` and a ``model`` (of mujoco_warp) that are drawn in place of the worlds' own: other shapes
            and colours of the same geoms.
    """

    def __init__(
        self,
        worlds: Worlds,
        cameras: Mapping[str, tuple[int, int]],
        *,
        geom_groups: Sequence[int] = (0, 1, 2),
        shadows: bool = False,
        skybox: bool = False,
        samples: int = 1,
        data: Any = None,
        looks: Any = None,
    ) -> None:
        looks = worlds if looks is None else looks
        model = looks.mujoco_model
        names = sorted(cameras, key=lambda name: int(model.camera(name).id))  # in the model's order
        self._sizes = {name: cameras[name] for name in names}
        with worlds.turn(), worlds._warp():
            self._context = mjw.create_render_context(
                model,
                worlds.count,
                cam_res=[(width, height) for height, width in self._sizes.values()],
                render_rgb=True,
                render_depth=False,
                render_seg=False,
                use_shadows=shadows,
                enabled_geom_groups=list(geom_groups),
                cam_active=names,
                render_skybox=skybox,
                samples_per_pixel=samples,
            )

        shown = worlds.data if data is None else data

        def play() -> None:
            mjw.refit_bvh(looks.model, shown, self._context)
            mjw.render(looks.model, shown, self._context)

        self._draw = worlds.program(play)
        self._bytes: Tensor = wp.to_torch(self._context.rgb_data).view(torch.uint8)

    def draw(self) -> dict[str, Tensor]:
        """Return camera name to uint8 ``[N, height, width, 3]`` of where everything is; within ``Worlds.turn``."""
        self._draw()
        shown, at = {}, 0
        for name, (height, width) in self._sizes.items():
            size = 4 * height * width  # blue, green, red, alpha
            shown[name] = self._bytes[:, at : at + size].reshape(-1, height, width, 4)[..., :3].flip(-1)
            at += size
        return shown
