"""What the simulator does with batches, on batches with a known answer: no physics, so it runs in CI.

A world of these solves its task in its ``solved_at``-th step, and diverges in its ``diverges_at``-th.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from libero_gpu_world import BOWL, STOVE, needs_warp

from rlvla.arrays import on_host
from rlvla.specs import Start

pytestmark = [needs_warp, pytest.mark.timeout(300)]
ROWS = 3
_WAITS = (
    "as_tensor",
    "tensor",
    "from_numpy",
    "tolist",
    "item",
    "cpu",
    "numpy",
    "nonzero",
    "__bool__",
    "__int__",
    "__float__",
)
"""Functions of torch that read from the host's memory, or make the host wait for the device."""


class Worlds:
    _stream = None

    def __init__(self, count: int) -> None:
        import torch

        self.diverged, self.full = (torch.zeros(count, dtype=torch.bool) for _ in range(2))
        self.warned = 0

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    lane = turn

    def overflowed(self) -> Any:
        return self.full

    def warn(self) -> None:
        self.warned += 1


class Batch:
    def __init__(self, count: int, log: list[str]) -> None:
        import torch

        self.count, self.log = count, log
        self.worlds = Worlds(count)
        self.solved = torch.zeros(count, dtype=torch.bool)
        self.solved_at, self.diverges_at = (torch.full((count,), 99) for _ in range(2))
        self.steps = torch.zeros(count, dtype=torch.long)

    def begin(self, chosen: list[int], begun: list[Any]) -> None:
        self.steps[chosen] = 0
        self.worlds.diverged[chosen] = False

    def step(self, action: Any, live: Any) -> None:
        self.log.append(f"step {id(self)}")
        self.steps += live
        self.solved.copy_(self.steps >= self.solved_at)
        self.worlds.diverged |= live & (self.steps >= self.diverges_at)

    def state(self) -> Any:
        return self.steps[:, None].float().expand(-1, 8)

    def draw(self) -> dict[str, Any]:
        import torch

        self.log.append(f"draw {id(self)}")
        return {
            name: torch.zeros(self.count, 16, 16, 3, dtype=torch.uint8) for name in ("agentview", "robot0_eye_in_hand")
        }

    def close(self) -> None:
        pass


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> Iterator[Any]:
    from rlvla_sim_libero_gpu import LiberoGpuConfig
    from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator

    starts = SimpleNamespace(get=lambda seed, number, state: None)
    compiled = lambda self, task: (SimpleNamespace(close=lambda: None), starts)  # noqa: E731
    monkeypatch.setattr(LiberoGpuSimulator, "_compiled", compiled)
    monkeypatch.setattr(LiberoGpuSimulator, "_batch", lambda self, scene, first, count, look: Batch(count, log))
    config = LiberoGpuConfig(suite="libero_goal", tasks=(STOVE, BOWL), image_size=16, max_episode_steps=6, device="cpu")
    one = LiberoGpuSimulator(config, ROWS)
    one.reset(range(ROWS), range(ROWS), [Start(0, 0), Start(1, 0), Start(1, 1)])
    yield one
    one.close()


def still(horizon: int) -> Any:
    import torch

    return torch.zeros(ROWS, horizon, 7)


def world(simulator: Any, row: int) -> tuple[Batch, int]:
    group = simulator._groups.of(row)
    return group.batch, group.world_of(row)


def test_all_batches_have_their_work_before_the_host_waits(simulator: Any, log: list[str]) -> None:
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if (name := getattr(func, "__name__", "")) in _WAITS:
                log.append(name)
            return func(*args, **(kwargs or {}))

    for _ in range(2):  # the first uploads where rows are
        log.clear()
        with Watch():
            simulator.step(still(2), [True] * ROWS)
    steps = [number for number, what in enumerate(log) if what.startswith("step")]
    draws = [number for number, what in enumerate(log) if what.startswith("draw")]
    assert len({log[number] for number in steps}) == 2 and len(steps) == 4
    assert max(steps) < min(draws), "pictures before all batches have their actions"
    assert log[steps[0] : draws[-1] + 1] == [log[number] for number in (*steps, *draws)], "the host waited in between"
    assert "tensor" not in log, "where rows are was uploaded again"


def test_a_world_that_diverges_ends_its_episode_as_a_failure(simulator: Any, caplog: pytest.LogCaptureFixture) -> None:
    batch, at = world(simulator, 1)
    batch.diverges_at[at] = batch.solved_at[at] = 2  # what a goal's test says of such a world counts nothing
    with caplog.at_level(logging.WARNING):
        result = simulator.step(still(4), [True] * ROWS)
    assert on_host(result.valid).tolist() == [[True] * 4, [True, True, False, False], [True] * 4]
    assert on_host(result.terminated).tolist() == [[False] * 4, [False, True, False, False], [False] * 4]
    assert not on_host(result.reward).any() and not on_host(result.success).any()
    assert result.counts == {"contacts_left_out": 0.0, "worlds_diverged": 1.0}
    simulator.reset([1], [5], [Start(1, 0)])
    with caplog.at_level(logging.WARNING):
        assert simulator.step(still(4), [False, True, False]).counts["worlds_diverged"] == 1.0
    assert caplog.text.count("diverged") == caplog.text.count("sim/worlds_diverged") + 1 == 2, "said once a task"
    assert simulator.spec.tasks[1].name in caplog.text


def test_success_is_a_reward_and_the_end(simulator: Any) -> None:
    batch, at = world(simulator, 0)
    batch.solved_at[at] = 3
    result = simulator.step(still(4), [True] * ROWS)
    assert on_host(result.success).tolist() == [True, False, False]
    assert on_host(result.reward)[0].tolist() == [0, 0, 1, 0]
    assert on_host(result.observation.state)[:, 0].tolist() == [3, 4, 4]
    result = simulator.step(still(4), [False, True, True])
    assert on_host(result.truncated).tolist() == [[False] * 4, [False, True, False, False], [False, True, False, False]]


def test_an_episode_whose_contacts_were_left_out_counts_once(simulator: Any) -> None:
    batch, at = world(simulator, 2)
    batch.worlds.full[at] = True
    counts = [simulator.step(still(1), [True] * ROWS).counts["contacts_left_out"] for _ in range(3)]
    assert counts == [1.0, 0.0, 0.0] and batch.worlds.warned == 1
    simulator.reset([2], [9], [Start(1, 0)])
    batch, at = world(simulator, 2)
    batch.worlds.full[at] = True
    assert simulator.step(still(1), [True] * ROWS).counts["contacts_left_out"] == 1.0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([ROWS], r"rows: got \[3\], wanted numbers from 0 to 2"),
        ([-1], r"got \[-1\]"),
        ([0, 0], r"got \[0\] more than once"),
    ],
)
def test_rows_that_do_not_exist_are_refused_before_anything_is_made(
    simulator: Any, rows: list[int], words: str
) -> None:
    there = [len(task.groups) for task in simulator._groups._tasks.values()]
    with pytest.raises(ValueError, match=words):
        simulator.reset(rows, [0] * len(rows), [Start(0, 0)] * len(rows))
    assert [len(task.groups) for task in simulator._groups._tasks.values()] == there


def test_states_are_of_rows_that_are_there(simulator: Any) -> None:
    with pytest.raises(ValueError, match=r"rows: got \[-1\], wanted numbers from 0 to 2"):
        simulator.get_state([-1])
    with pytest.raises(ValueError, match="got 2 rows and 0 states, wanted one of each a row"):
        simulator.set_state([0, 1], [])


def test_worlds_that_do_not_fit_are_told_before_all_starts_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvla.mujoco_warp.room import NoRoom
    from rlvla_sim_libero_gpu import LiberoGpuConfig
    from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator

    drawn: list[int] = []

    def full(*args: Any) -> Any:
        raise NoRoom("no room")

    starts = SimpleNamespace(get=lambda seed, number, state: drawn.append(seed))
    compiled = lambda self, task: (SimpleNamespace(close=lambda: None), starts)  # noqa: E731
    monkeypatch.setattr(LiberoGpuSimulator, "_compiled", compiled)
    monkeypatch.setattr(LiberoGpuSimulator, "_batch", full)
    one = LiberoGpuSimulator(LiberoGpuConfig(suite="libero_goal", tasks=(STOVE,), device="cpu"), 64)
    with pytest.raises(NoRoom, match="no room"):
        one.reset(range(64), range(64), [Start(0, 0)] * 64)
    assert set(drawn) == {0}, "only where a batch would begin"


def test_another_mujoco_warp_is_refused_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvla.errors import SimulatorError
    from rlvla.mujoco_warp.start import mjw
    from rlvla_sim_libero_gpu import LiberoGpuConfig
    from rlvla_sim_libero_gpu.simulator import LiberoGpuSimulator

    monkeypatch.setattr(mjw, "__version__", "4.1.0")
    config = LiberoGpuConfig(suite="libero_goal", tasks=(STOVE,), device="cpu", deterministic=True)
    with pytest.raises(SimulatorError, match=r"mujoco-warp 4\.1\.0 is here, .* install mujoco-warp 4\.0\.0"):
        LiberoGpuSimulator(config, 1)


def test_no_rows_are_reset_to_nothing(simulator: Any) -> None:
    shown = simulator.reset([], [], [])
    assert shown.state.shape == (0, 8) and len(shown.instruction) == 0
    assert next(iter(shown.images.values())).shape == (0, 16, 16, 3)
    assert simulator.set_state([], []).state.shape == (0, 8) and simulator.get_state([]) == []


@pytest.mark.parametrize(
    ("shape", "active", "words"),
    [
        ((ROWS, 2, 1), [True] * ROWS, r"shape \(3, 2, 1\), wanted \[3 rows, H of 1 or more, 7\] \(3 position"),
        ((ROWS, 0, 7), [True] * ROWS, "H of 1 or more"),
        ((ROWS, 2, 7), [True], r"active has shape \(1,\), wanted one flag a row: \(3,\)"),
    ],
)
def test_actions_and_flags_of_another_shape_are_refused(simulator: Any, shape: Any, active: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulator.step(np.zeros(shape, np.float32), active)


def test_a_long_texture_keeps_both_sides() -> None:
    import mujoco

    from rlvla_sim_libero_gpu.appearance import drawable

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><asset><texture name='t' type='2d' builtin='checker' width='32' height='1024'/></asset></mujoco>"
    )
    drawn = drawable(model, 16)
    assert (drawn.tex_height[0], drawn.tex_width[0]) == (16, 1)
