"""The listeners that every run has, on synthetic events."""

from __future__ import annotations

import io
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvla import configs
from rlvla.histograms import Histogram
from rlvla.hooks import Hooks
from rlvla.listeners.display import DisplayListener, duration
from rlvla.listeners.jsonl import JsonlListener
from rlvla.listeners.tensorboard import TensorBoardListener
from rlvla.results import EvalEpisode, EvalResults, Progress, RunInfo

ONLY_EXTRA = configs.RunOptions(without=("jsonl", "tensorboard", "report", "display"), strict_listeners=True)


@pytest.fixture
def run(tmp_path: Path, four_plugins: dict[str, str]) -> RunInfo:
    config = configs.read({**four_plugins, "run": {"steps": 20}})
    return RunInfo("my-run", tmp_path, config, {})


def results(success: int = 3, n: int = 4) -> EvalResults:
    episodes = tuple(EvalEpisode(i, 0, "push", None, i, i < success, i < success, 10, 1.0) for i in range(n))
    return EvalResults(episodes, {}, policy_version=2, seconds=1.0)


def progress(step: int = 3, **changes: Any) -> Progress:
    fields: dict[str, Any] = {
        "step": step,
        "steps": 20,
        "phase": "rollout",
        "fraction": 0.5,
        "env_steps": 1000 * step,
        "episodes": 40 * step,
        "success": 0.25,
        "env_steps_per_second": 1234.0,
        "seconds": {"rollout": 3.21, "train": 1.0},
        "eta_seconds": 3725.0,
    }
    return Progress(**fields | changes)


# ---- metrics.jsonl --------------------------------------------------------------------------------------------------


def write(run: RunInfo, *steps: int, evaluate: bool = False) -> None:
    hooks = Hooks(ONLY_EXTRA, extra=[JsonlListener()])
    hooks.call("on_run_start", run=run)
    for step in steps:
        hooks.call(
            "on_step",
            step=step,
            metrics={"train/loss": 1.0 / step, "train/bad": math.nan, "rollout/n": 8},
            histograms={},
        )
        if evaluate:
            hooks.call("on_evaluation", step=step, results=results())
    hooks.call("on_run_end", run=run, error=None)


def read(run: RunInfo) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]


def test_every_step_and_evaluation_is_a_line_of_json(run: RunInfo) -> None:
    write(run, 1, 2, evaluate=True)
    first, evaluated, *_ = read(run)
    assert {name: value for name, value in first.items() if name != "time"} == {
        "step": 1,
        "train/loss": 1.0,
        "train/bad": None,
        "rollout/n": 8,
    }
    assert evaluated["eval/success"] == 0.75
    assert evaluated["eval/success_low"] < 0.75 < evaluated["eval/success_high"]
    assert len(read(run)) == 4


def test_a_resumed_run_has_no_step_twice(run: RunInfo) -> None:
    write(run, 1, 2, 3, 4, evaluate=True)
    path = run.directory / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 5, "tra')  # killed while writing
    write(run, 3, 4, 5)
    assert [line["step"] for line in read(run)] == [1, 1, 2, 2, 3, 4, 5]


def test_an_evaluation_first_thing_after_a_resume_keeps_its_steps_own_line(run: RunInfo) -> None:
    write(run, 1, 2, 3, evaluate=True)
    hooks = Hooks(ONLY_EXTRA, extra=[JsonlListener()])
    hooks.call("on_run_start", run=run)
    hooks.call("on_evaluation", step=2, results=results(4))
    hooks.call("on_run_end", run=run, error=None)
    lines = read(run)
    assert [("eval/success" in line, line["step"]) for line in lines] == [(False, 1), (True, 1), (False, 2), (True, 2)]
    assert lines[-1]["eval/success"] == 1.0


def test_histograms_are_one_compact_field_of_their_step(run: RunInfo) -> None:
    hooks = Hooks(ONLY_EXTRA, extra=[JsonlListener()])
    hooks.call("on_run_start", run=run)
    hooks.call("on_step", step=1, metrics={}, histograms={"train/staleness": Histogram.of_numbers([0, 1, 1])})
    assert read(run)[0]["histograms"] == {"train/staleness": {"edges": [0.0, 1.0, 2.0], "counts": [1, 2]}}


def test_lines_are_on_disk_while_the_run_goes_on(run: RunInfo) -> None:
    hooks = Hooks(ONLY_EXTRA, extra=[JsonlListener()])
    hooks.call("on_run_start", run=run)
    hooks.call("on_step", step=1, metrics={}, histograms={})
    assert len(read(run)) == 1
    hooks.call("on_run_end", run=run, error=None)


# ---- TensorBoard ----------------------------------------------------------------------------------------------------


def test_tensorboard_gets_scalars(run: RunInfo) -> None:
    pytest.importorskip("tensorboard")
    hooks = Hooks(ONLY_EXTRA, extra=[TensorBoardListener()])
    hooks.call("on_run_start", run=run)
    waits = Histogram.of_seconds([0.0, 0.00015, 0.3])
    hooks.call("on_step", step=1, metrics={"train/loss": 0.5}, histograms={"time/slot_wait_s": waits})
    hooks.call("on_evaluation", step=1, results=results())
    hooks.call("on_run_end", run=run, error=None)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    assert events.Scalars("train/loss")[0].value == 0.5
    drawn = events.Histograms("time/slot_wait_s_histogram")[0].histogram_value
    assert list(drawn.bucket) == list(waits.counts)
    assert list(drawn.bucket_limit) == list(waits.edges[1:])
    assert (drawn.num, drawn.sum) == (3, pytest.approx(0.30015))
    assert events.Scalars("eval/success")[0].value == 0.75


def test_without_tensorboard_one_line_says_so(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    hooks = Hooks(ONLY_EXTRA, extra=[TensorBoardListener()])
    with caplog.at_level(logging.INFO):
        hooks.call("on_run_start", run=run)
        hooks.call("on_step", step=1, metrics={"train/loss": 0.5}, histograms={})
        hooks.call("on_run_end", run=run, error=None)
    assert [record.getMessage() for record in caplog.records] == [
        "no TensorBoard files are written: pip install tensorboard"
    ]


# ---- display --------------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def display(terminal: bool = False) -> tuple[Hooks, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, force_terminal=terminal, width=100, highlight=False)
    listener = DisplayListener(console=console, clock=clock, seconds_between_lines=5.0)
    return Hooks(ONLY_EXTRA, extra=[listener]), text, clock


def test_without_a_terminal_a_plain_line_every_few_seconds(run: RunInfo) -> None:
    hooks, text, clock = display()
    hooks.call("on_run_start", run=run)
    for _ in range(100):  # 10 seconds
        hooks.call("on_progress", progress=progress())
        clock.now += 0.1
    lines = text.getvalue().splitlines()
    assert lines[0] == f"testsim + testmodel + testalgo + testscheduler, 20 steps, in {run.directory}"
    assert lines[1] == (
        "step 3/20, success 0.250 (last 120 of 120 episodes), 1,234 useful env steps/s, rollout 50%, "
        "rollout 3.2 s + train 1.0 s, 1:02:05 to go"
    )
    assert len(lines) in (3, 4)
    assert "\x1b" not in text.getvalue()


def test_before_the_first_episode_success_is_unknown(run: RunInfo) -> None:
    hooks, text, _ = display()
    hooks.call("on_run_start", run=run)
    hooks.call("on_progress", progress=progress(0, success=math.nan, eta_seconds=math.nan, seconds={}))
    assert "success - (no episode finished yet)" in text.getvalue()
    assert "nan" not in text.getvalue()


def test_in_a_terminal_a_live_panel(run: RunInfo) -> None:
    hooks, text, _ = display(terminal=True)
    hooks.call("on_run_start", run=run)
    hooks.call("on_progress", progress=progress(3, episodes=900))
    hooks.call("on_evaluation", step=3, results=results())
    hooks.call("on_run_end", run=run, error=None)
    shown = text.getvalue()
    assert "\x1b[" in shown
    assert "step 3: evaluation: success 0.750" in shown
    assert "last 200 of 900 episodes" in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_the_final_table_says_what_came_out_and_where_it_is(run: RunInfo, terminal: bool) -> None:
    hooks, text, clock = display(terminal)
    hooks.call("on_run_start", run=run)
    hooks.call("on_progress", progress=progress(0))
    clock.now += 100
    hooks.call("on_progress", progress=progress(20))
    hooks.call("on_evaluation", step=20, results=results())
    for name in ("metrics.jsonl", "step_20", "a.mp4", "report.html"):
        (run.directory / name).touch()
    hooks.call("on_checkpoint", step=20, path=run.directory / "step_20")
    hooks.call("on_video", step=20, path=run.directory / "a.mp4")
    hooks.call("on_run_end", run=run, error=None)
    table = text.getvalue().partition("my-run: done")[2].replace("\n", "")
    for wanted in (
        "20 of 20",
        "200 useful env steps/s",
        "1:40",
        "success 0.750",
        "metrics.jsonl",
        "a.mp4",
        "step_20",
        "report.html",
    ):
        assert wanted in table


def test_a_run_that_stopped_says_why_and_does_not_read_it_as_markup(run: RunInfo) -> None:
    hooks, text, _ = display()
    hooks.call("on_run_start", run=run)
    hooks.call("on_run_end", run=run, error=RuntimeError("worker [bold] 3 died\nmore"))
    assert "my-run: stopped: RuntimeError: worker [bold] 3 died" in text.getvalue()


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(one) for one in (0, 59.6, 61, 3725)] == ["0:00", "1:00", "1:01", "1:02:05"]
