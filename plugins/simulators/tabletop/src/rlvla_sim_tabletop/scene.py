"""What both backends share: the compiled scene, where an episode starts, what counts as moved. Metres everywhere.

Letters: B blocks; T tries and P pairs of a placement; Q numbers of ``qpos`` (hand x, y, z; x, y, angle of each block).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import mujoco
import numpy as np

from rlvla.errors import SimulatorError
from rlvla.specs import Start
from rlvla_sim_tabletop import COLOURS, TEMPLATES

SUBSTEPS = 5
MOVED_M = 0.025
"""A block counts as moved beyond this displacement."""
STATE_CENTRE = np.array([0.0, 0.0, 0.06])
STATE_SCALE = np.array([0.2, 0.2, 0.04])
PROGRESS, SOLVED, WRONG = 4.0, 1.0, -0.5
"""Shaped reward: for the potential's change, at success, at the wrong block."""
_AREA_M = 0.17
"""Blocks and hand start within +- this."""
_TRIES = 32
"""Placements drawn at once: one in about ten is wide enough at the default spacing."""
_PAIRS = np.triu_indices(len(COLOURS) + 1, 1)


def compiled() -> mujoco.MjModel:
    """Return the scene."""
    return mujoco.MjModel.from_xml_string((resources.files(__package__) / "scene.xml").read_text())


@dataclass(frozen=True)
class Scene:
    """Where an episode starts."""

    qpos_Q: np.ndarray
    template: int
    """Number of the instruction's wording."""

    @property
    def blocks_B2(self) -> np.ndarray:
        return self.qpos_Q[3:].reshape(-1, 3)[:, :2]


def drawn(seed: int, start: Start, spacing: float) -> Scene:
    """Return the scene of a seed; blocks and hand are at least ``spacing`` apart.

    Raises:
        SimulatorError: there is no such start.
    """
    if not 0 <= start.task < len(COLOURS) or start.state is not None:
        raise SimulatorError(
            f"tabletop has tasks 0 to {len(COLOURS) - 1} and no stored initial states, got {start}: "
            "use Start(task) with state None"
        )
    random = np.random.default_rng(seed)
    place_42 = _places(random, spacing)
    hand = [*place_42[3], random.uniform(0.04, 0.09)]
    blocks = [[*place_42[block], random.uniform(-np.pi, np.pi)] for block in range(len(COLOURS))]
    return Scene(np.concatenate([hand, *blocks]), int(random.integers(len(TEMPLATES))))


def _places(random: np.random.Generator, spacing: float) -> np.ndarray:
    """Return 4 points (blocks, hand)."""
    while True:
        place_T42 = random.uniform(-_AREA_M, _AREA_M, (_TRIES, 4, 2))
        distance_TP = np.linalg.norm(place_T42[:, _PAIRS[0]] - place_T42[:, _PAIRS[1]], axis=-1)
        far_T = distance_TP.min(1) > spacing
        if far_T.any():
            return place_T42[far_T.argmax()]
