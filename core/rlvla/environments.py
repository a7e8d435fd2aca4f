"""Interpreters of their own for simulators whose packages exclude everybody else's: made, found, listed.

A plugin says what such an interpreter consists of (:class:`Environment`); ``rlvla simulators install NAME`` makes it, with the
same rlvla and the same plugin in it; workers then start there by themselves. Nothing of it is imported here: owner and
worker speak through :mod:`rlvla.worker.protocol` alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlvla.errors import ConfigError, SimulatorError

if TYPE_CHECKING:
    from rlvla.plugin import Plugin

Variant = Literal["cpu", "gpu"]
RECORD = "rlvla-environment.json"
"""In an environment's folder: what it holds. Written last, so it marks a complete one."""
FORMAT = 1
VARIABLE = "RLVLA_SIMULATORS"
_OF_THIS_PYTHON = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"}
_TAIL = 15
"""Lines of pip's output that an error shows."""


@dataclass(frozen=True)
class Environment:
    """What an interpreter of its own consists of.

    Example:
        >>> Environment(python=">=3.11,<3.12", packages={"cpu": ("numpy==1.26.4",)}, bare=("robot-runtime==0.1.3",)).variants
        ('cpu',)
    """

    python: str
    """Versions of Python, as a specifier; rlvla's own (3.11 or later) come on top."""
    packages: Mapping[Variant, tuple[str, ...]]
    """Requirements of each variant, installed in one resolution with what rlvla's worker needs."""
    bare: tuple[str, ...] = ()
    """Requirements that are installed without their own."""
    over: bool = False
    """It lies over the interpreter that makes it: packages that are not in it, or not in versions that fit, are installed;
    all others are those of that interpreter, plugins and torch among them."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(self.packages)


@dataclass(frozen=True)
class Record:
    """What an environment holds."""

    simulator: str
    variant: str
    python: str
    """Version of its interpreter."""
    requirements: tuple[str, ...]
    """That it was made from."""
    own: dict[str, str]
    """Versions of rlvla and of the plugin's distribution."""
    packages: dict[str, str] = field(default_factory=dict)
    """Version of each distribution in it."""
    seconds: float = 0.0
    """That making it took."""
    over: str = ""
    """Folder of the interpreter that it lies over; empty: none."""
    format: int = FORMAT


def home() -> Path:
    """Return the folder that holds environments, one a simulator (``RLVLA_SIMULATORS``, else in the user's data folder)."""
    given = os.environ.get(VARIABLE)
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(given or Path(data, "rlvla", "simulators")).expanduser().absolute()


def folder(name: str) -> Path:
    """Return where the environment of a simulator is, or would be."""
    return home() / name


def runs_apart(plugin: Plugin[Any, Any], config: Any) -> bool:
    """Say whether a simulator's workers run in its own environment with these settings."""
    return plugin.environment is not None and (plugin.apart is None or plugin.apart(config))


def interpreter(plugin: Plugin[Any, Any], config: Any) -> str | None:
    """Return the interpreter of a simulator's workers with these settings; None: this one.

    Raises:
        SimulatorError: they run in an environment of their own, and it is not installed, or is an older one.
    """
    if not runs_apart(plugin, config):
        return None
    return installed(plugin)


def installed(plugin: Plugin[Any, Any]) -> str:
    """Return the interpreter of a simulator's environment.

    Raises:
        SimulatorError: it is not installed, or is an older one.
    """
    place = folder(plugin.name)
    install = f"rlvla simulators install {plugin.name}"
    found = read(place)
    if found is None:
        raise SimulatorError(
            f"{plugin.name} runs in an environment of its own{_some(plugin)}, which is not installed ({place}): {install}, or "
            "name an interpreter that has it: run.sim_python"
        )
    if changed := differences(plugin, found):
        raise SimulatorError(
            f"the environment of {plugin.name} in {place} is another one: {'; '.join(changed)}: {install}"
        )
    return str(place / "bin" / "python")


def _some(plugin: Plugin[Any, Any]) -> str:
    return "" if plugin.apart is None else " with these settings, since this interpreter lacks packages for them"


def variables() -> dict[str, str]:
    """Return this process's variables for another interpreter: without those that name packages of this one."""
    return {name: value for name, value in os.environ.items() if name not in _OF_THIS_PYTHON}


def read(place: Path) -> Record | None:
    """Return what a folder's environment holds; None: there is none, or it is not complete."""
    try:
        data = json.loads((place / RECORD).read_text())
        if data["format"] != FORMAT or not (place / "bin" / "python").exists():
            return None
        return Record(**{**data, "requirements": tuple(data["requirements"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def differences(plugin: Plugin[Any, Any], found: Record) -> list[str]:
    """Say what an environment holds that is not what the plugin asks for."""
    assert plugin.environment is not None
    said = [
        f"it holds {name} {found.own.get(name, 'in no version')}, this is {version}"
        for name, version in _own(plugin).items()
        if found.own.get(name) != version
    ]
    if found.over != (base := _base(plugin)):
        said.append(f"it lies over {found.over or 'nothing'}, this is {base or 'to lie over nothing'}")
    if found.variant not in plugin.environment.packages:
        said.append(f"its variant {found.variant!r} is no longer one of {', '.join(plugin.environment.variants)}")
    elif found.requirements != requirements(plugin, found.variant):  # type: ignore[arg-type]
        said.append("other packages are required")
    return said


def requirements(plugin: Plugin[Any, Any], variant: Variant) -> tuple[str, ...]:
    """Return what an environment is made from: the variant's packages, what rlvla's worker and the plugin need.

    One that lies over this interpreter finds other plugins there; asked for by name, they would bring requirements that the
    environment is to differ in.
    """
    assert plugin.environment is not None
    below = plugin.environment.over
    light = {
        text
        for name in _own(plugin)
        for text in metadata.requires(name) or []
        if (one := Requirement(text)).name not in _own(plugin)
        and not (below and one.name.startswith("rlvla-"))
        and (not one.marker or one.marker.evaluate({"extra": ""}))
    }
    return (*plugin.environment.packages[variant], *sorted(light), *plugin.environment.bare)


def _base(plugin: Plugin[Any, Any]) -> str:
    """Return the folder of packages that the environment lies over; empty: none."""
    assert plugin.environment is not None
    return sysconfig.get_paths()["purelib"] if plugin.environment.over else ""


def _own(plugin: Plugin[Any, Any]) -> dict[str, str]:
    return {name: metadata.version(name) for name in ("rlvla", plugin.distribution)}


# ---- making one -----------------------------------------------------------------------------------------------------


def install(
    plugin: Plugin[Any, Any],
    *,
    variant: Variant,
    directory: Path | None = None,
    python: str | None = None,
    say: Callable[[str], None],
) -> Record:
    """Make the environment of a simulator, or complete it; one that is complete is left as it is.

    Args:
        plugin: of the simulator.
        variant: of its packages.
        directory: where, with a link to it from :func:`folder`; None: there.
        python: interpreter to make it from; None: one that fits is looked for.
        say: told of progress, a line at a time.

    Raises:
        ConfigError: it has none, or the folder holds something else.
        SimulatorError: no Python that fits, or pip failed.
    """
    if plugin.environment is None:
        raise ConfigError(f"{plugin.name}: runs in this interpreter, there is nothing to install")
    if plugin.environment.over and python is not None:
        raise ConfigError(f"--python: the environment of {plugin.name} lies over this interpreter: leave it out")
    if variant not in plugin.environment.packages:
        raise ConfigError(f"--variant: got {variant!r}, {plugin.name} has {', '.join(plugin.environment.variants)}")
    place = (directory or folder(plugin.name)).expanduser().absolute()
    found = read(place)
    if found is not None and found.variant == variant and not differences(plugin, found):
        say(f"{plugin.name} ({variant}) is already in {place}")
    else:
        _refuse_foreign(place)
        with _held(place):
            found = _make(plugin, variant, place, python, say)
    _link(folder(plugin.name), place)
    return found


def _refuse_foreign(place: Path) -> None:
    if place.is_dir() and any(place.iterdir()) and not (place / "pyvenv.cfg").is_file():
        raise ConfigError(
            f"--dir: {place} holds something that is no virtual environment; give a folder that is to be made"
        )


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Keep other processes from making the same environment; a lock that a killed one held is free.

    Raises:
        ConfigError: another process makes it now, or the folder cannot be written.
    """
    file = place.with_name(f".{place.name}.installing")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"--dir: another install into {place} is under way: wait for it") from None
            yield
    except PermissionError as error:
        raise ConfigError(f"--dir: {place} cannot be written: {error}; give another folder") from error


def _make(
    plugin: Plugin[Any, Any], variant: Variant, place: Path, python: str | None, say: Callable[[str], None]
) -> Record:
    environment = plugin.environment
    assert environment is not None
    began = time.monotonic()
    own_python = place / "bin" / "python"
    (place / RECORD).unlink(missing_ok=True)
    if not _has_pip(own_python):
        base = sys.executable if environment.over else find_python(environment.python, python)
        say(f"making a virtual environment in {place} with {base}")
        _run([base, "-m", "venv", "--clear", str(place)], lambda line: None)
    if environment.over:
        _lay_over(place, _base(plugin))
    for half in place.glob("lib/python*/site-packages/~*"):  # what an interrupted pip has set aside
        shutil.rmtree(half, ignore_errors=True)
    wanted = requirements(plugin, variant)
    say(f"installing {len(wanted)} packages and what they need: some minutes")
    pip = [str(own_python), "-m", "pip", "--disable-pip-version-check", "install"]
    resolved = [one for one in wanted if one not in environment.bare]
    _run([*pip, *resolved], _steps(say))
    if environment.bare:
        _run([*pip, "--no-deps", *environment.bare], _steps(say))
    say(f"installing {' and '.join(_own(plugin))}")
    for name in _own(plugin):
        _run([*pip, "--no-deps", "--force-reinstall", *_source(name)], lambda line: None)
    told = _run([*pip[:-1], "list", "--format", "json"], lambda line: None)
    listed = json.loads(next(line for line in told.splitlines() if line.startswith("[")))  # warnings may come before
    version = _run([str(own_python), "-c", "import platform; print(platform.python_version())"], lambda line: None)
    record = Record(
        simulator=plugin.name,
        variant=variant,
        python=version.strip(),
        requirements=wanted,
        own=_own(plugin),
        packages={one["name"]: one["version"] for one in listed},
        seconds=round(time.monotonic() - began, 1),
        over=_base(plugin),
    )
    part = place / f"{RECORD}.part"
    part.write_text(json.dumps(vars(record), indent=1))
    os.replace(part, place / RECORD)
    say(f"{plugin.name} ({variant}) is in {place}: {size_of(place) / 2**20:.0f} MiB, {record.seconds:.0f} s")
    return record


def _lay_over(place: Path, base: str) -> None:
    """Let an environment find what it does not have itself in the packages of another interpreter, after its own."""
    own = next(place.glob("lib/python*/site-packages"))
    (own / "_rlvla_over.pth").write_text(f"import site; site.addsitedir({base!r})\n")


def _has_pip(python: Path) -> bool:
    """Say whether an interpreter stands and has pip: an interrupted install may leave it without."""
    if not python.exists():
        return False
    return not subprocess.run([python, "-m", "pip", "--version"], capture_output=True, env=variables()).returncode


def size_of(place: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(one.stat().st_size for one in place.rglob("*") if one.is_file() and not one.is_symlink())


def _link(link: Path, place: Path) -> None:
    """Let the simulator's folder lead to where its environment is."""
    if link == place or (link.exists() and link.samefile(place)):
        return
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise ConfigError(f"--dir: {link} already holds an environment: remove it, or leave out --dir")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(place, target_is_directory=True)


def _source(distribution: str) -> list[str]:
    """Return pip's words for the very distribution that is installed here: its folder or file, or its version (PEP 610)."""
    found = metadata.distribution(distribution)
    told = json.loads(found.read_text("direct_url.json") or "{}")
    address = urlparse(told.get("url", ""))
    if "vcs_info" in told:
        return [f"{distribution} @ {told['vcs_info']['vcs']}+{told['url']}@{told['vcs_info']['commit_id']}"]
    if address.scheme != "file":
        return [f"{distribution}=={found.version}"]
    path = unquote(address.path)
    return ["-e", path] if told.get("dir_info", {}).get("editable") else [path]


def find_python(wanted: str, given: str | None = None) -> str:
    """Return an interpreter whose version fits: the one given, this one, or ``pythonX.Y`` of the path.

    Raises:
        SimulatorError: there is none.
    """
    specifier = SpecifierSet(wanted) & SpecifierSet(">=3.11")
    names = [given] if given else [sys.executable, *(f"python3.{minor}" for minor in range(11, 20)), "python3"]
    seen = []
    for path in filter(None, map(shutil.which, names)):
        done = subprocess.run(
            [path, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        version = done.stdout.strip()
        if done.returncode == 0 and specifier.contains(version, prereleases=True):
            return path
        seen.append(f"{path} ({version or 'does not start'})")
    raise SimulatorError(
        f"wanted Python {specifier}, found {', '.join(seen) or f'no {given}'}: install one, and name it with --python PATH"
    )


def _steps(say: Callable[[str], None]) -> Callable[[str], None]:
    """Pass on the lines of pip that tell how far it is."""

    def heard(line: str) -> None:
        if line.startswith(("Collecting ", "Building ", "Installing collected")):
            say(f"  {line[:100].rstrip()}")

    return heard


def _run(command: Sequence[str], heard: Callable[[str], None]) -> str:
    """Run a command, listen to its lines, and return them.

    Raises:
        SimulatorError: it failed; its last lines are told.
    """
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables(),
        ) as process:
            assert process.stdout is not None
            lines = list(_heard(process.stdout, heard))
    except OSError as error:
        raise SimulatorError(f"{command[0]} cannot be started: {error}") from error
    if process.returncode != 0:
        told = "".join(lines[-_TAIL:]).strip()
        raise SimulatorError(f"`{' '.join(command)}` ended with status {process.returncode}:\n{told}")
    return "".join(lines)


def _heard(lines: Iterator[str], heard: Callable[[str], None]) -> Iterator[str]:
    for line in lines:
        heard(line)
        yield line
