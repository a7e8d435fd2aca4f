"""Gymnasium on both sides: any environment as a simulator, any simulator as a vector environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from rlvla.arrays import empty_result
from rlvla.configs import config as config_class
from rlvla.errors import ConfigError, SimulatorError
from rlvla.plugin import Plugin, load_object
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import ActionPart, Camera, SimulatorSpec, Start, StatePart, TaskSpec

_LOCAL: dict[str, Callable[[], Any]] = {}
"""Factories that only this process can call, by the name that their config holds."""


@config_class
class GymConfig:
    """Any Gymnasium environment with a continuous or discrete action, and pictures by its observation or ``render()``."""

    env: str = ""
    """Environment id (``"module:Name-v0"`` imports the module first), or ``"module:function"`` that returns one."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    num_envs: Annotated[int, Ge(1)] = 8
    """Environments in all workers together."""
    instruction: str = "do the task"
    """What the policy is told."""
    picture: str = "render"
    """Key of a uint8 ``[height, width, 3]`` picture in a dictionary observation; ``observation``: the observation is the
    picture; ``render``: it is rendered once a chunk."""
    state: str | None = None
    """Key of the state vector in a dictionary observation; None: the observation itself where it is a vector."""
    success: Literal["info", "terminated", "never"] = "info"
    """What solves the task: ``info["success"]`` or ``info["is_success"]``, any termination, or nothing."""
    max_episode_steps: Annotated[int, Ge(1)] | None = None
    """Env steps after which an episode is truncated; None: the environment's own limit, or 1000."""
    control_hz: float = 20.0
    """Frames a second of videos."""


def from_gym(env: str | Callable[[], Any], **options: Any) -> Any:
    """Return a simulator made of a Gymnasium environment, for ``build(sim=...)``.

    Example:
        >>> run = rlvla.build(sim=rlvla.from_gym("CartPole-v1", num_envs=16, success="never"), model="tiny", algo="ppo")

    Args:
        env: an id, or a function without arguments that returns an environment. One that can be imported
            (``module:function``) runs in worker processes; a lambda or a function of a notebook runs in this process.
        options: of :class:`GymConfig`.

    Raises:
        ConfigError: the environment cannot be made, or has spaces that no policy can use.
    """
    if not isinstance(env, str):
        name = f"{env.__module__}:{env.__qualname__}"
        if env.__module__ == "__main__" or "<" in env.__qualname__ or "." in env.__qualname__:
            name = f"local:{len(_LOCAL)}"
            _LOCAL[name] = env
        env = name
    return GymConfig(env=env, **options)


def make_env(config: GymConfig) -> Any:
    """Return one environment.

    Raises:
        ConfigError: there is none, with Gymnasium's own words.
    """
    import gymnasium

    if config.env.startswith("local:"):
        if config.env not in _LOCAL:
            raise ConfigError(
                f"sim.env: {config.env} was a function of another process; give from_gym an importable one"
            )
        return _LOCAL[config.env]()
    mode: dict[str, Any] = {"render_mode": "rgb_array"} if config.picture == "render" else {}
    try:
        if ":" in config.env and config.env not in gymnasium.registry:
            try:
                made = load_object(config.env)
            except AttributeError:
                pass  # "module:Name-v0": Gymnasium imports the module
            else:
                return made(**config.kwargs)
        return gymnasium.make(config.env, **mode, **config.kwargs)
    except Exception as error:
        raise ConfigError(f"sim.env: {config.env!r} cannot be made: {type(error).__name__}: {error}") from error


def describe(config: GymConfig) -> SimulatorSpec:
    """Return what the environment offers; makes one to look at its spaces."""
    if not config.env:
        raise ConfigError("sim.env: missing; wanted an environment id such as 'CartPole-v1'")
    if not config.instruction:
        raise ConfigError("sim.instruction: empty; wanted what the policy is to do")
    seen = _look(config)
    return SimulatorSpec(
        cameras=(Camera("front", *seen.picture),),
        state=(StatePart("state", seen.state),),
        action=seen.action,
        control_hz=config.control_hz,
        max_episode_steps=config.max_episode_steps or seen.limit,
        tasks=(TaskSpec(config.env, config.instruction),),
        max_instruction_bytes=len(config.instruction.encode()),
        in_process=config.env.startswith("local:"),
    )


@dataclass(frozen=True)
class _Seen:
    """What one look at an environment tells."""

    picture: tuple[int, int]
    state: int
    action: tuple[ActionPart, ...]
    limit: int


_SEEN: dict[str, _Seen] = {}


def _look(config: GymConfig) -> _Seen:
    """Make an environment and look at its spaces, once for each choice of environment and keys."""
    key = repr((config.env, config.kwargs, config.picture, config.state))
    if key not in _SEEN:
        try:
            env = make_env(config)
            observation, _ = env.reset(seed=0)
            _SEEN[key] = _Seen(
                picture=_picture(config, env, observation).shape[:2],
                state=len(_state(config, observation)),
                action=_action_parts(env.action_space),
                limit=getattr(env.spec, "max_episode_steps", None) or 1000,
            )
            env.close()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"sim.env: {config.env!r} cannot be used (picture {config.picture!r}, state {config.state!r}): "
                f"{type(error).__name__}: {error}"
            ) from error
    return _SEEN[key]


def _action_parts(space: Any) -> tuple[ActionPart, ...]:
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return (ActionPart("choice", 1, "absolute", float(space.start), float(space.start + space.n - 1), "index"),)
    if (
        isinstance(space, gymnasium.spaces.Box)
        and len(space.shape) == 1
        and np.isfinite([*space.low, *space.high]).all()
    ):
        return tuple(
            ActionPart(f"action_{number}", 1, "absolute", float(low), float(high), "")
            for number, (low, high) in enumerate(zip(space.low, space.high, strict=True))
        )
    raise ConfigError(f"sim.env: its action space is {space}; wanted a bounded Box of one axis, or Discrete")


def _picture(config: GymConfig, env: Any, observation: Any) -> np.ndarray:
    if config.picture == "render":
        picture = env.render()
    elif config.picture == "observation":
        picture = observation
    elif isinstance(observation, Mapping) and config.picture in observation:
        picture = observation[config.picture]
    else:
        there = ", ".join(observation) if isinstance(observation, Mapping) else "it is no dictionary"
        raise ConfigError(f"sim.picture: no {config.picture!r} in the observation ({there})")
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ConfigError(f"sim.picture: got {picture.dtype} {picture.shape}, wanted uint8 (height, width, 3)")
    return picture


def _state(config: GymConfig, observation: Any) -> np.ndarray:
    if config.state is not None:
        observation = observation[config.state]
    elif isinstance(observation, Mapping) or np.ndim(observation) != 1:
        return np.zeros(0, np.float32)
    return np.asarray(observation, np.float32).ravel()


class GymSimulator(Simulator):
    """N Gymnasium environments, stepped one after another."""

    def __init__(self, config: GymConfig, rows: int) -> None:
        self.config = config
        self.spec = describe(config)
        self._envs = [make_env(config) for _ in range(rows)]
        self._discrete = self.spec.action[0].unit == "index"
        self._steps = [0] * rows
        self._ended = [True] * rows
        camera = self.spec.cameras[0]
        self._pictures = np.zeros((rows, camera.height, camera.width, 3), np.uint8)
        self._states = np.zeros((rows, self.spec.state_dim), np.float32)
        self._recorded: set[int] = set()

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        for row, seed, start in zip(rows, seeds, starts, strict=True):
            if start != Start():
                raise SimulatorError(f"a Gymnasium environment has one task and no stored initial states, got {start}")
            observation, _ = self._envs[row].reset(seed=seed % (1 << 31))
            self._steps[row], self._ended[row] = 0, False
            self._show(row, observation)
        return self._observe(rows)

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        rows, horizon = chunk_NHA.shape[:2]
        result = empty_result(rows, horizon, video=bool(self._recorded))
        for row in np.flatnonzero(active_N):
            self._step_row(int(row), chunk_NHA[row], result)
        result.observation = self._observe(range(rows))
        return result

    def _step_row(self, row: int, chunk_HA: np.ndarray, result: ChunkResult) -> None:
        if self._ended[row]:
            raise SimulatorError(f"row {row} was stepped after its episode ended: reset it first")
        for action, values_A in enumerate(chunk_HA):
            observation, reward, terminated, truncated, info = self._envs[row].step(self._native(values_A))
            self._steps[row] += 1
            truncated = (truncated or self._steps[row] >= self.spec.max_episode_steps) and not terminated
            result.valid[row, action] = True
            result.reward[row, action] = reward
            result.terminated[row, action] = terminated
            result.truncated[row, action] = truncated
            result.success[row] |= self._solved(terminated, info)
            if row in self._recorded:
                assert result.frames is not None
                result.frames[row].append(_picture(self.config, self._envs[row], observation))
            if terminated or truncated:
                self._ended[row] = True
                break
        self._show(row, observation)

    def _native(self, values_A: np.ndarray) -> Any:
        if self._discrete:
            part = self.spec.action[0]
            return int(np.clip(np.rint(values_A[0]), part.low, part.high))
        space = self._envs[0].action_space
        return np.clip(values_A, space.low, space.high).astype(space.dtype)

    def _solved(self, terminated: bool, info: Mapping[str, Any]) -> bool:
        if self.config.success == "terminated":
            return terminated
        return self.config.success == "info" and bool(info.get("success", info.get("is_success", False)))

    def _show(self, row: int, observation: Any) -> None:
        self._pictures[row] = _picture(self.config, self._envs[row], observation)
        self._states[row] = _state(self.config, observation)

    def _observe(self, rows: Sequence[int]) -> Observation:
        picked = list(rows)
        return Observation(
            {"front": self._pictures[picked]}, self._states[picked], [self.config.instruction] * len(picked)
        )

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = set(rows)

    def versions(self) -> dict[str, str]:
        import gymnasium

        return {"gymnasium": gymnasium.__version__}

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs = []


plugin: Plugin[GymConfig, GymSimulator] = Plugin(config=GymConfig, target="rlvla.gym:GymSimulator", describe=describe)


def as_vector_env(simulator: Simulator, rows: int, *, seed: int = 0, tasks: Sequence[int] | None = None) -> Any:
    """Return a ``gymnasium.vector.VectorEnv`` of a simulator: one action a step, autoreset at the next step.

    Example:
        >>> envs = rlvla.as_vector_env(TabletopSimulator(TabletopConfig(), rows=4), rows=4)
        >>> observations, info = envs.reset(seed=0)

    Observations are dictionaries of the pictures by camera, ``state``, and ``instruction`` (UTF-8 bytes);
    ``info["success"]`` tells which rows solved their task.
    """
    from rlvla.gym_vector import SimulatorVectorEnv

    return SimulatorVectorEnv(simulator, rows, seed=seed, tasks=tasks)
