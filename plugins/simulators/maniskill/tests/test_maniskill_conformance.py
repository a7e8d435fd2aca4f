"""The contract that every rlvla simulator keeps, with the three cubes in pictures and in state.

Pictures cost 30 to 60 ms each in software, so those suites have two rows and short episodes.
"""

from __future__ import annotations

from rlvla.testing import SimulatorConformance

SHORT = {"backend": "cpu", "max_episode_steps": 6, "num_envs": 2}


class TestPushCubeState(SimulatorConformance):
    name = "maniskill"
    config = {"task": "PushCube-v1", "observation": "state", **SHORT}


class TestPickCubeState(SimulatorConformance):
    name = "maniskill"
    config = {"task": "PickCube-v1", "observation": "state", "control_mode": "pd_joint_delta_pos", **SHORT}


class TestStackCubeState(SimulatorConformance):
    name = "maniskill"
    config = {"task": "StackCube-v1", "observation": "state", "control_mode": "pd_ee_target_delta_pose", **SHORT}


class TestPushCubePictures(SimulatorConformance):
    name = "maniskill"
    rows = 2
    config = {"task": "PushCube-v1", "image_size": 32, **SHORT}


class TestPickCubePictures(SimulatorConformance):
    name = "maniskill"
    rows = 2
    config = {"task": "PickCube-v1", "image_size": 32, "observation": "rgb+state", "wording": "seen", **SHORT}


class TestStackCubePictures(SimulatorConformance):
    name = "maniskill"
    rows = 2
    config = {"task": "StackCube-v1", "image_size": 32, "cameras": ("hand_camera",), **SHORT}
