"""What ``rlvla doctor`` looks at before a RoboTwin run: settings, packages, assets, planner, Vulkan, ray tracing, seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from rlvla.errors import ConfigError
from rlvla.specs import Check
from rlvla_sim_robotwin import RoboTwinConfig, assets, describe, seeds, startup, vulkan

_PROBE_TIMEOUT_S = 170
_INSTALL = "rlvla simulators install robotwin"


def checks(config: RoboTwinConfig) -> Iterator[Check]:
    """Yield what was found, cheapest first; nothing is drawn where packages are wrong."""
    try:
        spec = describe(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Check("settings", False, problem, "correct the option named first")
        return
    yield Check("settings", True, f"{config.task}, {spec.max_episode_steps} steps an episode")
    packages = startup.package_problems()
    yield from _each("packages", packages, f"{startup.RUNTIME} {startup.VERSION}, sapien {startup.version('sapien')}")
    yield from _each("assets", assets.problems(config), f"{assets.root(config)}, objects of the task, robots, textures")
    yield from _each("planner", startup.planner_problems(config), config.planner)
    if not packages:
        yield from _drawing(config)
    yield _seeds(config)


def _each(name: str, problems: list[str], found: str) -> Iterator[Check]:
    for problem in problems:
        yield Check(name, False, problem, "see there")
    if not problems:
        yield Check(name, True, found)


def _drawing(config: RoboTwinConfig) -> Iterator[Check]:
    """Draw 8x8 pixels with the rasteriser, and where that works and is wanted, with rays."""
    told, words = _probe("default")
    if told is None or not told["level"] > 0:
        yield Check("Vulkan", False, f"{vulkan.HINT} ({words or 'it draws black'})", _INSTALL)
        return
    yield Check("Vulkan", True, told["renderer"])
    if config.shader == "default":
        why = "pictures differ from the benchmark: for tests only; it is recorded in the results"
        yield Check("ray tracing", False, "shader: default draws with the rasteriser", why, warning=True)
        return
    told, words = (None, "no NVIDIA GPU") if vulkan.software() else _probe("ray-tracing")
    if told is None or not told["level"] > 0:
        yield Check("ray tracing", False, f"{vulkan.NO_RAY_TRACING} ({words or 'it draws black'})", "shader: default")
    else:
        yield Check("ray tracing", True, told["renderer"])


def _probe(shader: str) -> tuple[dict[str, Any] | None, str]:
    """Return what was drawn on, or nothing and why."""
    command = [sys.executable, "-P", "-m", "rlvla_sim_robotwin.probe", shader]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"nothing drawn after {_PROBE_TIMEOUT_S} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return None, (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
    told: dict[str, Any] = json.loads(lines[-1])
    return told, ""


def _seeds(config: RoboTwinConfig) -> Check:
    if config.seeds_path is None:
        told = "no seeds file: seeds may be unsolvable; pass seeds_path"
        return Check(
            "seeds", False, told, "train_seeds.json and eval_seeds.json of RLinf's RoboTwin recipes", warning=True
        )
    return Check("seeds", True, f"{len(seeds.read(config.seeds_path, config.task))} for {config.task}")
