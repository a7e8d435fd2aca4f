"""Importing and making ManiSkill so that nothing waits for an answer: drivers, versions, assets, words of errors."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from rlvla.errors import SimulatorError
from rlvla_sim_maniskill import header, plate25, vulkan
from rlvla_sim_maniskill.vulkan import Renderer

if TYPE_CHECKING:
    from rlvla_sim_maniskill import ManiSkillConfig

log = logging.getLogger(__name__)

PINS = {"mani-skill": "3.0.1", "sapien": "3.0.3"}
"""Versions that the table of tasks was measured on."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SHOWN = 12
"""Missing files that a message names."""
_renderer: Renderer = "auto"
_kept_renderers: dict[str, Any] = {}


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Keep to packages what they are warned of: deprecations in upstream code are nothing that a user can change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The same, and what packages print goes to the debug log. Not while a run goes on: stdout is the whole process's."""
    captured = io.StringIO()
    try:
        with contextlib.redirect_stdout(captured), unwarned():
            yield
    finally:
        for line in captured.getvalue().splitlines():
            log.debug("maniskill: %s", line)


@contextlib.contextmanager
def nobody_asked() -> Iterator[None]:
    """Answer upstream's questions with the end of the input: it would offer a download and wait."""
    before = sys.stdin
    with open(os.devnull) as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = before


def version(distribution: str) -> str:
    """Return the installed version, or an empty string."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions of the pinned packages."""
    return {name: version(name) for name in PINS}


def package_problems() -> list[str]:
    """Return a sentence for each package that is missing or of another version."""
    return [
        f"{name} {wanted} expected, found {version(name) or 'none'}: pip install {name}=={wanted}"
        for name, wanted in PINS.items()
        if version(name) != wanted
    ]


class _NowAndThen:
    """Stands in for :mod:`gc` where ManiSkill clears a scene: to look through all objects of a process takes 170 ms, to build a
    scene 40 ms, and what one leaves behind is little."""

    def __init__(self, every: int = 16) -> None:
        self._calls = itertools.count(1)
        self._every = every

    def collect(self) -> int:
        return gc.collect() if next(self._calls) % self._every == 0 else 0


def import_maniskill(renderer: Renderer) -> None:
    """Import ManiSkill with its tasks, after choosing the Vulkan driver.

    Raises:
        SimulatorError: a package is missing, or cannot be imported.
    """
    global _renderer
    if problems := package_problems():
        raise SimulatorError("\n".join(problems))
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    _renderer = renderer
    vulkan.set_environment(renderer)
    try:
        with quiet():
            package = importlib.import_module("mani_skill")
            package.logger.setLevel(logging.ERROR)  # a line for each body without an initial pose
            importlib.import_module("mani_skill.envs")
            importlib.import_module("mani_skill.envs.sapien_env").gc = _NowAndThen()  # type: ignore[attr-defined]
    except Exception as error:
        raise SimulatorError(f"ManiSkill cannot be imported: {type(error).__name__}: {error}") from error


def make(task: str, *, module: str = "", **options: Any) -> Any:
    """Return a bare ManiSkill environment (no wrappers).

    Args:
        task: as it is registered.
        module: that registers it, where ManiSkill itself does not.
        options: of the environment.

    Raises:
        SimulatorError: it cannot be made: the module, assets, the renderer, or upstream's error.
    """
    from mani_skill.utils.registration import REGISTERED_ENVS

    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SimulatorError(f"module {module!r}, which registers {task}, cannot be imported: {error}") from error
    if task not in REGISTERED_ENVS:
        where = (
            f"module {module!r} does not register it" if module else "ManiSkill does not register it: give its module"
        )
        raise SimulatorError(
            f"task {task!r}: {where} (python -m rlvla_sim_maniskill {task} --module MODULE --output FILE)"
        )
    spec = REGISTERED_ENVS[task]
    if options.get("obs_mode") == "none" and not {"none", "any_textures"} & set(spec.cls.SUPPORTED_OBS_MODES):
        options["obs_mode"] = spec.cls.SUPPORTED_OBS_MODES[0]
    try:
        with quiet(), nobody_asked():
            env = spec.make(**options)
            _keep_renderer(env)
    except SimulatorError:  # of our own tasks, and meant
        raise
    except (Exception, SystemExit) as error:
        raise failed(task, error) from error
    return env


def plate25_problems(assets: str | None) -> list[str]:
    """Say which files of :mod:`rlvla_sim_maniskill.plate25` are missing or of another release, and what brings them."""
    problems = plate25.damages(assets)
    if missing := plate25.missing(assets):
        shown = [str(path) for path in missing[:_SHOWN]] + (["..."] if len(missing) > _SHOWN else [])
        problems.append(
            f"{len(missing)} files are missing: {', '.join(shown)}. They are in no package: {plate25.commands(assets)}"
        )
    return problems


def missing(config: ManiSkillConfig) -> list[str]:
    """Say which files of the chosen task are missing and what brings them, before a model is loaded."""
    return plate25_problems(config.assets) if config.task in plate25.VARIANTS else []


def _keep_renderer(env: Any) -> None:
    """Keep what the process's first environment draws with: else the next one compiles all shaders again (7 s on a CPU)."""
    if env.scene.can_render() and str(env._render_device) not in _kept_renderers:
        import sapien

        _kept_renderers[str(env._render_device)] = sapien.render.RenderSystem(env._render_device)


def failed(task: str, error: BaseException) -> SimulatorError:
    """Return what upstream's error means: no renderer, missing assets, or itself."""
    words = f"{type(error).__name__}: {error}".strip(": ")
    if any(
        sign in words.lower() for sign in ("rendering device", "render device", "physical device", "vulkan", "vk::")
    ):
        return SimulatorError(
            f"SAPIEN finds no usable Vulkan device ({words}), which it needs for state too: {vulkan.hint(_renderer)}"
        )
    if isinstance(error, (EOFError, SystemExit, FileNotFoundError)) or "download_asset" in words:
        return SimulatorError(
            f"task {task} needs downloaded assets ({words}): {downloads(task)}. They are in no package"
        )
    return SimulatorError(f"task {task} cannot be made: {words}" if task else words)


def downloads(task: str) -> str:
    """Return the commands that bring a task's assets."""
    from mani_skill.utils.registration import REGISTERED_ENVS

    return header.commands(header.needing_assets().get(task) or REGISTERED_ENVS[task].asset_download_ids or (task,))


def renderer_versions() -> dict[str, str]:
    """Return what draws: the device's name, and the driver's manifest where one was chosen."""
    import sapien

    try:
        summary = sapien.render.get_device_summary()
    except Exception as error:  # SAPIEN without a driver: what failed is said where something is drawn
        summary = f"unknown ({error})"
    return {"renderer": " ".join(summary.split()), "VK_ICD_FILENAMES": os.environ.get("VK_ICD_FILENAMES", "")}
