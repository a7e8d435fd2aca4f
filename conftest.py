"""Before any test imports MuJoCo, which looks at this once: render without a screen, as workers do."""

import os

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])
