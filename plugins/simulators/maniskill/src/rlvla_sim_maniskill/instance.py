"""One ManiSkill environment of n rows, stepped by whole chunks: n = 1 on a CPU, as many as a slot has on a GPU.

ManiSkill's own ``step`` draws every camera at each action and counts a reward of rows that are over. Here an action runs the
same parts of it (``_step_action``, ``evaluate``, the reward), nothing is drawn before a chunk's end, and a row that is over, or
was not asked for, ends where it was. On the CPU it is not stepped; the GPU steps all, so it is put back.

Everything runs in torch's inference mode, which takes an eighth or more off ManiSkill's many small operations.

Letters: n rows, H actions in a chunk, A action dimensions. Everything is a torch tensor on the environment's device.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from rlvla.errors import SimulatorError
from rlvla_sim_maniskill import (
    ManiSkillConfig,
    cameras_of,
    control_mode_of,
    header_of,
    plate25,
    reward_of,
    startup,
    vulkan,
)

_NOTHING = "none"
"""Observation mode in which resets draw nothing; what is observed is asked for at the end of a chunk."""


@dataclass
class Played:
    """What a chunk did. Entries of actions that were not executed are zero."""

    reward: Tensor
    """float32 ``[n, H]``."""
    terminated: Tensor
    """bool ``[n, H]``."""
    truncated: Tensor
    """bool ``[n, H]``."""
    valid: Tensor
    """bool ``[n, H]``."""
    success: Tensor
    """bool ``[n]``: solved after some executed action."""
    success_at_end: Tensor
    """bool ``[n]``: solved after the last executed action."""
    frames: list[list[Tensor]]
    """For each row the pictures of its executed actions, where video is on."""


class Instance:
    """An environment.

    Args:
        config: of the simulator.
        env: of n rows, from :func:`made`.
    """

    def __init__(self, config: ManiSkillConfig, env: Any) -> None:
        task = header_of(config)
        self.env = env
        self.rows: int = env.num_envs
        self._cameras = [camera.name for camera in cameras_of(config, task)]
        self._limit = config.max_episode_steps or task.max_episode_steps
        self._goes_on = config.ignore_terminations
        self._observation = config.observation
        self._fresh = self.rows == 1 and config.fresh_scenes
        self._grasp_and_place = reward_of(config, task) == "grasp_and_place"
        self._paints = _paints(env)
        self._info: Mapping[str, Any] = {}
        """Of the last step or reset."""
        self.device: torch.device = env.device
        self._parts = _action_parts(env)
        self._steps = torch.zeros(self.rows, dtype=torch.int64, device=self.device)
        self._worth = torch.zeros(self.rows, device=self.device)
        """Of what was reached so far, where grasping and placing are rewarded."""
        self.recorded: set[int] = set()
        """Rows that frames are kept of."""

    # ---- resets -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def reset(self, row: int, seed: int) -> None:
        """Start an episode in one row; what it starts from follows from the seed alone.

        ManiSkill draws a whole batch from one generator, so that a row's scene would depend on who is reset with it:
        therefore rows come one by one. A scene is built anew, where that is wanted: over ManiSkill's reset PhysX remembers
        contacts, and episodes of equal seeds and actions part where things touch.
        """
        others = [other for other in range(self.rows) if other != row]
        controllers = _cloned(self.env.agent.get_controller_state()) if others else {}
        rows = torch.tensor([row], device=self.device)
        options = {"reconfigure": True} if self._fresh else {"env_idx": rows} if others else {}
        with startup.unwarned():
            _, self._info = self.env.reset(seed=[seed % 2**32] * self.rows, options=options)
        if others and controllers:  # ManiSkill resets the controllers of all rows
            now = _cloned(self.env.agent.get_controller_state())
            self.env.agent.set_controller_state(_merged(controllers, now, rows))
        self._steps[row] = 0
        self._worth[row] = 0

    def instructions(self) -> list[str] | None:
        """Return the task's own words for each row; None: it has none."""
        said = getattr(self.env, "get_language_instruction", None)
        return None if said is None else list(said())

    # ---- chunks -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, chunk_nHA: Tensor, active_n: Tensor) -> Played:
        """Execute a chunk in the active rows, each until its episode ends."""
        with startup.unwarned():
            return self._run(chunk_nHA, active_n)

    def _run(self, chunk_nHA: Tensor, active_n: Tensor) -> Played:
        rows, horizon = chunk_nHA.shape[:2]
        played = _nothing(rows, horizon, self.device)
        running_n = active_n.clone()
        frozen = _Frozen(self, ~active_n)
        for action in range(horizon):
            if not bool(running_n.any()):
                break
            reward_n, success_n, over_n = self._act(chunk_nHA[:, action] * running_n[:, None], running_n)
            self._steps += running_n
            cut_n = (self._steps >= self._limit) & ~over_n
            played.valid[:, action] = running_n
            played.reward[:, action] = torch.where(running_n, reward_n, 0.0)
            played.terminated[:, action] = running_n & over_n
            played.truncated[:, action] = running_n & cut_n
            played.success |= running_n & success_n
            played.success_at_end = torch.where(running_n, success_n, played.success_at_end)
            self._film(running_n, played.frames)
            ended_n = running_n & (over_n | cut_n)
            running_n = running_n & ~ended_n
            frozen.add(ended_n)
        frozen.put_back()
        return played

    def _act(self, action_nA: Tensor, running_n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step physics once; returns reward, success, and whether the episode ended by itself."""
        env = self.env
        done = env._step_action(self._action(action_nA))
        env._elapsed_steps += running_n
        info = self._info = env.get_info()
        reward_n = self._reward(done, info, running_n)
        none_n = torch.zeros(self.rows, dtype=torch.bool, device=self.device)
        success_n, fail_n = (info.get(name, none_n).bool() for name in ("success", "fail"))
        over_n = none_n if self._goes_on else success_n | fail_n
        return reward_n, success_n, over_n

    def _reward(self, action: Any, info: Mapping[str, Any], running_n: Tensor) -> Tensor:
        """Return float32 ``[n]``: ManiSkill's own, or what grasping and placing became worth more than before."""
        if not self._grasp_and_place:
            return self.env.get_reward(obs=_Late(self), action=action, info=info).float()  # type: ignore[no-any-return]
        before_n = self._worth
        self._worth = torch.where(running_n, grasp_and_place(info), before_n)
        return self._worth - before_n

    def _action(self, action_nA: Tensor) -> Any:
        """Return an action as the environment takes it: robots that act together have a dictionary."""
        if self._parts is None:
            return action_nA
        pieces = torch.split(action_nA, list(self._parts.values()), 1)
        return dict(zip(self._parts, pieces, strict=True))

    def _film(self, running_n: Tensor, frames: list[list[Tensor]]) -> None:
        wanted = [row for row in self.recorded if bool(running_n[row])]
        if wanted:
            pictures = self.picture()
            for row in wanted:
                frames[row].append(pictures[row].cpu())

    # ---- what is seen -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def images(self) -> dict[str, Tensor]:
        """Draw the configured cameras: uint8 ``[n, height, width, 3]`` each, where physics runs (a GPU may draw for a CPU)."""
        if self._cameras and self._paints:
            return self._painted()
        return {name: self._draw(name) for name in self._cameras} if self._prepare() else {}

    def _painted(self) -> dict[str, Tensor]:
        """Return pictures of a task that paints over what its cameras see."""
        with _words_of_the_renderer():
            seen = self.env._get_obs_sensor_data()
        return {name: seen[name]["rgb"].to(self.device) for name in self._cameras}

    def _prepare(self) -> bool:
        """Hide what a policy is not to see, and show the scene's present state to the renderer."""
        if not self._cameras:
            return False
        for body in self.env._hidden_objects:
            body.hide_visual()
        with _words_of_the_renderer():
            self.env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        return True

    def _draw(self, name: str) -> Tensor:
        sensor = self.env.scene.sensors[name]
        with _words_of_the_renderer():
            sensor.capture()
            drawn = sensor.get_obs(rgb=True, depth=False, position=False, segmentation=False)
        return drawn["rgb"].to(self.device)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def picture(self) -> Tensor:
        """Return what a video shows: the first camera, or where a policy has none, the one that ManiSkill films with."""
        if self._cameras and self._paints:
            return self._painted()[self._cameras[0]]
        if self._prepare():
            return self._draw(self._cameras[0])
        with _words_of_the_renderer():
            picture = self.env.render_rgb_array()
        if picture is None:
            raise SimulatorError("there is nothing to film with: the task has no camera, or renderer is 'none'")
        return picture.to(self.device)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def state(self) -> Tensor:
        """Return float32 ``[n, S]``: the numbers of the observation, flattened in ManiSkill's order."""
        parts = _leaves(self.numbers())
        return torch.cat([part.reshape(self.rows, -1).float() for part in parts], 1)

    def numbers(self) -> dict[str, Any]:
        """Return what the observation holds besides pictures, by name."""
        # What a step or reset found stays true of a single row, and some tasks count how often they are asked.
        info = self._info if self.rows == 1 else self.env.get_info()
        self.env._obs_mode = self._observation  # some tasks ask for its name
        try:
            return self.env._get_obs_state_dict(info)  # type: ignore[no-any-return]
        finally:
            self.env._obs_mode = _NOTHING

    def close(self) -> None:
        """Free the scene, and what it holds of a GPU."""
        self.env.close()
        gc.collect()


class _Frozen:
    """Rows that are not to be stepped, where physics steps all of them."""

    def __init__(self, instance: Instance, rows_n: Tensor) -> None:
        self._instance = instance
        self._rows_n = torch.zeros_like(rows_n)
        self._state: Any = None
        self._noted: dict[str, Any] = {}
        if instance.rows > 1:
            self.add(rows_n)

    def add(self, rows_n: Tensor) -> None:
        """From now on these rows stay as they are."""
        if self._instance.rows == 1 or not bool(rows_n.any()):
            return
        now = _cloned(self._instance.env.get_state_dict())
        noted = _cloned(_noted(self._instance.env))
        self._state = now if self._state is None else _merged(self._state, now, rows_n)
        self._noted = _merged(self._noted, noted, rows_n) if self._noted else noted
        self._rows_n = self._rows_n | rows_n

    def put_back(self) -> None:
        """Bring them back to where they were; the others stay where they are."""
        if self._state is None or not bool(self._rows_n.any()):
            return
        env = self._instance.env
        rows = torch.nonzero(self._rows_n).flatten()
        env.set_state_dict(_taken({key: one for key, one in self._state.items() if key != "controller"}, rows), rows)
        if controllers := self._state.get("controller"):  # part of what ManiSkill gives, not of what it sets
            agent = env.agent
            agent.set_controller_state(_merged(_cloned(agent.get_controller_state()), controllers, rows))
        _write(_noted(env), self._noted, rows)


class _Late(Mapping[str, Any]):
    """An observation for rewards that look at one; none of ManiSkill's does, so it is made when asked for."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    @cached_property
    def _made(self) -> Mapping[str, Any]:
        return self._instance.numbers()

    def __getitem__(self, key: str) -> Any:
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@contextmanager
def _words_of_the_renderer() -> Iterator[None]:
    """Turn what Vulkan says into what to do."""
    try:
        yield
    except RuntimeError as error:
        raise startup.failed("", error) from error


@torch.inference_mode()
def made(config: ManiSkillConfig, rows: int, physics: Literal["cpu", "gpu"]) -> Any:
    """Return ManiSkill's environment; more than one row on a GPU only.

    Raises:
        SimulatorError: it cannot be made; why, and what to do.
    """
    startup.import_maniskill(config.renderer)
    from mani_skill.envs.utils.observations import parse_obs_mode_to_struct

    env = startup.make(config.task, module=header_of(config).module, **options_of(config, rows, physics))
    # where it sees no GPU, ManiSkill draws on the CPU and only warns
    if vulkan.chosen(config.renderer) == "gpu" and env.backend.render_backend != "sapien_cuda":
        env.close()
        raise SimulatorError(
            f"renderer: got {config.renderer!r}, but SAPIEN sees no GPU that draws: {vulkan.hint('gpu')}"
        )
    # those that paint over a picture have to know what is where in it
    env.obs_mode_struct = parse_obs_mode_to_struct(config.observation + ("+segmentation" if _paints(env) else ""))
    return env


def options_of(config: ManiSkillConfig, rows: int, physics: Literal["cpu", "gpu"]) -> dict[str, Any]:
    """Return what ManiSkill's environment is made with."""
    task = header_of(config)
    reward = reward_of(config, task)
    draws = vulkan.chosen(config.renderer)
    return {
        "num_envs": rows,
        "obs_mode": _NOTHING,
        "control_mode": control_mode_of(config, task),
        "reward_mode": "none" if reward == "grasp_and_place" else reward,
        "sim_backend": {"cpu": "physx_cpu", "gpu": "physx_cuda"}[physics],
        "render_backend": {"cpu": "sapien_cpu", "gpu": "sapien_cuda", "none": "none"}[draws],
        "sensor_configs": {"height": config.image_size, "width": config.image_size} if config.image_size else {},
        **_of_plate25(config),
    }


def _of_plate25(config: ManiSkillConfig) -> dict[str, Any]:
    """Return what the tasks of :mod:`rlvla_sim_maniskill.plate25` are made with, after looking for their files.

    Raises:
        SimulatorError: files are missing; which, and what brings them.
    """
    if config.task not in plate25.VARIANTS:
        return {}
    if problems := startup.plate25_problems(config.assets):
        raise SimulatorError("\n".join(problems))
    return {"objects": config.objects, "assets": config.assets}


def _paints(env: Any) -> bool:
    """Return whether a task changes its pictures after they were drawn."""
    from mani_skill.envs.sapien_env import BaseEnv

    own = getattr(type(env), "_get_obs_sensor_data", None)
    return own is not None and own is not BaseEnv._get_obs_sensor_data


def grasp_and_place(info: Mapping[str, Any]) -> Tensor:
    """Return what has been reached, float32 ``[n]``: 0.1 for having held the object, 0.1 for having held it five steps in a
    row, 1 while it lies in its place and was held before. Source: RLinf, ``rlinf/envs/maniskill/maniskill_env.py``."""
    held_n, longer_n, solved_n = (info[name] for name in ("is_src_obj_grasped", "consecutive_grasp", "success"))
    return 0.1 * held_n.float() + 0.1 * longer_n.float() + (solved_n & held_n).float()


def _action_parts(env: Any) -> dict[str, int] | None:
    """Return the width of each robot's action where several act; None: there is one."""
    spaces = getattr(env.single_action_space, "spaces", None)
    return None if spaces is None else {name: one.shape[0] for name, one in spaces.items()}


def _nothing(rows: int, horizon: int, device: torch.device) -> Played:
    flags = [torch.zeros(rows, horizon, dtype=torch.bool, device=device) for _ in range(3)]
    success = [torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(2)]
    return Played(torch.zeros(rows, horizon, device=device), *flags, *success, [[] for _ in range(rows)])


def _leaves(tree: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors of a tree in its order, but those of controllers last: they belong to the control mode."""
    found: list[Tensor] = []
    last: list[Tensor] = []
    for name, value in tree.items():
        some = _leaves(value) if isinstance(value, Mapping) else [value]
        if name == "controller":
            last += some
        else:
            found += some
    return found + last


def _cloned(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _cloned(value) for name, value in tree.items()}
    return tree.clone()


def _noted(env: Any) -> dict[str, Any]:
    """Return what a task keeps of each row in Python (how far something was turned, whether it was held), by name."""

    def of_rows(value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == env.num_envs

    found: dict[str, Any] = {}
    for name, value in vars(env).items():
        if of_rows(value):
            found[name] = value
        elif isinstance(value, dict) and (some := {key: one for key, one in value.items() if of_rows(one)}):
            found[name] = some
    return found


def _write(tree: Mapping[str, Any], values: Mapping[str, Any], rows: Tensor) -> None:
    """Write some rows of a tree in place, where there are values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _write(tree.get(name, {}), value, rows)
        elif name in tree:
            tree[name][rows] = value[rows]


def _taken(tree: Any, rows: Tensor) -> Any:
    """Return some rows of a tree of ``[n, ...]`` tensors."""
    if isinstance(tree, Mapping):
        return {name: _taken(value, rows) for name, value in tree.items()}
    return tree[rows]


def _merged(one: Any, other: Any, rows: Tensor) -> Any:
    """Return a tree of ``[n, ...]`` tensors with some rows (numbers, or flags) of another one."""
    if isinstance(one, Mapping):
        return {name: _merged(value, other.get(name, value), rows) for name, value in one.items()}
    merged = one.clone()
    merged[rows] = other[rows]
    return merged
