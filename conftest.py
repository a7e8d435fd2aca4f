"""Before any test imports MuJoCo, which looks at this once: render without a screen, as workers do. And what runs first."""

import os
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])

LONGEST_FIRST = (
    "tests/test_ray.py",
    "tests/test_ray_faults.py",
    "plugins/simulators/libero/tests/test_simulator.py",
    "plugins/simulators/maniskill/tests/test_plate25.py",
    "plugins/simulators/tabletop/tests/test_tabletop_runtime.py",
    "plugins/simulators/libero/tests/test_conformance.py",
    "plugins/simulators/robotwin/tests/test_robotwin_conformance.py",
    "plugins/simulators/libero/tests/test_equivalence.py",
    "tests/test_overlap.py",
    "tests/test_resume.py",
    "plugins/simulators/maniskill/tests/test_maniskill_conformance.py",
    "plugins/simulators/robotwin/tests/test_robotwin_run.py",
    "plugins/simulators/libero-gpu/tests/test_libero_gpu_runtime.py",
)
"""Files of half a minute and more. One of them begun last, by one worker of xdist, would keep the others waiting."""


def pytest_configure(config):
    """Let xdist keep the order below; its own begins with the files of most tests, and the longest are of few."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    place = {Path(__file__).parent / file: number for number, file in enumerate(LONGEST_FIRST)}
    if missing := [str(file) for file in place if not file.is_file()]:
        raise FileNotFoundError(f"LONGEST_FIRST names {', '.join(missing)}")
    items.sort(key=lambda item: place.get(item.path, len(place)))  # stable: the rest as collected
