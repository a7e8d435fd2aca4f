"""``python -m rlvla_sim_robotwin.probe SHADER``: draw 8x8 pixels with SAPIEN, and say on what, as JSON.

In a process of its own, since a driver that cannot do it may end one. What SAPIEN says of itself (``can_render``) is no
answer: it says no to software drivers that draw.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rlvla_sim_robotwin import vulkan


def main() -> int:
    (shader,) = sys.argv[1:]
    vulkan.set_environment()
    sys.stdout.write("\n" + json.dumps(draw(shader)) + "\n")
    sys.stdout.flush()
    return 0


def draw(shader: str) -> dict[str, Any]:
    """Return the mean grey level of a lit floor seen from above, and what drew it."""
    import sapien

    sapien.render.set_camera_shader_dir("rt" if shader == "ray-tracing" else "default")
    if shader == "ray-tracing":
        sapien.render.set_ray_tracing_samples_per_pixel(4)
        sapien.render.set_ray_tracing_denoiser("oidn")
    scene = sapien.Scene()
    scene.set_ambient_light([0.5, 0.5, 0.5])
    scene.add_ground(0)
    camera = scene.add_camera("probe", width=8, height=8, fovy=1.0, near=0.01, far=10)
    camera.entity.set_pose(sapien.Pose([0, 0, 1], [0.7071068, 0, 0.7071068, 0]))
    scene.update_render()
    camera.take_picture()
    level = float(camera.get_picture("Color")[..., :3].mean())
    return {"level": level, "renderer": " ".join(sapien.render.get_device_summary().split())}


if __name__ == "__main__":
    sys.exit(main())
