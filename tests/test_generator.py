"""The generator's deterministic mode: what a row gets depends on the row alone."""

import torch
from tensordict import TensorDict

from rlvla.actors.generator import GeneratorActor
from rlvla.batch import Action, ObservationBatch
from rlvla.model import Model

STATE, ROWS = 300, 8


class Wide(Model):
    """A product whose kernel rounds rows differently by their number and by their place."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.randn(STATE, 7, generator=torch.Generator().manual_seed(0)))

    def preprocess(self, observation):
        return TensorDict({"x": observation.state}, batch_size=[len(observation)])

    def act(self, inputs, noise, greedy=False):
        rows = len(inputs)
        actions = (inputs["x"] @ self.weight)[:, None] + noise.normal(1, 7)
        return Action(
            actions=actions,
            logp=actions,
            value=torch.zeros(rows, 0),
            replay=TensorDict({"rows": torch.full((rows,), rows)}, batch_size=[rows]),
            batch_size=[rows],
        )

    evaluate = value = save = load = None


def observation(rows):
    state = torch.randn(rows, STATE, generator=torch.Generator().manual_seed(1))
    return ObservationBatch(
        images=TensorDict({}, batch_size=[rows]),
        state=state,
        instruction=torch.ones(rows, 4, dtype=torch.uint8),
        batch_size=[rows],
    )


def chosen(groups, fixed_rows):
    """Return the actions of work 0 to 11, asked for in these groups."""
    generator, seen = GeneratorActor(Wide(), fixed_rows), observation(12)
    out = torch.zeros(12, 1, 7)
    for numbers in groups:
        _, action = generator.act([seen], [numbers], [numbers], [[1000 + one for one in numbers]])
        out[numbers] = action.actions
        if fixed_rows:
            assert set(action.replay["rows"].tolist()) == {fixed_rows}
    return out


def test_company_and_order_do_not_change_a_rows_bits():
    wanted = chosen([[number] for number in range(12)], ROWS)
    groupings = [[[*range(12)]], [[*range(11, -1, -1)]], [[3, 11, 8, 0], [9, 1, 10, 2, 4, 5, 6, 7]]]
    for groups in groupings:
        assert torch.equal(chosen(groups, ROWS), wanted)


def test_outside_deterministic_mode_a_batch_is_what_was_asked_for():
    torch.testing.assert_close(chosen([[*range(12)]], None), chosen([[*range(6)], [*range(6, 12)]], None))
