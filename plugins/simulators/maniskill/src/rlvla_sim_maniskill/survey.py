"""Measures task headers on the installed ManiSkill; see :mod:`rlvla_sim_maniskill.header`."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rlvla.devices import visible_gpus
from rlvla_sim_maniskill import cpu_vulkan, header, startup

log = logging.getLogger(__name__)
_GRASPS = {"is_src_obj_grasped", "consecutive_grasp", "success"}
"""What a task has to tell to be rewarded for grasping and placing."""

_UNDECLARED = {
    "AnymalC": ("anymal_c",),
    "ArchitecTHOR": ("AI2THOR",),
    "OpenCabinetDoor": ("partnet_mobility_cabinet",),
    "PickCubeWidowXAI": ("widowxai",),
    "Put": ("bridge_v2_real2sim", "widowx250s"),
    "ReplicaCAD": ("ReplicaCAD", "ReplicaCADRearrange"),
    "SceneManipulation": ("ReplicaCAD",),
    "StackGreenCube": ("bridge_v2_real2sim", "widowx250s"),
    "UnitreeGo2": ("unitree_go2",),
    "UnitreeH1": ("unitree_h1",),
}
"""What tasks need that do not say (all of) it themselves, by how their name begins."""


_BACKENDS: dict[Literal["cpu", "gpu"], str] = {"cpu": "sapien_cpu", "gpu": "sapien_cuda"}


def _renderer() -> Literal["cpu", "gpu"]:
    """Return what draws: the CPU, unless this machine has a GPU and no driver for the CPU was unpacked."""
    return "gpu" if visible_gpus() and cpu_vulkan.manifest() is None else "cpu"


def survey(names: list[str], module: str = "") -> dict[str, Any]:
    """Return the header file's content for tasks, each made, reset and looked at on the CPU.

    Args:
        names: of registered tasks.
        module: that registers them; empty: ManiSkill itself.

    Raises:
        SimulatorError: a task is unknown, or cannot be made.
    """
    startup.import_maniskill(_renderer())
    actions: dict[str, Any] = {}
    found = {name: _look(name, module, actions) for name in names}
    return {"format": header.FORMAT, **startup.versions(), "tasks": found, "actions": actions}


def survey_all() -> dict[str, Any]:
    """Return the package's table: every task that ManiSkill registers, and what the others wait for."""
    from rlvla.errors import SimulatorError

    startup.import_maniskill(_renderer())
    from mani_skill.utils.registration import REGISTERED_ENVS

    made, assets, packages = [], {}, {}
    for name, spec in sorted(REGISTERED_ENVS.items()):
        try:
            startup.make(name, obs_mode="none", sim_backend="physx_cpu", render_backend=_BACKENDS[_renderer()]).close()
            made.append(name)
        except SimulatorError as error:
            log.warning("%s", error)
            if found := re.search(r"pip install (\S+)|No module named '([^'.]+)", str(error)):
                packages[name] = [found[1] or found[2]]
            elif "download" in str(error):
                declared = tuple(spec.asset_download_ids)
                assets[name] = list(
                    next((ids for start, ids in _UNDECLARED.items() if name.startswith(start)), declared)
                )
    return {**survey(made), "needing_assets": assets, "needing_packages": packages}


def _look(name: str, module: str, actions: dict[str, Any]) -> dict[str, Any]:
    from mani_skill.envs.utils.observations import parse_obs_mode_to_struct
    from mani_skill.utils.registration import REGISTERED_ENVS

    env = startup.make(
        name, module=module, obs_mode="none", sim_backend="physx_cpu", render_backend=_BACKENDS[_renderer()]
    )
    info = env.get_info()
    seen = {}
    for mode in ("state", "rgb"):
        env._obs_mode, env.obs_mode_struct = mode, parse_obs_mode_to_struct(mode)
        seen[mode] = env._get_obs_state_dict(info)
    about = {
        "max_episode_steps": int(REGISTERED_ENVS[name].max_episode_steps or 1000),
        "control_hz": float(env.control_freq),
        "rewards": [*(["grasp_and_place"] if set(info) >= _GRASPS else []), *env.SUPPORTED_REWARD_MODES],
        "cameras": [_camera(env, uid, config) for uid, config in env._sensor_configs.items()],
        "proprioception": _state_parts(env, seen["rgb"]),
        "state": _state_parts(env, seen["state"]),
        "control_modes": _control_modes(env, actions),
    }
    if hasattr(env, "get_language_instruction"):
        about["instruction"] = env.get_language_instruction()[0]
    if module:
        about["module"] = module
    env.close()
    return about


def _camera(env: Any, name: str, config: Any) -> dict[str, Any]:
    return {
        "name": name,
        "height": config.height,
        "width": config.width,
        "mounted": name in env._agent_sensor_configs,
    }


# ---- state ----------------------------------------------------------------------------------------------------------


def _state_parts(env: Any, observation: Mapping[str, Any], prefix: str = "") -> list[dict[str, Any]]:
    """Name the pieces of a flattened observation, in its order."""
    parts: list[dict[str, Any]] = []
    for key, value in observation.items():
        name = f"{prefix}{key}"
        if key == "controller":  # of the control mode, and put behind the rest
            continue
        if isinstance(value, Mapping):
            parts += _state_parts(env, value, f"{name}/")
        else:
            parts += _leaf(env, name, int(np.prod(value.shape[1:], dtype=np.int64)))
    return parts


def _leaf(env: Any, name: str, size: int) -> list[dict[str, Any]]:
    kind = name.rpartition("/")[2]
    if kind in ("qpos", "qvel"):
        return _joints(env, name, size, kind == "qvel")
    if size == 7 and (kind.endswith("pose") or kind.startswith("pose")):
        rotation = {"name": f"{name}/rotation", "size": 4, "rotation": "quaternion_wxyz"}
        return [{"name": f"{name}/position", "size": 3, "unit": "m"}, rotation]
    if size == 0:
        return []
    lengths = size == 3 and kind.endswith(("pos", "position"))
    return [{"name": name, "size": size, **({"unit": "m"} if lengths else {})}]


def _joints(env: Any, name: str, size: int, velocity: bool) -> list[dict[str, Any]]:
    """Split joint positions (velocities) where their unit changes."""
    agent = env.agent.agents_dict[name.split("/")[1]] if name.count("/") == 2 else env.agent
    kinds = [joint.type[0] if isinstance(joint.type, list) else joint.type for joint in agent.robot.active_joints]
    parts: list[dict[str, Any]] = []
    for kind in kinds[:size]:
        unit = ("m" if "prismatic" in str(kind) else "rad") + ("/s" if velocity else "")
        if parts and parts[-1]["unit"] == unit:
            parts[-1]["size"] += 1
        else:
            parts.append({"name": f"{name}/{len(parts)}", "size": 1, "unit": unit, "frame": "joint"})
    assert sum(part["size"] for part in parts) == size, f"{name}: {len(kinds)} joints for {size} numbers"
    return [{**parts[0], "name": name}] if len(parts) == 1 else parts


# ---- actions --------------------------------------------------------------------------------------------------------


def _control_modes(env: Any, actions: dict[str, Any]) -> dict[str, str]:
    """Return control mode to the key of its parts in ``actions``."""
    found = {}
    agents = getattr(env.agent, "agents", None) or [env.agent]
    default = agents[0].control_mode
    modes = [
        mode for mode in agents[0].supported_control_modes if all(mode in one.supported_control_modes for one in agents)
    ]
    for mode in sorted(modes, key=lambda mode: mode != default):
        parts, memory = [], []
        for number, agent in enumerate(agents):
            agent.set_control_mode(mode)
            agent.controller.reset()
            prefix = f"{number}/" if len(agents) > 1 else ""
            parts += [{**part, "name": prefix + part["name"]} for part in _parts(agent.controller)]
            memory += _state_parts(env, agent.controller.get_state(), f"{prefix}controller/")
        if any(not math.isfinite(part[end]) for part in parts for end in ("low", "high")):
            parts = []
        key = f"{'+'.join(agent.uid for agent in agents)}/{mode}"
        about = {"parts": parts, "state": memory}
        assert actions.setdefault(key, about) == about, f"{key} differs from task to task"
        found[mode] = key
    return found


def _parts(controller: Any) -> list[dict[str, Any]]:
    inner = getattr(controller, "controllers", None)
    if inner is None:
        return _part("joints", controller)
    return [part for name, one in inner.items() for part in _part(name, one)]


def _part(name: str, controller: Any) -> list[dict[str, Any]]:
    """Describe one controller's numbers in the vocabulary of :mod:`rlvla.specs`."""
    classes = {one.__name__ for one in type(controller).__mro__}
    config, space = controller.config, controller.single_action_space
    size = space.shape[0]
    if size == 0:
        return []
    normalised = bool(getattr(config, "normalize_action", False))
    delta = bool(getattr(config, "use_delta", False))
    kind = "delta" if delta else "absolute"
    if "PDEEPosController" in classes:
        position = _piece("position", 3, kind, config.pos_upper, normalised, space, 0, "m", "base")
        if "PDEEPoseController" not in classes:
            return [position]
        # ManiSkill multiplies by rot_lower, so that 1 turns by -0.1 rad where the range is -0.1 to 0.1.
        turn = _piece("rotation", 3, kind, config.rot_lower, normalised, space, 3, "rad", "base")
        return [position, {**turn, "rotation": "euler_xyz"}]
    if "PDJointPosMimicController" in classes and name == "gripper":
        gripper = _piece("gripper", size, "gripper", None, normalised, space, 0, "m", "joint")
        return [{**gripper, "closes_at": "low"}]
    if "PDJointPosVelController" in classes:
        half = size // 2
        scale = config.upper if normalised else None
        return [
            *_runs(f"{name}_position", kind, scale, normalised, space, 0, half),
            *_runs(f"{name}_velocity", "velocity", None, normalised, space, half, size),
        ]
    if "PDJointVelController" in classes:
        return _runs(f"{name}_velocity", "velocity", config.upper, normalised, space, 0, size)
    return _runs(name, kind, config.upper, normalised, space, 0, size)


def _runs(name: str, kind: str, scale: Any, normalised: bool, space: Any, first: int, end: int) -> list[dict[str, Any]]:
    """Describe numbers ``first`` to ``end``: one part for each run with the same bounds."""
    bounds = [(float(space.low[i]), float(space.high[i])) for i in range(first, end)]
    starts = [i for i in range(len(bounds)) if i == 0 or bounds[i] != bounds[i - 1]]
    parts = []
    for number, start in enumerate(starts):
        size = (starts[number + 1] if number + 1 < len(starts) else len(bounds)) - start
        own = f"{name}_{number}" if len(starts) > 1 else name
        parts.append(_piece(own, size, kind, scale, normalised, space, first + start, "rad", "joint"))
    return parts


def _piece(
    name: str, size: int, kind: str, scale: Any, normalised: bool, space: Any, first: int, unit: str, frame: str
) -> dict[str, Any]:
    part = {
        "name": name,
        "size": size,
        "kind": kind,
        "low": round(float(space.low[first]), 6),
        "high": round(float(space.high[first]), 6),
        "unit": "normalised" if normalised else unit,
        "frame": frame,
    }
    if normalised and np.isscalar(scale):
        part["scale"] = float(scale)  # type: ignore[arg-type]
    return part
