"""The scripted expert: it solves the table from anywhere."""

import numpy as np
import pytest

from rlvla.specs import Start
from rlvla_sim_tabletop import TabletopConfig
from rlvla_sim_tabletop.expert import aim, clearance
from rlvla_sim_tabletop.simulator import TabletopSimulator


def solved(horizon: int, episodes: int = 200, rows: int = 50, noise: float = 0.0) -> float:
    simulator = TabletopSimulator(TabletopConfig(image_size=16), rows)
    random = np.random.default_rng(0)
    count = 0
    for first in range(0, episodes, rows):
        simulator.reset(range(rows), range(first, first + rows), [Start(row % 3) for row in range(rows)])
        active = np.ones(rows, bool)
        while active.any():
            live = np.flatnonzero(active)
            chunk = noise * random.standard_normal((rows, horizon, 3)).astype(np.float32)
            chunk[live] += simulator.expert(live.tolist(), horizon)
            result = simulator.step(chunk, active)
            count += int(result.success.sum())
            active &= ~(result.terminated | result.truncated).any(1)
    simulator.close()
    return count / episodes


@pytest.mark.parametrize(("horizon", "noise"), [(1, 0.0), (4, 0.0), (1, 0.3)])
def test_the_expert_solves_200_episodes(horizon, noise):
    assert solved(horizon, noise=noise) >= 0.97


def test_the_straight_way_is_taken_where_it_is_free():
    block, others = np.array([0.1, 0.0]), np.array([[0.0, 0.15], [0.0, -0.15]])
    np.testing.assert_allclose(aim(np.array([-0.1, 0.0, 0.04]), block, others), [0.14, 0.0, 0.03])


def test_what_stands_in_the_way_is_passed_over():
    block, others = np.array([0.1, 0.0]), np.array([[0.0, 0.0], [0.0, -0.15]])
    np.testing.assert_allclose(aim(np.array([-0.1, 0.0, 0.04]), block, others), [-0.1, 0.0, 0.11])  # up first
    high = aim(np.array([-0.1, 0.0, 0.11]), block, others)
    assert high[2] == 0.11
    assert clearance(high[:2], block, others) > 0.085


def test_clearance_is_the_distance_from_a_segment():
    start, end = np.array([0.0, 0.0]), np.array([1.0, 0.0])
    for point, distance in (((0.5, 0.2), 0.2), ((2.0, 0.0), 1.0), ((-3.0, 4.0), 5.0)):
        assert clearance(start, end, np.array([point])) == pytest.approx(distance)
