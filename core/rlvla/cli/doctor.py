"""``rlvla doctor``: what a run needs from this machine, looked at before a run needs it; one fix for each failure."""

from __future__ import annotations

import argparse
import ctypes.util
import dataclasses
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvla import environments, flags, plugin
from rlvla.configs import Choice, plain, read_one
from rlvla.errors import ConfigError, IncompatiblePlugin, SimulatorError
from rlvla.memory import available_gib
from rlvla.specs import Check, Start

if TYPE_CHECKING:
    from rlvla.simulator import Observation

MIN_DEVIATION = 5.0
"""Grey levels: the standard deviation below which a picture shows nothing."""
_LIBRARIES = {"EGL": "libegl1 libegl-mesa0", "GLESv2": "libgles2", "OSMesa": "libosmesa6"}


def main(words: Sequence[str]) -> int:
    at = next((n for n, word in enumerate(words) if word.startswith("--sim.")), len(words))
    words, settings = words[:at], words[at:]
    parser = argparse.ArgumentParser(
        prog="rlvla doctor",
        allow_abbrev=False,  # --sim is no --sim-python
        description="Check this machine and its simulators.",
        epilog="Settings of the named simulators go last: rlvla doctor libero --sim.suite libero_10",
    )
    parser.add_argument(
        "sims", nargs="*", metavar="SIM", help="simulators to render a picture with; none: all installed"
    )
    parser.add_argument("--sim", action="append", default=[], metavar="SIM", help="the same, as other commands have it")
    parser.add_argument("--sim-python", metavar="PATH", help="interpreter of simulator workers (run.sim_python)")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="for each simulator (default 180)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    options.sims += options.sim
    if settings and not options.sims:
        raise ConfigError(f"{settings[0]}: settings of which simulator? rlvla doctor NAME {' '.join(settings)}")
    configs_ = {name: _config(name, settings) for name in options.sims}  # mistyped: wrong usage, not a finding
    pictures = Path(tempfile.mkdtemp(prefix="rlvla-doctor-"))
    found = []
    sims = configs_ or dict.fromkeys(sorted(plugin.names("sim")))
    checks = _all(sims, options.sim_python, options.timeout, pictures)
    for check in checks:
        found.append(check)
        if not options.json:
            print(line(check), flush=True)
    failed = sum(not check.ok and not check.warning for check in found)
    if options.json:
        print(json.dumps([dataclasses.asdict(check) for check in found], indent=1))
    else:
        print(f"{failed} of {len(found)} checks failed" if failed else f"all {len(found)} checks passed")
    return 1 if failed else 0


def _config(name: str, settings: Sequence[str]) -> Any:
    """Return a simulator's checked config."""
    kind = plugin.find("sim", name).config
    given: dict[str, Any] = {"sim": {}}
    problems = flags.merge(settings, {"sim": kind}, given)
    if problems:
        raise ConfigError(problems)
    return read_one(kind, given["sim"])


def line(check: Check) -> str:
    """Return what is printed for a check."""
    state = "warn" if check.warning else "ok  " if check.ok else "FAIL"
    text = f"{state}  {check.name}: {check.found}"
    if check.picture:
        text += f"\n      picture: {check.picture}"
    if check.fix and (check.warning or not check.ok):
        text += f"\n      fix: {check.fix}"
    return text


def _all(sims: Mapping[str, Any], python: str | None, timeout: float, pictures: Path) -> Iterator[Check]:
    looks: list[Callable[[], Iterable[Check]]] = [packages, torch, libraries, memory, disk]
    for look in looks:
        yield from look()
    if not sims:
        yield Check("simulators", False, "none is installed", "pip install rlvla-sim-tabletop")
    for name, config in sims.items():
        yield from simulator(name, python, timeout, pictures, config)


# ---- the machine ----------------------------------------------------------------------------------------------------


def packages() -> Iterator[Check]:
    """Python, rlvla and what it requires; plugins that cannot work."""
    yield Check("python", True, f"{platform.python_version()} at {sys.executable}, {platform.platform()}")
    unmet = plugin.unmet_requirements("rlvla")
    fix = f"pip install -U {' '.join(repr(one.partition(' (')[0]) for one in unmet)}"
    found = f"{metadata.version('rlvla')}" + (f" needs {'; '.join(unmet)}" if unmet else "")
    yield Check("rlvla", not unmet, found, fix)
    for one in plugin.installed():
        fix = f"pip install -U {one.distribution}"
        yield Check(
            f"{one.kind} plugin {one.name}", one.state == "ok", f"{one.distribution} {one.version}: {one.state}", fix
        )


def torch() -> Iterator[Check]:
    """torch and its devices, in a process of their own: a broken driver can end a process."""
    install = "pip install 'rlvla[train]'"
    code = """
import json, torch
gpus = []
if torch.cuda.is_available():
    for n in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(n)
        one = torch.cuda.get_device_properties(n)
        gpus.append(f"cuda:{n} {one.name} sm_{one.major}{one.minor}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free, {one.uuid}")
print(json.dumps([torch.__version__, torch.version.cuda, gpus]))
"""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        yield Check("torch", False, "did not answer within 300 s", "look at `nvidia-smi`: a GPU or its driver may hang")
        return
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
        yield Check("torch", False, f"cannot be used: {words}", install)
        return
    version, cuda, gpus = json.loads(done.stdout.splitlines()[-1])
    yield Check("torch", True, f"{version} (CUDA {cuda})" if cuda else f"{version} (CPU build)")
    for gpu in gpus:
        yield Check("gpu", True, gpu)
    if not gpus:
        driver = _nvidia_gpus()
        found = f"torch sees none, the driver shows {driver}" if driver else "none: runs use the CPU"
        fix = (
            "install a torch build for this driver (see pytorch.org), and look at CUDA_VISIBLE_DEVICES"
            if driver
            else ""
        )
        yield Check("gpu", not driver, found, fix, warning=bool(driver))


def _nvidia_gpus() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60, check=False)
    return "; ".join(done.stdout.split("\n")).strip("; ") if done.returncode == 0 else ""


def libraries() -> Iterator[Check]:
    """Libraries for rendering without a screen, and the variables that choose between them."""
    if sys.platform != "linux":
        return
    for library, package in _LIBRARIES.items():
        path = ctypes.util.find_library(library)
        yield Check(f"lib{library}", bool(path), path or "not found", f"apt-get install {package}", warning=not path)
    names = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES", "DISPLAY")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    yield Check("rendering variables", True, ", ".join(chosen) or "none set")


def memory() -> Iterator[Check]:
    """CPU cores and memory, as this process may use them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check(
        "cpu", cores > 1, f"{cores} cores", "simulators and training share one core: expect half the speed", cores == 1
    )
    free = available_gib()
    if free is not None:
        few = "close other programs, or use fewer environments"
        yield Check("memory", free > 2, f"{free:.1f} GiB available", few, warning=1 < free <= 2)


def disk() -> Iterator[Check]:
    """Space for checkpoints and for temporary files."""
    for name, place in (("disk for runs", Path.cwd()), ("disk for temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(place).free / 2**30
        fix = "free some space; run.keep_last bounds what checkpoints take"
        yield Check(name, free > 5, f"{free:.1f} GiB free in {place}", fix, warning=1 < free <= 5)


# ---- a simulator ----------------------------------------------------------------------------------------------------


def simulator(name: str, python: str | None, timeout: float, pictures: Path, config: Any = None) -> Iterator[Check]:
    """What the plugin itself looks at and then, if nothing is amiss, one picture of each camera, both in worker processes.

    Args:
        name: the plugin's.
        python: interpreter of the worker; None: this one.
        timeout: seconds for each of the two.
        pictures: folder for them.
        config: its config; None: the defaults.
    """
    try:
        one = plugin.find("sim", name)
        choice = Choice(one, one.config() if config is None else config)
        choice.describe()
    except ConfigError as error:
        if isinstance(error, IncompatiblePlugin):
            yield Check(name, False, str(error), f"pip install -U rlvla-sim-{name}")
        elif config is None:
            fix = f"rlvla doctor {name} --sim.option value"
            yield Check(f"{name}: picture", False, f"not looked at, it wants settings: {error}", fix, warning=True)
        else:
            yield Check(f"{name}: settings", False, str(error), "correct the option that is named first")
        return
    try:
        python or environments.interpreter(one, choice.config)
    except SimulatorError as error:  # nobody has asked for it, unless by name
        yield Check(name, False, str(error), f"rlvla simulators install {name}", warning=config is None)
        return
    amiss = []
    for check in own_checks(choice, python, timeout) if one.doctor is not None else ():
        yield check
        amiss += [] if check.ok or check.warning else [check.name]
    if amiss:
        yield Check(
            f"{name}: picture",
            False,
            f"not looked at before this is in order: {', '.join(amiss)}",
            "see above",
            warning=True,
        )
    else:
        yield from picture(choice, python, timeout, pictures)


def own_checks(choice: Choice, python: str | None, timeout: float) -> Iterator[Check]:
    """Run ``Plugin.doctor`` in a process of its own."""
    name = choice.name
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place, "checks.json")
        command = [
            python or environments.interpreter(choice.plugin, choice.config) or sys.executable,
            "-m",
            "rlvla.cli.doctor_worker",
            name,
            json.dumps(plain(choice.config)),
            str(answer),
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            yield Check(name, False, f"its own checks did not run: {error}", "see the checks above")
            return
        if not answer.exists():
            words = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
            yield Check(name, False, f"its own checks failed: {words}", f"see all of it: {shlex.join(command)}")
            return
        for check in json.loads(answer.read_text()):
            yield Check(**{**check, "name": f"{name}: {check['name']}"})


def picture(choice: Choice, python: str | None, timeout: float, pictures: Path) -> Iterator[Check]:
    """Reset one environment in a worker and look at what its cameras show."""
    name = f"{choice.name}: picture"
    began = time.perf_counter()
    try:
        observation, cameras = _observe(choice, python, timeout)
    except (SimulatorError, ConfigError) as error:
        late = time.perf_counter() - began >= timeout
        text = f"none after {timeout:.0f} s" if late else str(error)
        update = f"pip install -U {choice.plugin.distribution or choice.name}"
        yield Check(name, False, text, _drawing(choice) if late else f"{_drawing(choice)}; or {update}")
        return
    seconds = time.perf_counter() - began
    for camera in cameras:
        image = observation.images[camera][0]
        file = pictures / f"{choice.name}-{camera}.png"
        write_png(file, image)
        deviation = float(image.std())
        found = f"camera {camera}, {image.shape[1]}x{image.shape[0]}, deviation {deviation:.1f} grey levels, {seconds:.1f} s"
        fix = f"it shows nothing (wanted more than {MIN_DEVIATION:.0f}): {_drawing(choice)}"
        yield Check(name, deviation > MIN_DEVIATION, found, fix, picture=str(file))


def _drawing(choice: Choice) -> str:
    """Return what to do about pictures that do not come or show nothing."""
    return choice.plugin.drawing or f"look at what draws: the README of {choice.plugin.distribution or choice.name}"


def _observe(choice: Choice, python: str | None, timeout: float) -> tuple[Observation, list[str]]:
    from rlvla.worker import SubprocessSimulator

    one = SubprocessSimulator(choice, rows=1, horizon=1, python=python, name=choice.name)
    deadline = threading.Timer(timeout, one.kill)  # the call that waits then fails with WorkerDied
    deadline.daemon = True
    deadline.start()
    try:
        one.wait_ready()
        observation = one.reset([0], [0], [Start()])
        cameras = [camera.name for camera in one.spec.cameras]
        # the worker's memory goes with it
        observation.images = {camera: observation.images[camera].copy() for camera in cameras}
        return observation, cameras
    finally:
        deadline.cancel()
        one.close()


def write_png(path: Path, image: Any) -> None:
    """Write a uint8 ``[height, width, 3]`` picture (PNG specification, colour type 2, no filter)."""
    import struct
    import zlib

    height, width, _ = image.shape
    rows = b"".join(b"\0" + image[row].tobytes() for row in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
