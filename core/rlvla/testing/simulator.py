"""Conformance of simulators: what whoever resets and steps them relies on.

Letters: N rows, H actions in a chunk, A action dimensions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rlvla.arrays import on_host
from rlvla.checks import environments
from rlvla.errors import RlvlaError, SimulatorError
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import SimulatorSpec, Start
from rlvla.testing.suite import Conformance, check, skip
from rlvla.text import encode_text


class SimulatorConformance(Conformance):
    """Checks of a simulator plugin. The simulator is made once for the suite: each check resets what it uses."""

    kind = "sim"
    rows: ClassVar[int] = 3
    horizon: ClassVar[int] = 3
    ends_by_itself: ClassVar[bool] = True
    """Random actions end some episode, or the step limit does, within ``end_chunks`` chunks."""
    end_chunks: ClassVar[int] = 60
    expert_success: ClassVar[float] = 0.9
    """Part of ``expert_episodes`` episodes that a scripted expert solves, where the spec says that there is one."""
    expert_episodes: ClassVar[int] = 12
    _made: ClassVar[dict[str, Simulator]] = {}

    # --- how a simulator is run ---

    def simulator(self, config: Any | None = None) -> Simulator:
        """Return the suite's simulator, made once for each config."""
        config = config if config is not None else self.made()
        cls = type(self)
        if "_made" not in vars(cls):
            cls._made = {}
        key = repr(config)
        if key not in cls._made:
            cls._made[key] = self.plugin().load()(config, self.rows)
        return cls._made[key]

    @classmethod
    def teardown_class(cls) -> None:
        """Close what the suite made; twice, since that is allowed."""
        for simulator in vars(cls).get("_made", {}).values():
            simulator.close()
            simulator.close()

    def start(self, simulator: Simulator, number: int = 0) -> Start:
        """Return a valid start."""
        task = number % len(simulator.spec.tasks)
        states = simulator.spec.tasks[task].initial_states
        return Start(task, number % states if states else None)

    def reset_all(self, simulator: Simulator, seed: int = 0) -> Observation:
        """Start an episode of task 0 in each row, with seeds ``seed``, ``seed + 1``, ..."""
        rows = range(self.rows)
        return copied(simulator.reset(list(rows), [seed + row for row in rows], [self.start(simulator)] * self.rows))

    def actions(self, simulator: Simulator, seed: int, horizon: int | None = None) -> np.ndarray:
        """Return random actions within the spec's bounds, float32 ``[N, H, A]``."""
        low, high = bounds(simulator.spec)
        random = np.random.default_rng(seed)
        return random.uniform(low, high, (self.rows, horizon or self.horizon, len(low))).astype(np.float32)

    def all_active(self) -> np.ndarray:
        return np.ones(self.rows, bool)

    def exercise(self, config: Any) -> None:
        """Count environments as a run does, reset, and step with video."""
        environments(config)
        simulator = self.simulator(config)
        simulator.record_video([0])
        self.reset_all(simulator)
        active = self.all_active()
        for number in range(2):
            result = simulator.step(self.actions(simulator, number), active)
            active &= ~ended(result)
        simulator.record_video([])
        simulator.versions()

    # --- checks ---

    def test_simulator_is_one(self) -> None:
        """The target is an ``rlvla.simulator.Simulator`` whose spec is what ``describe`` said."""
        simulator = self.simulator()
        assert isinstance(simulator, Simulator), (
            f"{type(simulator).__name__} does not inherit from rlvla.simulator.Simulator"
        )
        described = self.plugin().describe(self.made())
        assert simulator.spec == described, (
            f"the simulator's spec is not what describe() returned: {simulator.spec} {described}"
        )

    def test_observation_fits_the_spec(self) -> None:
        """Pictures, state and instruction have the declared names, shapes and types, after reset and after step."""
        simulator = self.simulator()
        self.fits(simulator, self.reset_all(simulator), self.rows)
        self.fits(simulator, simulator.step(self.actions(simulator, 0), self.all_active()).observation, self.rows)
        self.fits(simulator, simulator.reset([1], [5], [self.start(simulator)]), 1)

    def fits(self, simulator: Simulator, observation: Observation, rows: int) -> None:
        """Assert that an observation is what the spec declares."""
        spec = simulator.spec
        names = {camera.name for camera in spec.cameras}
        assert set(observation.images) == names, (
            f"pictures {sorted(observation.images)}, the spec declares {sorted(names)}"
        )
        for camera in spec.cameras:
            picture = on_host(observation.images[camera.name])
            wanted = (rows, camera.height, camera.width, 3)
            assert picture.shape == wanted, f"camera {camera.name}: {picture.shape}, the spec declares {wanted}"
            assert picture.dtype == np.uint8, (
                f"camera {camera.name}: {picture.dtype}, wanted uint8 (0 to 255, not 0 to 1)"
            )
        state = on_host(observation.state)
        assert state.shape == (rows, spec.state_dim), f"state {state.shape}, the spec declares {(rows, spec.state_dim)}"
        assert state.dtype == np.float32, f"state is {state.dtype}, wanted float32"
        assert np.isfinite(state).all(), "state has numbers that are not finite"
        assert len(observation.instruction) == rows, f"{len(observation.instruction)} instructions for {rows} rows"
        encode_text(observation.instruction, spec.max_instruction_bytes)
        if all(task.wordings for task in spec.tasks):
            told = {text for task in spec.tasks for text in task.wordings}
            assert told >= set(observation.instruction), (
                f"episodes are told {sorted(set(observation.instruction) - told)}, which no task of the spec has among its "
                "wordings: models size their inputs by these"
            )

    def test_pictures_show_something(self) -> None:
        """A picture of one colour means that nothing was rendered."""
        simulator = self.simulator()
        for name, pictures in self.reset_all(simulator).images.items():
            assert on_host(pictures).std() > 0, f"camera {name} shows one colour: is the renderer working?"

    def test_reset_is_a_function_of_seed_and_start(self) -> None:
        """The same seed and start give the same bits, in any row and after anything."""
        simulator = self.simulator()
        first = self.reset_all(simulator, seed=7)
        for number in range(2):
            simulator.step(self.actions(simulator, number), self.all_active())
            self.reset_all(simulator, seed=20 + number)
        again = self.reset_all(simulator, seed=7)
        equal(first, again, "a reset with the same seed and start differs after other episodes ran")
        last = self.rows - 1
        moved = copied(simulator.reset([last], [7], [self.start(simulator)]))
        equal(taken(first, [0]), moved, "a reset with the same seed and start differs in another row")

    def test_group_members_start_equal(self) -> None:
        """Rows of one group (same seed and start) show the same bits."""
        simulator = self.simulator()
        start = self.start(simulator, 1)
        observation = copied(simulator.reset(list(range(self.rows)), [11] * self.rows, [start] * self.rows))
        for row in range(1, self.rows):
            equal(taken(observation, [0]), taken(observation, [row]), f"row {row} of a group starts differently")

    def test_seeds_make_scenes(self) -> None:
        """Different seeds (or stored initial states) start from different scenes."""
        simulator = self.simulator()
        states = simulator.spec.tasks[0].initial_states
        if not simulator.spec.seeded_starts and states < 2:
            skip("the spec says seeded_starts=False, and there are no stored initial states")
        starts = [Start(0, number % states) if states else Start(0) for number in range(self.rows)]
        observation = copied(simulator.reset(list(range(self.rows)), list(range(self.rows)), starts))
        for row in range(1, self.rows):
            pictures = [on_host(one) for one in observation.images.values()]
            same = (
                all((one[0] == one[row]).all() for one in pictures)
                and (observation.state[0] == observation.state[row]).all()
            )
            assert not same, f"rows 0 and {row} look the same though seeds or initial states differ"

    def test_stepping_is_deterministic(self) -> None:
        """The same start and actions give the same bits."""
        simulator = self.simulator()
        runs = []
        for _ in range(2):
            self.reset_all(simulator, seed=3)
            runs.append(copied_result(simulator.step(self.actions(simulator, 1), self.all_active())))
        equal(runs[0].observation, runs[1].observation, "the same actions from the same start lead elsewhere")
        assert (on_host(runs[0].reward) == on_host(runs[1].reward)).all(), "the same actions give another reward"

    def test_preparing_tasks_changes_nothing(self) -> None:
        """Building ahead what later resets need leaves live episodes and later resets as they would have been."""
        simulator = self.simulator()
        if not simulator.spec.builds_tasks:
            skip("no task has to be built: spec.builds_tasks is False")
        last, seen = len(simulator.spec.tasks) - 1, []
        for prepares in (True, False):
            self.reset_all(simulator, seed=3)
            if prepares:
                simulator.prepare([last])
            stepped = copied(simulator.step(self.actions(simulator, 1), self.all_active()).observation)
            seen.append((stepped, copied(simulator.reset([0], [4], [self.start(simulator, last)]))))
        equal(seen[0][0], seen[1][0], "an episode goes on another way after prepare()")
        equal(seen[0][1], seen[1][1], "a prepared task starts another way")

    def test_rows_do_not_touch_each_other(self) -> None:
        """A row's chunk is the same whether others are stepped, idle or reset."""
        simulator = self.simulator()
        chunk = self.actions(simulator, 2)
        self.reset_all(simulator, seed=5)
        together = copied_result(simulator.step(chunk, self.all_active()))
        self.reset_all(simulator, seed=5)
        alone = self.all_active()
        alone[1:] = False
        result = copied_result(simulator.step(chunk, alone))
        equal(
            taken(together.observation, [0]), taken(result.observation, [0]), "row 0 depends on who is stepped with it"
        )
        before = taken(copied(result.observation), [0])
        simulator.reset([1], [99], [self.start(simulator)])
        idle = np.zeros(self.rows, bool)
        after = taken(copied(simulator.step(chunk, idle).observation), [0])
        equal(before, after, "resetting row 1 changed row 0")

    def test_idle_rows_do_nothing(self) -> None:
        """Rows that are not active are not stepped, and their entries are empty."""
        simulator = self.simulator()
        start = self.reset_all(simulator, seed=5)
        active = self.all_active()
        active[1:] = False
        result = copied_result(simulator.step(self.actions(simulator, 2), active))
        for name in ("reward", "terminated", "truncated", "valid"):
            assert not on_host(getattr(result, name))[1:].any(), f"{name} of an idle row is not empty"
        equal(taken(start, [1]), taken(result.observation, [1]), "an idle row's observation changed")

    def test_chunk_result_is_well_formed(self) -> None:
        """``valid`` is a prefix that ends with the first end; nothing is executed or rewarded after it."""
        simulator = self.simulator()
        self.reset_all(simulator)
        active = self.all_active()
        for number in range(self.end_chunks if self.ends_by_itself else 3):
            result = copied_result(simulator.step(self.actions(simulator, number), active))
            self.well_formed(result, active)
            active &= ~ended(result)
            if not active.any():
                break
        if self.ends_by_itself:
            assert not active.all(), f"no episode ended in {self.end_chunks} chunks: is the step limit enforced?"

    def well_formed(self, result: ChunkResult, active: np.ndarray) -> None:
        """Assert the rules of a chunk result."""
        valid, done = on_host(result.valid), on_host(result.terminated) | on_host(result.truncated)
        wanted = (self.rows, valid.shape[1])
        for name, dtype in (("reward", np.float32), ("terminated", bool), ("truncated", bool), ("valid", bool)):
            array = on_host(getattr(result, name))
            assert array.shape == wanted and array.dtype == dtype, (
                f"{name}: {array.dtype} {array.shape}, wanted {dtype} {wanted}"
            )
        assert on_host(result.success).shape == (self.rows,), f"success: {on_host(result.success).shape}"
        if result.success_at_end is not None:
            assert (on_host(result.success_at_end) <= on_host(result.success)).all(), (
                "a row is solved at the end of a chunk in which it never was: success covers all executed actions"
            )
        assert not (on_host(result.terminated) & on_host(result.truncated)).any(), "terminated and truncated at once"
        assert (valid[:, 1:] <= valid[:, :-1]).all(), "valid is not a prefix of the chunk"
        assert (valid[:, 0] == active).all(), (
            "the first action of an active row was not executed (or an idle row was stepped)"
        )
        assert (done <= valid).all(), "an action that was not executed ended an episode"
        assert (done.sum(1) <= 1).all(), "an episode ended twice in one chunk"
        for row in np.flatnonzero(done.any(1)):
            end = int(done[row].argmax())
            assert not valid[row, end + 1 :].any(), f"row {row} went on after its episode ended"
        for row in np.flatnonzero(~done.any(1) & active):
            assert valid[row].all(), f"row {row} stopped in the middle of a chunk without an end"
        assert not on_host(result.reward)[~valid].any(), "a reward for an action that was not executed"

    def test_episodes_end_at_the_limit(self) -> None:
        """Without success, an episode is truncated at exactly ``max_episode_steps`` env steps."""
        simulator = self.simulator()
        if not self.ends_by_itself:
            skip("ends_by_itself is False")
        limit = simulator.spec.max_episode_steps
        if limit > self.horizon * self.end_chunks:
            skip(f"the limit of {limit} steps lies beyond end_chunks={self.end_chunks}")
        self.reset_all(simulator)
        steps, active = np.zeros(self.rows, np.int64), self.all_active()
        still = np.zeros_like(self.actions(simulator, 0))
        for _ in range(-(-limit // self.horizon)):
            result = copied_result(simulator.step(still, active))
            steps += on_host(result.valid).sum(1)
            for row in np.flatnonzero(on_host(result.truncated).any(1)):
                assert steps[row] == limit, f"row {row} was truncated after {steps[row]} steps, the spec says {limit}"
            active &= ~ended(result)
        assert not active.any(), f"rows {np.flatnonzero(active).tolist()} still run after {limit} steps"

    def test_an_ended_row_waits_for_its_reset(self) -> None:
        """The scheduler decides who resets: stepping an ended row is an error, not a hidden restart."""
        simulator = self.simulator()
        self.reset_all(simulator)
        active = self.all_active()
        for number in range(self.end_chunks):
            result = simulator.step(self.actions(simulator, number), active)
            over = np.flatnonzero(ended(result))
            if len(over):
                only = np.zeros(self.rows, bool)
                only[over[0]] = True
                with contextlib.suppress(SimulatorError):
                    simulator.step(self.actions(simulator, 0), only)
                    raise AssertionError(f"row {over[0]} was stepped after its end without an error")
                return
            active &= ~ended(result)
        skip(f"no episode ended in {self.end_chunks} chunks")

    def test_unknown_starts_are_refused(self) -> None:
        """A task or initial state that does not exist is an error that says what there is."""
        simulator = self.simulator()
        for start in (Start(len(simulator.spec.tasks)), Start(0, 1_000_000)):
            try:
                simulator.reset([0], [0], [start])
            except RlvlaError as error:
                assert str(error), "an error without words"
            else:
                raise AssertionError(f"{start} does not exist and was accepted")

    def test_video_has_every_executed_action(self) -> None:
        """With video on, a row's frames are one for each executed action."""
        simulator = self.simulator()
        simulator.record_video([0])
        try:
            self.reset_all(simulator)
            result = simulator.step(self.actions(simulator, 0), self.all_active())
            assert result.frames is not None, "record_video was asked for and no frames came"
            executed = int(on_host(result.valid)[0].sum())
            assert len(result.frames[0]) == executed, f"{len(result.frames[0])} frames for {executed} executed actions"
            frame = on_host(result.frames[0][0])
            assert frame.dtype == np.uint8 and frame.ndim == 3, f"a frame is {frame.dtype} {frame.shape}"
        finally:
            simulator.record_video([])

    def test_video_changes_nothing(self) -> None:
        """Recording must not change what happens."""
        simulator = self.simulator()
        chunk = self.actions(simulator, 4)
        results = []
        for recorded in ([], [0]):
            simulator.record_video(recorded)
            self.reset_all(simulator, seed=9)
            results.append(copied_result(simulator.step(chunk, self.all_active())))
        simulator.record_video([])
        equal(results[0].observation, results[1].observation, "the observation differs when video is recorded")

    def test_saved_episodes_continue_exactly(self) -> None:
        """``set_state`` of ``get_state`` shows the same bits, and goes on with the same bits."""
        simulator = self.simulator()
        if not simulator.spec.restorable:
            skip("the spec says restorable=False")
        self.reset_all(simulator, seed=13)
        chunk = self.actions(simulator, 5)
        mid = copied_result(simulator.step(chunk, self.all_active()))
        chunk.fill(np.nan)  # a worker's chunk lies in shared memory, where the next one takes its place
        live = ~ended(mid)
        rows = [int(row) for row in np.flatnonzero(live)]
        states = [{name: on_host(array).copy() for name, array in one.items()} for one in simulator.get_state(rows)]
        onward = copied_result(simulator.step(self.actions(simulator, 6), live))
        self.reset_all(simulator, seed=14)
        restored = copied(simulator.set_state(rows, states))
        equal(taken(mid.observation, rows), restored, "a restored episode looks different")
        again = copied_result(simulator.step(self.actions(simulator, 6), live))
        equal(taken(onward.observation, rows), taken(again.observation, rows), "a restored episode goes on differently")
        assert (on_host(onward.reward)[rows] == on_host(again.reward)[rows]).all(), (
            "a restored episode is rewarded differently"
        )

    def test_the_expert_solves_the_tasks(self) -> None:
        """A scripted expert gives actions within the bounds which, stepped like a policy's, solve most episodes."""
        simulator = self.simulator()
        if not simulator.spec.expert:
            skip("the spec says expert=False")
        low, high = bounds(simulator.spec)
        rounds = -(-self.expert_episodes // self.rows)
        solved = 0
        for number in range(rounds):
            rows = list(range(self.rows))
            starts = [self.start(simulator, number * self.rows + row) for row in rows]
            simulator.reset(rows, [1000 + number * self.rows + row for row in rows], starts)
            active = self.all_active()
            for _ in range(-(-simulator.spec.max_episode_steps // self.horizon)):
                live = [int(row) for row in np.flatnonzero(active)]
                some = on_host(simulator.expert(live, self.horizon))
                wanted = (len(live), self.horizon, len(low))
                assert some.shape == wanted and some.dtype == np.float32, (
                    f"expert gave {some.dtype} {some.shape}, wanted float32 {wanted}"
                )
                assert (some >= low - 1e-6).all() and (some <= high + 1e-6).all(), (
                    "the expert leaves the action's bounds"
                )
                chunk = np.zeros((self.rows, *wanted[1:]), np.float32)
                chunk[live] = some
                result = simulator.step(chunk, active)
                solved += int(on_host(result.success).sum())
                active &= ~ended(result)
                if not active.any():
                    break
        wanted_solved = self.expert_success * rounds * self.rows
        assert solved >= wanted_solved, (
            f"the expert solved {solved} of {rounds * self.rows} episodes, expert_success asks for {wanted_solved:g}"
        )

    def test_an_expert_that_is_not_there_says_so(self) -> None:
        """Without ``spec.expert``, asking for its actions is a TypeError."""
        simulator = self.simulator()
        if simulator.spec.expert:
            skip("the spec says expert=True")
        self.reset_all(simulator)
        try:
            simulator.expert([0], self.horizon)
        except TypeError:
            return
        raise AssertionError("expert() answers though the spec says expert=False")


def bounds(spec: SimulatorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest action, ``[A]`` each."""
    low = np.array([part.low for part in spec.action for _ in range(part.size)], np.float32)
    high = np.array([part.high for part in spec.action for _ in range(part.size)], np.float32)
    return low, high


def copied(observation: Observation) -> Observation:
    """Return an observation that the simulator's next call does not change."""
    return Observation(
        {name: on_host(picture).copy() for name, picture in observation.images.items()},
        on_host(observation.state).copy(),
        list(observation.instruction),
    )


def copied_result(result: ChunkResult) -> ChunkResult:
    """Return a chunk result that the simulator's next call does not change."""
    arrays: dict[str, Any] = {
        name: on_host(getattr(result, name)).copy()
        for name in ("reward", "terminated", "truncated", "valid", "success")
    }
    if result.success_at_end is not None:
        arrays["success_at_end"] = on_host(result.success_at_end).copy()
    return ChunkResult(observation=copied(result.observation), frames=result.frames, **arrays)


def taken(observation: Observation, rows: list[int]) -> Observation:
    """Return some rows."""
    return Observation(
        {name: on_host(picture)[rows] for name, picture in observation.images.items()},
        on_host(observation.state)[rows],
        [observation.instruction[row] for row in rows],
    )


def ended(result: ChunkResult) -> np.ndarray:
    """Return which rows ended, bool ``[N]``."""
    done: np.ndarray = (on_host(result.terminated) | on_host(result.truncated)).any(1)
    return done


def equal(one: Observation, other: Observation, message: str) -> None:
    """Assert that two observations have the same bits."""
    assert list(one.instruction) == list(other.instruction), (
        f"{message}: instructions {one.instruction} {other.instruction}"
    )
    assert (one.state == other.state).all(), f"{message}: states {one.state} {other.state}"
    for name in one.images:
        differing = int((one.images[name] != other.images[name]).sum())
        assert differing == 0, f"{message}: {differing} bytes of camera {name}"


@contextlib.contextmanager
def opened(plugin_name: str, config: Mapping[str, Any] | None = None, rows: int = 1) -> Iterator[Simulator]:
    """Run a simulator in this process for the length of a ``with`` block."""
    from rlvla.configs import choose, read_one

    plugin, options = choose("sim", {"use": plugin_name, **(config or {})}, None)
    simulator: Simulator = plugin.load()(read_one(plugin.config, options), rows)
    try:
        yield simulator
    finally:
        simulator.close()


def check_simulator(name: str, config: Mapping[str, Any] | None = None, **attributes: Any) -> None:
    """Run the suite on an installed simulator, in a notebook; see :func:`rlvla.testing.check`."""
    check(SimulatorConformance, name, config, **attributes)
