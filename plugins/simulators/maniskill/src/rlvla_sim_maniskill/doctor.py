"""What ``rlvla doctor`` looks at before a ManiSkill run: packages, Vulkan, PhysX's GPU half, the task, the licence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from rlvla.devices import visible_gpus
from rlvla.errors import ConfigError
from rlvla.specs import Check
from rlvla_sim_maniskill import ManiSkillConfig, backends, describe, plate25, startup, vulkan

_PROBE_TIMEOUT_S = 120
_SOFTWARE = ("llvmpipe", "swiftshader", "lavapipe")

# The task in a process of its own, with no input: upstream asks there whether it may download.
_MAKE = """
import json, sys
from rlvla.errors import RlvlaError
from rlvla_sim_maniskill import ManiSkillConfig
from rlvla_sim_maniskill.simulator import ManiSkillSimulator
try:
    ManiSkillSimulator(ManiSkillConfig(**{**json.loads(sys.argv[1]), "observation": "state", "cameras": None, "image_size": None}), 1)
except RlvlaError as error:
    sys.exit(str(error))
import os
os._exit(0)
"""


def checks(config: ManiSkillConfig) -> Iterator[Check]:
    """Yield what was found, cheapest first; the task is made only where everything before it is in order."""
    try:
        spec = describe(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Check("settings", False, problem, "correct the option named first")
        return
    yield Check("settings", True, f"{config.task}, {spec.max_episode_steps} steps an episode, physics: {spec.device}")
    yield Check("licence", True, "ManiSkill's assets are CC BY-NC 4.0: not for commercial use")
    yield _physics(config)
    problems = startup.package_problems()
    for problem in problems:
        yield Check("packages", False, problem, "see there")
    if problems:
        return
    yield Check("packages", True, ", ".join(f"{name} {version}" for name, version in startup.versions().items()))
    problems = startup.plate25_problems(config.assets) if config.task in plate25.VARIANTS else []
    for problem in problems:
        yield Check("assets", False, problem, "see there")
    if problems:
        return
    drawn = _vulkan(config)
    yield drawn
    if drawn.ok or drawn.warning:
        yield _task(config)


def _physics(config: ManiSkillConfig) -> Check:
    lacking = backends.missing()
    if not lacking:
        return Check("physics on the GPU", True, f"{backends.library()}")
    return Check(
        "physics on the GPU",
        config.backend == "cpu",
        f"not here, physics runs on the CPU: {lacking}",
        "put the file there, or take backend: cpu",
        warning=config.backend == "auto",
    )


def _vulkan(config: ManiSkillConfig) -> Check:
    """Draw 8x8 pixels in a process of its own."""
    name = "Vulkan"
    command = [sys.executable, "-P", "-m", "rlvla_sim_maniskill.probe", config.renderer]
    hint = vulkan.hint(config.renderer)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(name, False, f"nothing drawn after {_PROBE_TIMEOUT_S} s: the driver hangs", hint)
    if done.returncode != 0:
        words = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
        return Check(name, False, f"SAPIEN finds no usable Vulkan device ({words}); state needs one too", hint)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    if not told["level"] > 0:
        return Check(name, False, f"{told['renderer']} draws black", hint)
    if any(word in told["renderer"].lower() for word in _SOFTWARE):
        found = f"drawing on the CPU, 30 to 60 ms a picture, the first one of a process 10 to 20 s: {told['renderer']}"
        why = "renderer: auto or gpu draws on the GPU" if visible_gpus() else ""
        return Check(name, not visible_gpus(), found, why, warning=True)
    return Check(name, True, f"{told['renderer']}; the first picture of a process takes some seconds (shaders)")


def _task(config: ManiSkillConfig) -> Check:
    name = "task"
    options = {"task": config.task, "task_file": config.task_file, "renderer": config.renderer, "backend": "cpu"}
    options |= {"objects": config.objects, "assets": config.assets}
    command = [sys.executable, "-P", "-c", _MAKE, json.dumps(options)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(name, False, f"{config.task} was not made in {_PROBE_TIMEOUT_S} s", "look at this machine's load")
    if done.returncode != 0:
        words = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
        return Check(name, False, words, "see there")
    return Check(name, True, f"{config.task} stands")
