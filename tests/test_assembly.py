"""From chunks as they are played to trajectories, by hand: masks, order, and what is bootstrapped from what."""

import torch
from tensordict import TensorDict

from rlvla.assembly import Assembly, Entry
from rlvla.batch import Action, ObservationBatch, Outcome

H = 2


def observation(*numbers: float) -> ObservationBatch:
    rows = len(numbers)
    return ObservationBatch(
        images=TensorDict({}, batch_size=[rows]),
        state=torch.tensor(numbers)[:, None],
        instruction=torch.ones(rows, 4, dtype=torch.uint8),
        batch_size=[rows],
    )


def action(*tokens: int) -> Action:
    rows = len(tokens)
    return Action(
        actions=torch.zeros(rows, H, 1),
        logp=-torch.tensor(tokens, dtype=torch.float32)[:, None, None].expand(rows, H, 1).contiguous(),
        value=torch.tensor(tokens, dtype=torch.float32)[:, None],
        replay=TensorDict({"tokens": torch.tensor(tokens)}, batch_size=[rows]),
        batch_size=[rows],
    )


def outcome(*rows: tuple[str, float]) -> Outcome:
    """Each row: one letter an action (. executed, T terminated, X truncated, - not executed), and its reward."""
    letters = [[*text] for text, _ in rows]

    def flags(wanted: str) -> torch.Tensor:
        return torch.tensor([[letter in wanted for letter in row] for row in letters])

    valid = flags(".TX")
    return Outcome(
        reward=torch.tensor([reward for _, reward in rows])[:, None] * valid,
        terminated=flags("T"),
        truncated=flags("X"),
        valid=valid,
        success=flags("T").any(1),
        batch_size=[len(rows)],
    )


def played() -> Assembly:
    """Tickets 0 and 1, windows of 2 chunks, in rows 0 and 1 of one slot; row 0 ends inside its first chunk."""
    assembly = Assembly()
    assembly.record(
        observation(1.0, 10.0),
        action(1, 2),
        outcome(("T-", 1.0), ("..", 0.5)),
        observation(2.0, 11.0),
        7,
        [Entry(0, 0, 0, 0, False), Entry(1, 0, 0, 1, False)],
    )
    assembly.record(
        observation(100.0, 11.0),  # row 0 was reset
        action(3, 4),
        outcome(("..", 0.0), (".X", 0.25)),
        observation(101.0, 12.0),
        8,
        [Entry(0, 0, 1, 0, True), Entry(1, 0, 1, 1, True)],
    )
    return assembly


def test_trajectories_are_what_was_played():
    out = played().take([0, 1], final_values=True).trajectories
    assert out.exists.all()
    assert out.valid.tolist() == [[[True, False], [True, True]], [[True, True], [True, True]]]
    assert out.terminated.tolist() == [[[True, False], [False, False]], [[False, False], [False, False]]]
    assert out.truncated.tolist() == [[[False, False], [False, False]], [[False, False], [False, True]]]
    assert out.reward.tolist() == [[[1.0, 0.0], [0.0, 0.0]], [[0.5, 0.5], [0.25, 0.25]]]
    assert out.value[..., 0].tolist() == [[1, 3], [2, 4]]
    assert out.version.tolist() == [[7, 8], [7, 8]]
    assert out.group.tolist() == [[0, 0], [1, 1]]


def test_samples_are_the_trajectories_row_by_row():
    data = played().take([1, 0], final_values=True)
    assert data.observations.state[:, 0].tolist() == [10.0, 11.0, 1.0, 100.0]
    assert data.replay["tokens"].tolist() == [2, 4, 1, 3]


def test_final_observations_are_before_any_reset():
    """#69: what an ended chunk led to is the terminal observation (2), never the reset one (100)."""
    data = played().take([0, 1], final_values=True, terminated_too=True)
    unit, chunk = data.final_index
    found = {
        (int(u), int(c)): float(s) for u, c, s in zip(unit, chunk, data.final_observations.state[:, 0], strict=True)
    }
    assert found == {(0, 0): 2.0, (0, 1): 101.0, (1, 1): 12.0}


def test_ends_that_are_not_bootstrapped_cost_no_value():
    data = played().take([0, 1], final_values=True)
    assert list(zip(*(one.tolist() for one in data.final_index), strict=True)) == [(0, 1), (1, 1)]


def test_without_values_no_final_observation_is_kept():
    assert played().take([0, 1], final_values=False).final_observations is None


def test_the_order_of_tickets_is_kept_and_units_are_forgotten():
    assembly = played()
    assembly.forget(0)
    assert assembly.take([1], final_values=False).trajectories.version.tolist() == [[7, 8]]
    assert not assembly._units


def test_what_was_lost_spoils_its_unit_until_it_is_played_again():
    assembly = played()
    assembly.miss([Entry(0, 0, 1, 0, True), None])
    assembly.record(observation(1.0), action(5), outcome(("..", 0.0)), observation(1.0), 7, [Entry(0, 0, 2, 0, True)])
    assembly.forget(0, 0)
    assembly.record(observation(1.0), action(5), outcome(("..", 0.0)), observation(1.0), 7, [Entry(0, 0, 0, 0, True)])
    assert assembly.whole([0, 1]) == [0, 1]
    assembly.miss([Entry(1, 0, 1, 1, True)])
    assert assembly.whole([0, 1]) == [0]


def test_rollouts_of_unequal_length_are_padded():
    assembly = Assembly()
    assembly.record(observation(1.0, 5.0), action(1, 2), outcome((".T", 1.0), ("..", 0.0)), observation(2.0, 6.0), 0,
                    [Entry(4, 1, 0, 0, True), Entry(4, 0, 0, 1, False)])  # fmt: skip
    assembly.record(
        observation(9.0, 6.0), action(3), outcome(("X-", 0.0)), observation(9.0, 7.0), 0, [Entry(4, 0, 1, 1, True)]
    )
    data = assembly.take([4], final_values=False)
    assert data.trajectories.exists.tolist() == [[True, True], [True, False]]  # member 0 first
    assert data.observations.state[:, 0].tolist() == [5.0, 6.0, 1.0]
    assert not data.trajectories.valid[1, 1].any()
    assert (data.trajectories.group == 4).all()
