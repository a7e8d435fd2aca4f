"""The batched backend on a true GPU: tensors that stay there, captured programs, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from tabletop_world import batched, begin, bits, check_side_by_side, needs_warp, random_chunk

from rlvla.arrays import on_host
from rlvla.errors import SimulatorError

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    needs_warp,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS, CHUNKS = 32, 5


def on_gpu(rows=ROWS, **options):
    return batched(rows, **{"device": "cuda", **options})


def played(simulator, chunks=CHUNKS):
    """Play random chunks with all rows; returns everything after each."""
    begin(simulator, list(range(simulator._rows)))
    seen, active = [bits(simulator)], np.ones(simulator._rows, bool)
    for number in range(chunks):
        result = simulator.step(random_chunk(simulator._rows, 4, seed=number), active)
        active &= ~on_host((result.terminated | result.truncated).any(1))
        seen.append({**bits(simulator), "reward": on_host(result.reward)})
    return seen


def equal(one, other):
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        for name in first:
            assert (first[name] == second[name]).all(), f"{name} after chunk {number}"


@pytest.fixture(scope="module")
def simulator():
    return on_gpu(deterministic=True)


def test_everything_stays_on_the_device(simulator):
    shown = begin(simulator, list(range(ROWS)))
    result = simulator.step(torch.zeros(ROWS, 2, 3, device="cuda"), np.ones(ROWS, bool))
    for one in (shown.state, shown.images["front"], result.observation.images["front"], result.reward, result.valid):
        assert one.device.type == "cuda"
    assert float(shown.images["front"].float().std()) > 10


def test_captured_programs_do_what_called_ones_do(simulator):
    from rlvla_sim_tabletop import TabletopConfig
    from rlvla_sim_tabletop.batched import BatchedTabletop

    assert simulator._step._graph is not None
    called = BatchedTabletop(TabletopConfig(backend="gpu", deterministic=True), ROWS, capture=False)
    assert called._step._graph is None
    equal(played(simulator), played(called))


def test_equal_seeds_and_actions_give_equal_bits(simulator):
    first = played(simulator)
    equal(first, played(simulator))
    equal(first, played(on_gpu(deterministic=True)))


def test_groups_stay_equal_to_the_bit(simulator):
    from rlvla.specs import Start

    simulator.reset(range(ROWS), [7] * ROWS, [Start(1)] * ROWS)
    for number in range(CHUNKS):
        simulator.step(np.repeat(random_chunk(1, 4, seed=number), ROWS, 0), np.ones(ROWS, bool))
        for name, array in bits(simulator).items():
            assert (array == array[:1]).all(), name


def test_resets_and_idle_rows_leave_others_bitwise_untouched(simulator):
    played(simulator, 2)
    before = bits(simulator)
    begin(simulator, [99, 98], rows=[2, 7])
    simulator.step(random_chunk(ROWS, 4, seed=2), np.isin(np.arange(ROWS), [2, 7]))
    others = [row for row in range(ROWS) if row not in (2, 7)]
    for name, array in bits(simulator).items():
        assert (array[others] == before[name][others]).all(), name


def test_it_goes_the_way_of_warps_cpu_device(simulator):
    import warp as wp

    if not wp.is_cpu_available():
        pytest.skip("this warp-lang has no CPU device")
    cpu = batched(ROWS)
    for one, other in zip(played(simulator), played(cpu), strict=True):
        np.testing.assert_allclose(
            one["physics"][:, 1:13], other["physics"][:, 1:13], atol=1e-4
        )  # qpos, after the time
        assert (one["ended"] == other["ended"]).all()
        assert np.abs(one["pictures"].astype(int) - other["pictures"].astype(int)).mean() < 0.5


def test_two_batches_side_by_side_do_not_meet():
    """Slots of one run are stepped by threads of their own, each on its own stream."""
    from concurrent.futures import ThreadPoolExecutor

    pair = [on_gpu(deterministic=True) for _ in range(2)]
    alone = played(pair[0])
    with ThreadPoolExecutor(2) as threads:
        for together in threads.map(played, pair):
            equal(alone, together)


def test_no_batch_runs_where_graphs_are_captured():
    """Torch hands out 32 streams in turn, and another slot's work would be captured, too."""
    from rlvla.mujoco_warp.worlds import _capture_stream, _stream

    captures = _capture_stream(torch.device("cuda", 0))
    assert captures not in [_stream(torch.device("cuda", 0)) for _ in range(70)]


def test_memory_is_not_more_than_what_was_reckoned_with():
    before, _ = torch.cuda.mem_get_info()
    wide = on_gpu(2048)
    played(wide, 1)
    assert before - torch.cuda.mem_get_info()[0] < wide._worlds.room.needed
    with pytest.raises(SimulatorError, match="fit at most"):
        on_gpu(2**24)


def test_batches_side_by_side_do_what_they_do_alone():
    check_side_by_side("cuda")
