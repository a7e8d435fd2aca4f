"""One RoboTwin environment, driven through its task class: resets that end, chunks that are counted, pictures.

The runtime's own vector environment is not used: it swallows every error and tries the next seed for ever. Letters: H actions
in a chunk, A action dimensions (14).
"""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlvla.errors import SimulatorError
from rlvla.seeds import derive
from rlvla_sim_robotwin import RoboTwinConfig, assets, seeds, startup

log = logging.getLogger(__name__)

NAMES = {"head": "head_camera", "left_wrist": "left_camera", "right_wrist": "right_camera"}
"""The runtime's names of cameras."""
ARMS = ("left", "right")
_MOST_POINTS = 500
"""Waypoints of an arm in a chunk, at most; and (``_STILL``) where its way cannot be timed (``gen_sparse_reward_data``)."""
_STILL = 50
_CLEAR_EVERY = 8
"""Resets between two that empty SAPIEN's caches of meshes and textures."""


def task_arguments(config: RoboTwinConfig, place: Path) -> dict[str, Any]:
    """Return what the runtime's ``setup_demo`` takes besides the seed."""
    import yaml

    folders = [assets.embodiment_folder(place, name) for name in config.embodiment]
    robots = [yaml.safe_load((folder / "config.yml").read_text()) for folder in folders]
    camera = {
        "head_camera_type": config.head_camera,
        "wrist_camera_type": config.wrist_cameras,
        "collect_head_camera": True,  # the order of random numbers, and so every scene, depends on it
        "collect_wrist_camera": any(name != "head" for name in config.cameras),
    }
    return {
        "task_name": config.task,
        "planner_backend": config.planner,
        "embodiment_name": "_".join(config.embodiment),
        "left_robot_file": f"{folders[0]}/",
        "right_robot_file": f"{folders[-1]}/",
        "left_embodiment_config": robots[0],
        "right_embodiment_config": robots[-1],
        "dual_arm_embodied": len(folders) == 1,
        "embodiment_dis": config.embodiment_distance,
        "camera": camera,
        "data_type": {"rgb": True, "qpos": True},
        "domain_randomization": randomization(config),
        "eval_mode": config.textures == "unseen",
        "render_freq": 0,
        "save_freq": None,
        "save_path": "",
    }


def randomization(config: RoboTwinConfig) -> dict[str, Any]:
    """Return the runtime's ``domain_randomization``."""
    return {
        "random_background": config.random_background,
        "cluttered_table": config.cluttered_table,
        "clean_background_rate": config.clean_background_rate,
        "random_head_camera_dis": config.random_head_camera_dis,
        "random_table_height": config.random_table_height,
        "random_light": config.random_light,
        "crazy_random_light_rate": config.crazy_random_light_rate,
    }


@dataclass
class Way:
    """How far the arms have come in a chunk."""

    actions: int
    """H."""
    points: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ARMS, _STILL))
    """Waypoints that each arm has to pass."""
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ARMS, 0))

    @property
    def begun(self) -> int:
        """Actions that have begun: those whose part of the way an arm has entered."""
        part = max(self.passed[arm] / self.points[arm] for arm in ARMS)
        return min(self.actions, max(1, math.ceil(part * self.actions - 1e-9)))

    @property
    def done(self) -> int:
        """Actions that both arms have left behind."""
        part = min(self.passed[arm] / self.points[arm] for arm in ARMS)
        return min(self.actions, math.floor(part * self.actions + 1e-9))


@dataclass
class Played:
    """What came of a chunk."""

    executed: int
    """Actions, from the chunk's first on."""
    success: bool
    frames: list[np.ndarray]
    """One for each executed action, where they were asked for."""


class Episode:
    """An environment and the episode in it.

    Args:
        config: settings.
        task_class: the task's class.
    """

    def __init__(self, config: RoboTwinConfig, task_class: type[Any]) -> None:
        self._config = config
        self._task_class = task_class
        place = assets.root(config)
        assert place is not None, "assets were looked at before"
        self._arguments = task_arguments(config, place)
        self._clutter = copy.deepcopy(task_class.get_cluttered_table.__defaults__)
        self._task: Any = None
        self._resets = 0
        self.instruction = ""
        self.seed = 0
        """That the scene was really made from."""

    def reset(self, seed: int) -> None:
        """Start an episode, from the first seed at or after ``seed`` whose objects come to rest.

        Raises:
            SimulatorError: none of ``seed_attempts`` does, or the scene cannot be built.
        """
        from robotwin.envs.utils.create_actor import UnStableError

        attempts = [(seed + number) % seeds.LIMIT for number in range(self._config.seed_attempts)]
        last = ""
        for one in attempts:
            self._leave()
            try:
                self._begin(one)
            except UnStableError as error:
                last = str(error)
                continue
            if one != seed:
                log.warning("seed %d: objects do not come to rest, seed %d is played instead (%s)", seed, one, last)
            self.seed = one
            return
        raise SimulatorError(
            f"{self._config.task}: no stable scene in {len(attempts)} attempts, seeds {attempts[0]} to {attempts[-1]}: {last}; "
            "raise seed_attempts, or pass seeds_path"
        )

    def _begin(self, seed: int) -> None:
        self._task = task = self._task_class()
        # the runtime moves these lists by the table's place, each time anew
        self._task_class.get_cluttered_table.__defaults__ = copy.deepcopy(self._clutter)
        with startup.printed() as words:
            try:
                task.setup_demo(now_ep_num=seed, seed=seed, is_test=True, **copy.deepcopy(self._arguments))
                information = task.get_info()
            except Exception as error:
                if type(error).__name__ == "UnStableError":
                    raise
                raise self._broken(f"the scene of seed {seed} cannot be built", error, startup.tail(words)) from error
        task.step_lim = sys.maxsize  # steps are counted by who steps
        self.instruction = self._worded(information, seed)
        self._keep_cameras(task.cameras)

    def _broken(self, what: str, error: Exception, words: str) -> SimulatorError:
        """Return the error for what the runtime cannot do: most often a file of the assets is not what it should be."""
        folders = ", ".join(assets.objects_of(self._config.task)) or "none by name"
        return SimulatorError(
            f"{self._config.task}: {what}: {type(error).__name__}: {error}{words}; look at assets/objects (this task's: {folders}) "
            f"and at assets/embodiments ({', '.join(dict.fromkeys(map(str, self._config.embodiment)))}): a file may be missing or "
            "damaged"
        )

    def _worded(self, information: Mapping[str, str], seed: int) -> str:
        from robotwin.description import generate_episode_descriptions

        with startup.printed() as words:
            told = generate_episode_descriptions(self._config.task, [information], 1, seed)
        if not told or not told[0][self._config.instructions]:
            raise SimulatorError(
                f"{self._config.task}: no {self._config.instructions!r} instruction fits {dict(information)}{startup.tail(words)}"
            )
        return str(told[0][self._config.instructions][0])

    def _keep_cameras(self, cameras: Any) -> None:
        """Drop cameras that nobody looks at, once the scene, whose random numbers they share, stands."""
        wanted = {NAMES[name] for name in self._config.cameras}
        kept = [place for place, name in enumerate(cameras.static_camera_name) if name in wanted]
        for name in ("static_camera_list", "static_camera_name", "static_camera_config"):
            setattr(cameras, name, [getattr(cameras, name)[place] for place in kept])

    def play(self, actions_HA: np.ndarray, before: int, film: bool) -> Played:
        """Execute a chunk until it is over or the task is solved.

        Args:
            actions_HA: joint angles and grippers, float32.
            before: env steps of this episode so far; the noise that the runtime adds to arms which stand still is drawn from
                it and the seed.
            film: return frames of the first camera.
        """
        np.random.seed(derive(self.seed, "robotwin", before) % seeds.LIMIT)
        way = Way(len(actions_HA))
        frames: list[np.ndarray] = []
        task = self._task
        undo = _watched(task, way, (lambda: frames.append(self._frame())) if film else (lambda: None))
        try:
            *_, told = task.gen_sparse_reward_data(np.asarray(actions_HA, np.float64))
        finally:
            undo()
        success = bool(told["success"])
        executed = way.begun if success else len(actions_HA)
        if film:
            frames = frames[: executed - 1]
            frames += [self._frame()] * (executed - len(frames))
        return Played(executed, success, frames)

    def _frame(self) -> np.ndarray:
        """Draw the first camera, of a scene that is already up to date."""
        cameras, name = self._task.cameras, NAMES[self._config.cameras[0]]
        camera = (
            cameras.static_camera_list[cameras.static_camera_name.index(name)]
            if name in cameras.static_camera_name
            else getattr(cameras, name)
        )
        camera.take_picture()
        return _bytes(camera.get_picture("Color"))

    def observe(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return pictures by camera, and the state."""
        try:
            told = self._task.get_obs()
        except Exception as error:
            raise self._broken("its pictures cannot be drawn", error, "") from error
        pictures = {name: told["observation"][NAMES[name]]["rgb"] for name in self._config.cameras}
        return pictures, np.asarray(told["joint_action"]["vector"], np.float32)

    def _leave(self) -> None:
        if self._task is not None:
            self._resets += 1
            self._task.close_env(clear_cache=self._resets % _CLEAR_EVERY == 0)
            self._task = None

    def close(self) -> None:
        """Free the scene."""
        self._leave()


def _bytes(colour: np.ndarray) -> np.ndarray:
    return (np.asarray(colour)[..., :3] * 255).clip(0, 255).astype(np.uint8)


def _watched(task: Any, way: Way, passed: Callable[[], None]) -> Callable[[], None]:
    """Note how far a chunk is; returns what undoes it.

    Args:
        task: whose robot is about to move.
        way: filled in.
        passed: called after the physics step in which an action is left behind.
    """
    robot = task.robot
    planners = {"left": robot.left_mplib_planner, "right": robot.right_mplib_planner}
    timed = {arm: planner.TOPP for arm, planner in planners.items()}
    set_gripper, check_success = robot.set_gripper, task.check_success

    def timing(arm: str) -> Any:
        def topp(*words: Any, **named: Any) -> Any:
            try:
                result = timed[arm](*words, **named)
            except Exception as error:
                log.warning("the %s arm stands still for a chunk: its way cannot be timed: %s", arm, error)
                raise
            way.points[arm] = min(len(result[1]), _MOST_POINTS) or _STILL
            return result

        return topp

    def gripper(value: Any, arm: str) -> Any:
        way.passed[arm] += 1
        return set_gripper(value, arm)

    noticed = 0

    def check() -> Any:
        nonlocal noticed
        while noticed < way.done:
            noticed += 1
            passed()
        return check_success()

    for arm, planner in planners.items():
        planner.TOPP = timing(arm)
    robot.set_gripper, task.check_success = gripper, check

    def undo() -> None:
        for arm, planner in planners.items():
            planner.TOPP = timed[arm]
        del robot.set_gripper, task.check_success

    return undo
