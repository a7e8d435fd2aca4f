"""A CPU Vulkan driver for Debian 12, whose own (Mesa 22.3) SAPIEN refuses: ``python -m rlvla_sim_maniskill.cpu_vulkan``.

Takes lavapipe of Mesa 25 out of a bookworm-backports package and puts that one library into a folder of the user's. Nothing is
installed or upgraded, and root is not needed; what the library links to is in stock packages (``STOCK``). Workers find the
folder by themselves (:mod:`rlvla_sim_maniskill.vulkan`). A second run does nothing, and neither does one on a machine with
another system (Debian 13's own Mesa is new enough) or with an NVIDIA GPU.

Only the standard library is used, and the file runs by its path, before anything is installed.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STOCK = ("libvulkan1", "mesa-vulkan-drivers", "libx11-6")
"""Packages of Debian 12 that bring every library lavapipe links to."""
_PACKAGE, _SUITE = "mesa-vulkan-drivers", "bookworm-backports"
_LIBRARY = "libvulkan_lvp.so"
_TIMEOUT_S = 600


class Unavailable(Exception):
    """The driver cannot be brought; the message says why and what to do."""


def folder() -> Path:
    """Return where the driver is put."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "rlvla" / "cpu-vulkan"


def manifest() -> Path | None:
    """Return the driver's manifest (what ``VK_ICD_FILENAMES`` takes) if the driver is there."""
    path = folder() / "icd.json"
    return path if path.is_file() and (folder() / _LIBRARY).is_file() else None


def not_wanted(gpu_too: bool = False) -> str:
    """Return why this machine needs none; empty: it does (``gpu_too``: also where a GPU is there)."""
    release = _release()
    if (release.get("ID"), release.get("VERSION_ID")) != ("debian", "12"):
        return (
            f"this is {release.get('PRETTY_NAME', platform.platform())}, not Debian 12: its own Vulkan drivers are used"
        )
    if platform.machine() != "x86_64":
        return f"sapien has no packages for {platform.machine()}"
    if Path("/proc/driver/nvidia/gpus").is_dir() and not gpu_too:
        return "this machine has an NVIDIA GPU: its driver is used"
    return ""


def bring() -> Path:
    """Download and unpack the driver; returns its manifest.

    Raises:
        Unavailable: no Debian mirror, no network, or a package without the library.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for one in ("lists/partial", "cache/archives/partial", "parts", "tree"):
            (scratch / one).mkdir(parents=True)
        sources = scratch / "sources.list"
        sources.write_text(_sources())
        options = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": scratch / "parts",
            "Dir::State::Lists": scratch / "lists",
            "Dir::Cache": scratch / "cache",
            **({"APT::Sandbox::User": "root"} if os.getuid() == 0 else {}),  # the scratch folder is nobody else's
        }
        apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
        _run([*apt, "update"], scratch)
        _run([*apt, "download", _PACKAGE], scratch)
        (package,) = scratch.glob("*.deb")
        _run(["dpkg", "-x", str(package), str(scratch / "tree")], scratch)
        return _place(scratch / "tree", package.name)


def _place(tree: Path, package: str) -> Path:
    libraries = list(tree.rglob(_LIBRARY))
    manifests = glob.glob(str(tree / "usr/share/vulkan/icd.d/lvp_icd*.json"))
    if not libraries or not manifests:
        raise Unavailable(f"{package} holds no {_LIBRARY} with its manifest")
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(libraries[0], place / f"{_LIBRARY}.part")
    os.replace(place / f"{_LIBRARY}.part", place / _LIBRARY)
    about = json.loads(Path(manifests[0]).read_text())
    about["ICD"]["library_path"] = str(place / _LIBRARY)
    (place / "package.txt").write_text(package + "\n")
    part = place / "icd.json.part"
    part.write_text(json.dumps(about, indent=1))
    os.replace(part, place / "icd.json")  # last: with it, the driver counts as there
    return place / "icd.json"


def missing_libraries() -> list[str]:
    """Return the libraries that the unpacked driver links to and the system does not have."""
    done = subprocess.run(["ldd", str(folder() / _LIBRARY)], capture_output=True, text=True, check=False)
    return [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]


def _release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _sources() -> str:
    """Return a source list of backports, at the mirror that this machine's own list names."""
    known = _run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"], None
    )
    mirrors = [line.split()[0] for line in known.splitlines() if line.split()[1:] == ["bookworm", "main"]]
    if not mirrors:
        raise Unavailable("no source 'bookworm main' in /etc/apt: there is no mirror to take backports from")
    keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    signed = f"[signed-by={keys}] " if keys.is_file() else ""
    return f"deb {signed}{mirrors[0]} {_SUITE} main\n"


def _run(command: list[str], place: Path | None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
        raise Unavailable(f"`{command[0]} {command[-1]}` failed: {said}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rlvla_sim_maniskill.cpu_vulkan", description=__doc__)
    parser.add_argument("--anyway", action="store_true", help="although this machine has an NVIDIA GPU")
    if reason := not_wanted(gpu_too=parser.parse_args().anyway):
        sys.stdout.write(f"no CPU Vulkan driver unpacked: {reason}\n")
        return 0
    there = manifest()
    try:
        path = there or bring()
    except Unavailable as error:
        sys.stderr.write(f"no CPU Vulkan driver: {error}\n")
        return 1
    if missing := missing_libraries():
        sys.stderr.write(f"the CPU Vulkan driver lacks {', '.join(missing)}: apt-get install {' '.join(STOCK)}\n")
        return 1
    sys.stdout.write(f"CPU Vulkan driver {'is' if there else 'unpacked'} at {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
