"""Importing the runtime so that it finds what it needs and draws as configured; runs in the simulator's own interpreter."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import multiprocessing
import os
import sys
import types
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import Any

from rlvla.errors import SimulatorError
from rlvla_sim_robotwin import RoboTwinConfig, assets, vulkan

RUNTIME = "rlinf-robotwin-runtime"
VERSION = "0.1.3"
_RAY_TRACING = (
    "set_ray_tracing_samples_per_pixel",
    "set_ray_tracing_path_depth",
    "set_ray_tracing_denoiser",
)


def version(distribution: str) -> str:
    """Return the installed version, or an empty string."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def package_problems() -> list[str]:
    """Say what is wrong with this interpreter and its packages."""
    python = ".".join(map(str, sys.version_info[:3]))
    numpy = version("numpy")
    fits = (3, 10) <= sys.version_info[:2] < (3, 12) and numpy.partition(".")[0] == "1"
    said = []
    if not fits:
        said.append(
            f"{RUNTIME} {VERSION} needs Python 3.10 or 3.11 and numpy < 2; found Python {python} and numpy {numpy or 'none'} "
            f"in {sys.executable}: rlvla simulators install robotwin"
        )
    if (found := version(RUNTIME)) != VERSION:
        said.append(
            f"{RUNTIME} {VERSION} expected, found {found or 'none'} in {sys.executable}: rlvla simulators install robotwin"
        )
    return said


def planner_problems(config: RoboTwinConfig) -> list[str]:
    """Say whether the planner is there."""
    if config.planner == "curobo" and not _has_curobo():
        return [
            "planner: curobo, but curobo is not importable (it is not the package of that name: NVlabs/curobo v0.7.8 is built "
            "from its repository); use mplib"
        ]
    return []


def _has_curobo() -> bool:
    """Return whether the planner is there, and not one of the packages that only have its name."""
    return importlib.util.find_spec("curobo") is not None and importlib.util.find_spec("curobo.wrap") is not None


def problems(config: RoboTwinConfig) -> list[str]:
    """Return all that would keep an episode from starting, without importing the runtime."""
    said = package_problems() + assets.problems(config) + planner_problems(config) + vulkan.problems()
    if config.shader == "ray-tracing" and vulkan.software():
        said.append(vulkan.NO_RAY_TRACING)
    return said


def versions(config: RoboTwinConfig) -> dict[str, str]:
    """Return what changes numbers: packages, what draws, and how.

    Raises:
        SimulatorError: nothing draws.
    """
    names = (RUNTIME, "sapien", "mplib", "toppra", "numpy")
    return {
        **{name: version(name) for name in names},
        "shader": config.shader,
        "planner": config.planner,
        **_renderer(),
    }


def _renderer() -> dict[str, str]:
    """Return what draws: looked at when a simulator is made, so a driver that cannot is found before an episode.

    Raises:
        SimulatorError: SAPIEN finds no driver.
    """
    import sapien

    try:
        summary = " ".join(sapien.render.get_device_summary().split())
    except Exception as error:
        raise SimulatorError(f"{vulkan.HINT} ({error})") from error
    return {"renderer": summary, "VK_ICD_FILENAMES": os.environ.get("VK_ICD_FILENAMES", "")}


def import_task(config: RoboTwinConfig) -> type[Any]:
    """Import the runtime and return the class of the configured task.

    Raises:
        SimulatorError: something is missing, or it cannot be imported.
    """
    if said := problems(config):
        raise SimulatorError("\n".join(said))
    place = assets.root(config)
    assert place is not None
    assets.set_environment(place)
    vulkan.set_environment()
    stand_in()
    if config.shader == "default":
        _rasterise()
    with printed() as words:
        try:
            module = importlib.import_module(f"robotwin.envs.{config.task}")
        except Exception as error:
            hint = ": apt-get install libgl1 libglib2.0-0" if "cannot open shared object" in str(error) else ""
            raise SimulatorError(
                f"{RUNTIME} cannot be imported: {type(error).__name__}: {error}{tail(words)}{hint}"
            ) from error
    found: type[Any] = getattr(module, config.task)
    return found


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    """Collect what the runtime prints: it says there what went wrong, and much else."""
    words = io.StringIO()
    with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
        yield words


def tail(words: io.StringIO) -> str:
    """Return the last lines of what was printed, for an error."""
    lines = words.getvalue().strip().splitlines()[-3:]
    return f" ({'; '.join(lines)})" if lines else ""


def stand_in() -> None:
    """Give the runtime modules that it imports and, in an episode, hardly uses: of torch the seed and the cache of a GPU,
    of open3d nothing. Where they are installed, they are what is imported."""
    if importlib.util.find_spec("torch") is None:
        cuda = _module("torch.cuda", empty_cache=lambda: None, is_available=lambda: False)
        tensor = type("Tensor", (), {})
        _module("torch", manual_seed=lambda seed: None, cuda=cuda, Tensor=tensor, multiprocessing=multiprocessing)
        sys.modules["torch.multiprocessing"] = multiprocessing
    if importlib.util.find_spec("open3d") is None:
        _module("open3d")


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def _rasterise() -> None:
    """Let SAPIEN draw with its default shader whatever the runtime asks for."""
    import sapien

    render, asked = sapien.render, sapien.render.set_camera_shader_dir
    if getattr(asked, "rlvla", False):
        return

    def default(name: str) -> None:
        asked("default")

    default.rlvla = True  # type: ignore[attr-defined]
    render.set_camera_shader_dir = default
    for name in _RAY_TRACING:
        setattr(render, name, lambda value: None)
