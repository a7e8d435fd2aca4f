"""Bits of LIBERO's physics do not depend on the order in which contacts and rows are found: here by a seed, on a GPU by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from libero_gpu_world import BOWL, needs_warp

pytestmark = [needs_warp, pytest.mark.gpu, pytest.mark.timeout(1800)]
STEPS, COUNT = 24, 2


def started(suite: str, number: int) -> tuple[Any, Any]:
    """Return a compiled task and a start of it, from which objects still fall: up to 699 rows a world."""
    from rlvla_sim_libero import startup
    from rlvla_sim_libero.scene import Scene
    from rlvla_sim_libero.tasks import SUITES
    from rlvla_sim_libero_gpu.starts import Starts

    task = SUITES[suite][number]
    scene = Scene(startup.task_file(task))
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        state = file["states"][0]
    return scene, Starts(scene, 2, 1).get(0, 0, state)


def played(scene: Any, begun: Any, seed: int | None, count: int = COUNT) -> tuple[Any, Any]:
    """Return the states after each env step, and what was shuffled."""
    import torch

    from rlvla.mujoco_warp.worlds import Limits
    from rlvla.testing.chance import Chance
    from rlvla_sim_libero_gpu.batch import Batch, Look

    look = Look(("agentview",), 16, 16)
    batch = Batch(scene, begun, count, limits=Limits(300, 900), look=look, device="cpu", deterministic=True)
    chance = None if seed is None else Chance(batch.worlds, seed)
    noise, states = np.random.default_rng(5), []
    with batch.worlds.turn():
        batch.begin(range(count), [begun] * count)
        for _ in range(STEPS):
            action = torch.as_tensor(noise.uniform(-1, 1, 7).astype(np.float32))
            batch.step(action.expand(count, -1), torch.ones(count, dtype=torch.bool))
            states.append(batch.worlds.state(slice(None)).clone())
        assert not batch.worlds.overflowed().any(), batch.worlds.problem()
    batch.close()
    return torch.stack(states), chance


@pytest.mark.parametrize(("suite", "number"), [("libero_spatial", 0), ("libero_goal", BOWL)])
def test_bits_do_not_depend_on_the_order_in_which_contacts_and_rows_are_found(suite: str, number: int) -> None:
    import torch

    scene, begun = started(suite, number)
    wanted, _ = played(scene, begun, None)
    for seed in (1, 2):
        states, chance = played(scene, begun, seed)
        assert chance.contacts > 200 and chance.rows > 300
        assert torch.equal(states, wanted) and torch.equal(states[:, 0], states[:, 1])
    assert torch.equal(played(scene, begun, 3, count=3)[0], wanted[:, :1].expand(-1, 3, -1)), "of a larger batch"
