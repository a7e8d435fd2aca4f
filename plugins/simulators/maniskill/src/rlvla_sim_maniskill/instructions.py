"""What a policy is told: the task's own words where it has any, else templates. Light.

Each task has wordings that a policy is trained with (``seen``) and others that are held out (``unseen``); which of them an
episode gets follows from its seed, so a group hears one and the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from rlvla.seeds import derive
from rlvla_sim_maniskill.header import TaskHeader

Wording = Literal["own", "seen", "unseen"]

GOALS: Mapping[str, tuple[str, str]] = {
    "DrawTriangle-v1": ("draw the outlined triangle", "trace the triangle with the pen"),
    "FMBAssembly1Easy-v1": ("assemble the parts on the board", "put the parts together on the board"),
    "LiftPegUpright-v1": ("stand the peg upright", "lift the peg until it stands on its end"),
    "MS-AntRun-v1": ("run forward", "move ahead fast"),
    "MS-AntWalk-v1": ("walk forward", "move ahead"),
    "MS-CartpoleBalance-v1": ("balance the pole", "keep the pole upright"),
    "MS-CartpoleSwingUp-v1": ("swing the pole up", "bring the pole upright and keep it there"),
    "MS-HopperHop-v1": ("hop forward", "move ahead by hopping"),
    "MS-HopperStand-v1": ("stand up", "get up and stay upright"),
    "MS-HumanoidRun-v1": ("run forward", "move ahead fast"),
    "MS-HumanoidStand-v1": ("stand up", "get up and stay upright"),
    "MS-HumanoidWalk-v1": ("walk forward", "move ahead"),
    "PegInsertionSide-v1": ("insert the peg into the hole in the box", "push the peg sideways into the box's hole"),
    "PickCube-v1": ("pick up the cube and hold it at the goal", "lift the cube to the goal position"),
    "PickCubeSO100-v1": ("pick up the cube and hold it at the goal", "lift the cube to the goal position"),
    "PlaceSphere-v1": ("place the sphere in the bin", "put the ball into the bin"),
    "PlugCharger-v1": ("plug the charger into the receptacle", "put the charger's plug into the wall socket"),
    "PokeCube-v1": ("poke the cube with the peg", "push the cube to the goal with the tip of the peg"),
    "PullCube-v1": ("pull the cube to the target", "drag the cube back onto the target"),
    "PullCubeTool-v1": ("pull the cube closer with the tool", "use the hooked tool to drag the cube nearer"),
    "PushCube-v1": ("push the cube to the target", "slide the cube forward onto the target"),
    "PushT-v1": ("push the T onto its outline", "move the T-shaped block to the marked place"),
    "RollBall-v1": ("roll the ball to the goal", "make the ball roll into the goal area"),
    "RotateSingleObjectInHandLevel0-v1": ("rotate the object in the hand", "turn the held object around"),
    "RotateSingleObjectInHandLevel1-v1": ("rotate the object in the hand", "turn the held object around"),
    "SO100GraspCube-v1": ("grasp the cube and lift it", "take hold of the cube and raise it"),
    "StackCube-v1": ("stack the red cube on the green cube", "put the red block on top of the green one"),
    "StackPyramid-v1": ("build a pyramid of the three cubes", "set two cubes side by side and the third on top"),
    "TableTopFreeDraw-v1": ("draw on the table", "use the pen on the table"),
    "TwoRobotPickCube-v1": (
        "pass the cube to the other arm and bring it to the goal",
        "hand over the cube to reach the goal",
    ),
    "TwoRobotStackCube-v1": (
        "stack the cubes at the target with both arms",
        "use both arms to pile the cubes on the target",
    ),
    "UnitreeG1PlaceAppleInBowl-v1": ("place the apple in the bowl", "put the apple into the bowl"),
    "UnitreeG1Stand-v1": ("stay standing", "keep your balance"),
    "UnitreeG1TransportBox-v1": ("carry the box to the other table", "move the box over to the other table"),
    **{f"RotateValveLevel{level}-v1": ("turn the valve", "rotate the valve's handle") for level in range(5)},
    **{
        f"TriFingerRotateCubeLevel{level}-v1": (
            "rotate the cube to the goal pose",
            "turn the cube until it matches the goal",
        )
        for level in range(5)
    },
}
"""Task to what is to be done: first as it is said in training, then as nobody said it."""

SEEN = ("{}", "please {}", "your task is to {}", "{} now")
UNSEEN = ("could you {}?", "the robot should {}", "try to {}", "I would like you to {}")


def goals(header: TaskHeader) -> tuple[str, str]:
    """Return what is to be done, in the words of training and in others."""
    if header.instruction:
        return header.instruction, header.instruction
    if header.name in GOALS:
        seen, unseen = GOALS[header.name]
        return seen, unseen
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", re.sub(r"-v\d+$", "", header.name)).replace("_", " ").lower()
    return words, words


def wordings(header: TaskHeader, wording: Wording, own: str | None = None) -> tuple[str, ...]:
    """Return all instructions that a task is given in.

    Args:
        header: of the task.
        wording: which kind.
        own: what the task itself says of an episode; None: what is known of the task.
    """
    seen, unseen = (own, own) if own is not None else goals(header)
    if wording == "own":
        return (seen,)
    if wording == "seen":
        return tuple(template.format(seen) for template in SEEN)
    return tuple(template.format(unseen) for template in UNSEEN)


def choose(some: tuple[str, ...], seed: int) -> str:
    """Return the instruction of an episode."""
    return some[derive(seed, "instruction") % len(some)]
