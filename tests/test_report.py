"""The page that a run leaves behind, made from real runs: what went well and what went wrong is on it."""

import html
import io
import json
import os
import re
import signal
import threading

import pytest
from rich.console import Console

import rlvla
from rlvla import checkpoint, cli, report
from rlvla.actors.trainer import TrainerActor
from rlvla.engine import Engine
from rlvla.errors import ConfigError, StallError
from rlvla.listeners.display import DisplayListener
from rlvla.testing.scheduler import Recorder
from rlvla.tracing import Span

PPO = {"use": "ppo", "window": 3, "minibatch_size": None}


def build(folder, sim=None, eval=None, listeners=(), scheduler="sync", **run):
    options = {"directory": str(folder), "name": "run", "slots": 3, "steps": 3, "device": "cpu", "threads": 1}
    quiet = {"without": ["display", "tensorboard"], "strict_listeners": True, "save_every": 0}
    return rlvla.build(
        sim={"use": "fake", "num_envs": 6, **(sim or {})},
        model="fake",
        algo=PPO,
        scheduler=scheduler,
        eval=eval,
        run={**options, **quiet, **run},
        listeners=listeners,
    )


def text(folder):
    page = (folder / "run" / "report.html").read_text()
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("<body>")[2])))


def test_a_run_leaves_a_report_that_needs_nothing_beside_it(tmp_path):
    with build(tmp_path, eval={"every": 2, "episodes": 4, "videos": 1}) as run:
        run.train()
    page, words = (tmp_path / "run" / "report.html").read_text(), text(tmp_path)
    assert not re.search(r"""(src|href)=['"](?!data:)""", page)
    assert "<script" not in page
    assert page.count("data:image/png;base64,") == 3
    assert page.count("data:video/mp4;base64,") == 2
    for wanted in (
        "Done: 3 training steps.",
        "95 % Wilson interval",
        "useful env steps/s",
        "schedule bound",
        "device bound",
        "of the schedule bound",
        "wait for a chunk (the generator)",
        "None was slow against its peers, none died.",
        "54 samples (100.0%)",
        "trainer process",
        "versions.rlvla-sched-sync",
        "window: 3",
    ):
        assert wanted in words, wanted


def test_the_command_makes_it_again_from_the_folder(tmp_path, capsys):
    with build(tmp_path, without=["display", "tensorboard", "report"]) as run:
        run.train()
    place = tmp_path / "run" / "report.html"
    assert not place.exists()
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.strip() == str(place)
    assert "Done: 3 training steps." in text(tmp_path)


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(ConfigError, match="holds no run that trained"):
        report.write(tmp_path)


def test_an_aborted_run_leaves_one_that_says_why_and_whom_it_waited_for(tmp_path):
    with build(tmp_path, sim={"fault": "hang", "fault_step": 5}) as run:
        run._started()._watch.min_stall_s = 0.5
        with pytest.raises(StallError):
            run.train()
    words = text(tmp_path)
    assert "Stopped after 1 training steps:" in words
    (named,) = re.findall(r"StallError: no progress: 'simulate' has waited \d s for (sim-\d)", words)
    assert re.search(rf"{named} +the run ended with its error, above", words)
    assert "None was slow" not in words


def test_a_worker_that_dies_is_counted_and_named(tmp_path):
    heard = Recorder()
    fault = {"fault": "die", "fault_step": 4, "fault_file": str(tmp_path / "died")}
    with build(tmp_path, sim=fault, listeners=[heard]) as run:
        run.train()
    assert [one["workers/restarts"] for one in heard.metrics] == [0.0, 1.0, 0.0]
    assert re.search(r"sim-\d died and was started again 1 times", text(tmp_path))


def test_a_worker_that_gets_ten_times_slower_is_named_once_and_the_run_goes_on(tmp_path, caplog):
    heard = Recorder()
    fault = {"fault": "slow", "fault_step": 2, "fault_file": str(tmp_path / "slow"), "step_seconds": 0.01}
    with build(tmp_path, sim=fault, listeners=[heard], steps=8) as run:
        run.train()
    named = re.findall(r"(sim-\d) is slow: its chunk steps take", caplog.text)
    assert len(named) == 1
    last = heard.metrics[-1]
    assert last["workers/slow"] == 1.0
    assert 4.0 <= last["workers/slowest_ratio"] <= 10.5
    assert re.search(rf"{named[0]} slow: its chunk steps take \d+\.\d times as long as its peers'", text(tmp_path))


def test_the_picture_shows_the_last_whole_steps_that_fit():
    def spans(step, calls):
        sims = [Span("sim-0", "simulate", n, n + 1, step) for n in range(calls)]
        return [*sims, Span("trainer", "train", calls, calls + 1, step)]

    few = [span for step in range(1, 8) for span in spans(step, 10)]
    assert {span.step for span in report.last_steps([*few, Span("sim-0", "simulate", 0, 1, 8)])} == {5, 6, 7}
    many = [span for step in range(1, 4) for span in spans(step, 1900)]
    assert {span.step for span in report.last_steps(many)} == {2, 3}
    assert len(report.last_steps(spans(1, 9000))) == 4000
    assert report.last_steps([Span("sim-0", "start", 0, 1, 0)]) == []


def test_time_to_a_target_is_that_of_the_first_evaluation_that_reached_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("run: {}\n")
    (folder / "manifest.json").write_text("{}")
    steps = [{"step": n, "time/step_s": 30.0, "env_steps": 100 * n} for n in (1, 2, 3)]
    evaluated = [
        {"step": n, "eval/success": rate, "eval/success_low": rate, "eval/success_high": rate, "eval/episodes": 4}
        for n, rate in ((1, 0.25), (2, 0.75), (3, 1.0))
    ]
    lines = [json.dumps(one) for one in (*steps, *evaluated)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    report.write(folder)
    words = text(tmp_path)
    assert "50% step 2, 1:00 min of training, 200 env steps (eval/success)" in words
    assert "95% step 3, 1:30 min of training, 300 env steps (eval/success)" in words
    assert "Under way, or ended without a word: 3 training steps are done." in words


def test_a_run_that_sigterm_ends_counts_the_step_that_its_checkpoint_has(tmp_path, monkeypatch):
    """The training step under way is done when it is saved, and nobody has heard of it."""
    train, save_after, saving, said = TrainerActor.train, Engine._save_after, threading.Event(), io.StringIO()

    def interrupted(self, tickets, step, of_all=None):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            assert saving.wait(60), "nobody heard of it"
        return train(self, tickets, step, of_all)

    async def saved(self, error):
        saving.set()
        await save_after(self, error)

    monkeypatch.setattr(TrainerActor, "train", interrupted)
    monkeypatch.setattr(Engine, "_save_after", saved)
    display = DisplayListener(console=Console(file=said, width=200))
    with build(tmp_path, listeners=[display]) as run, pytest.raises(KeyboardInterrupt):
        run.train()
    assert checkpoint.steps(run.directory) == [2]
    assert "Stopped after 2 training steps:" in text(tmp_path)
    assert re.search(r"steps +2 of 3", said.getvalue())
