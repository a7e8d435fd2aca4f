"""What belongs to a pair of a model and a simulator, whoever trains it and how: the model's options that say which parts,
pictures and conventions its checkpoint has, in the simulator's order. Recipes import them."""

from typing import Any

_POSE = ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
_WIDOWX = {
    "cameras": ["primary"],
    "action_unit": "si",
    "rotation": "euler_xyz",
    "gripper_range": [0.0, 1.0],
    "gripper_closes_at": "low",
}
"""A WidowX arm seen by one camera: deltas in metres and radians about x, y and z, 1 opens the gripper."""


def openvla_oft_maniskill() -> dict[str, Any]:
    """Return OpenVLA's (and OFT's) side of ManiSkill's pick-and-place tasks: Bridge's statistics."""
    return {"unnorm_key": "bridge_orig", **_WIDOWX}


def gr00t_libero() -> dict[str, Any]:
    """Return GR00T's side of LIBERO: the robot's tag and its row in the table of the code that the checkpoint was tuned with,
    parts in LIBERO's order, pictures turned by 180 degrees as LIBERO's renderer has them (left and right exchanged), normalised
    deltas, 1 opens the gripper."""
    return {
        "embodiment_tag": "libero_franka",
        "embodiment_table": "rlinf",
        "cameras": ["primary", "wrist"],
        "mirrored": True,
        "state_keys": _POSE,
        "action_keys": _POSE,
        "normalisation": "min_max",
        "action_unit": "normalised",
        "rotation": "axis_angle",
        "gripper_range": [0.0, 1.0],
        "gripper_closes_at": "low",
        "instruction": "plain",
        "padding": "fixed",
    }


def gr00t_maniskill() -> dict[str, Any]:
    """Return GR00T's side of ManiSkill's pick-and-place tasks: zeros in place of the state."""
    return {
        "embodiment_tag": "maniskill_widowx",
        "embodiment_table": "rlinf",
        "state": "zeros",
        "pad_to": 320,
        **_WIDOWX,
    }


def gr00t_robotwin() -> dict[str, Any]:
    """Return GR00T's side of RoboTwin: six absolute joint positions and a gripper for each of two arms, 14 numbers for state
    and action alike, seen from the head and both wrists; grippers go continuously from 0 (closed) to 1.

    No checkpoint of this pair is published: tag and names of parts are for you to match, row 31 is the one that the public code
    gives to a robot of one's own.
    """
    arms = ["left_arm", "left_gripper", "right_arm", "right_gripper"]
    return {
        "embodiment_tag": "new_embodiment",
        "embodiment_table": "nvidia",
        "cameras": ["primary", "wrist_left", "wrist_right"],
        "state_keys": arms,
        "action_keys": arms,
        "gripper_range": [0.0, 1.0],
        "gripper_closes_at": "low",
        "gripper_binary": False,
        "pad_to": 880,  # three pictures are 768 of them
    }


def openvla_oft_robotwin(task: str) -> dict[str, Any]:
    """Return OpenVLA-OFT's side of RoboTwin: a task's own statistics, the head's camera, absolute joints in radians, and grippers
    that 0 closes, anywhere in between."""
    return {
        "unnorm_key": task,
        "cameras": ["primary"],
        "gripper_range": [0.0, 1.0],
        "gripper_closes_at": "low",
        "gripper_binary": False,
    }
