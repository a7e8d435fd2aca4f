"""``python -m rlvla_sim_maniskill.probe RENDERER``: draw 8x8 pixels with SAPIEN, and say on what, as JSON.

In a process of its own, since a broken driver ends one. SAPIEN's own question (``can_render``) is no answer: it says no to
software drivers that draw.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rlvla_sim_maniskill import startup, vulkan

_GREY = [0.5, 0.5, 0.5]


def main() -> int:
    (renderer,) = sys.argv[1:]
    vulkan.set_environment(renderer)  # type: ignore[arg-type]
    with startup.quiet():
        told = draw("cuda" if vulkan.chosen(renderer) == "gpu" else "cpu")  # type: ignore[arg-type]
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    return 0


def draw(device: str) -> dict[str, Any]:
    """Return the mean grey level of a picture of nothing but light, and what drew it."""
    import sapien

    scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device(device))])
    scene.set_ambient_light(_GREY)
    scene.add_ground(0)
    camera = scene.add_camera("probe", width=8, height=8, fovy=1.0, near=0.01, far=10)
    camera.entity.set_pose(sapien.Pose([0, 0, 1], [0.7071068, 0, 0.7071068, 0]))  # from above
    scene.update_render()
    camera.take_picture()
    level = float(camera.get_picture("Color")[..., :3].mean())
    return {"level": level, **startup.renderer_versions()}


if __name__ == "__main__":
    sys.exit(main())
