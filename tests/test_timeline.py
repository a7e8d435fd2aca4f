"""Spans on disk, and what is made of them."""

import json
import time
from itertools import pairwise

import pytest

import rlvla
from rlvla import cli, timeline
from rlvla.errors import ConfigError
from rlvla.tracing import FILE, OLDER, Span, SpanFile, read

SPANS = [
    Span("generator", "generate", 1_000_000, 3_000_000, 1, -1, 0, 4),
    Span("sim-10", "simulate", 3_000_000, 9_000_000, 1, 10, 0, 2),
    Span("sim-2", "simulate", 3_000_000, 5_000_000, 1, 2, 0, 2),
    Span("trainer", "train", 9_000_000, 19_000_000, 1, -1, 1, 8),
    Span("sim-2", "restart", 12_000_000, 12_000_000, 2, -1, -1, 0),
    Span("trainer", "train", 19_000_000, 21_000_000, 2, -1, 2, 8),
]


def written(folder, spans=SPANS, limit=10**9):
    file = SpanFile(folder, limit)
    for span in spans:
        file.add(span)
        file.flush()
    return folder


def test_spans_come_back_in_wall_clock_time(tmp_path):
    before, began = time.time_ns(), time.monotonic_ns()
    written(tmp_path, [Span("trainer", "train", began, began + 5, 1)])
    (span,) = read(tmp_path)
    assert before - 1e6 <= span.began_ns <= time.time_ns() + 1e6  # the two clocks are read one after the other
    assert span.ended_ns - span.began_ns == 5
    assert span._replace(began_ns=0, ended_ns=0) == Span("trainer", "train", 0, 0, 1)


def test_a_full_timeline_keeps_what_happened_last(tmp_path):
    spans = [Span("sim-0", "simulate", n, n + 1, 1 + n // 10, 0, 0, 1) for n in range(500)]
    written(tmp_path, spans, limit=20_000)
    assert sum((tmp_path / name).stat().st_size for name in (FILE, OLDER)) <= 20_000
    kept = read(tmp_path)
    assert 50 < len(kept) < 250
    assert [span.step for span in kept] == [span.step for span in spans[-len(kept) :]]


def test_no_timeline_is_written_where_none_is_wanted(tmp_path):
    written(tmp_path, limit=0)
    assert not list(tmp_path.iterdir())


def test_a_timeline_that_cannot_be_written_ends_with_a_warning_and_not_the_run(tmp_path, caplog):
    written(tmp_path / "nowhere")
    assert caplog.text.count("the timeline ends here: [Errno 2]") == 1


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
    written(tmp_path)
    path = tmp_path / FILE
    path.write_text(path.read_text()[:-10])
    assert len(read(tmp_path)) == len(SPANS) - 1


def test_steps_that_a_resumed_run_does_again_count_once(tmp_path):
    written(tmp_path, [Span("trainer", "train", 0, 1, step, rows=1) for step in (1, 2, 3)])
    written(tmp_path, [Span("trainer", "train", 0, 1, step, rows=2) for step in (2, 3, 4)])
    assert [(span.step, span.rows) for span in read(tmp_path)] == [(1, 1), (2, 2), (3, 2), (4, 2)]


def test_perfetto_gets_a_named_thread_for_each_actor_in_microseconds():
    trace = timeline.perfetto(SPANS)
    names = {one["tid"]: one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "thread_name"}
    assert list(names.values()) == ["trainer", "generator", "sim-2", "sim-10"]
    complete = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert len(complete) == len(SPANS) - 1
    first = next(one for one in complete if names[one["tid"]] == "sim-10")
    assert (first["ts"], first["dur"]) == (2000.0, 6000.0)
    assert first["args"] == {"step": 1, "slot": 10, "version": 0, "rows": 2}
    (death,) = [one for one in trace["traceEvents"] if one["ph"] == "i"]
    assert (death["name"], names[death["tid"]], death["ts"]) == ("restart", "sim-2", 11000.0)


def test_a_gantt_picture_has_a_named_row_for_each_actor_and_a_colour_for_each_phase():
    axes = timeline.gantt(SPANS, "a run").axes[0]
    assert [one.get_text() for one in axes.get_yticklabels()] == ["trainer", "generator", "sim-2", "sim-10"]
    assert [one.get_text() for one in axes.get_legend().get_texts()] == ["simulate", "generate", "train", "restart"]
    assert axes.get_xlabel() == "time (s)"
    bars = {one.get_label(): one for one in axes.collections if not one.get_label().startswith("_")}
    (train,) = {tuple(path.vertices[:, 0]) for path in bars["train"].get_paths()[:1]}
    assert (min(train), max(train)) == pytest.approx((0.008, 0.018))


def test_many_actors_are_named_as_far_as_names_fit():
    spans = [Span(f"sim-{n}", "simulate", 0, 10**9, 1, n) for n in range(500)]
    figure = timeline.gantt(spans)
    assert len(figure.axes[0].get_yticklabels()) <= 48
    assert figure.get_figheight() <= 14


def test_the_command_says_who_worked_how_much_and_draws(tmp_path, capsys):
    written(tmp_path)
    assert cli.main(["timeline", str(tmp_path), "--steps", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["trainer", "55.6%", "train", "55.6%"]
    assert [line.split()[0] for line in lines] == ["trainer", "generator", "sim-2", "sim-10"]
    picture, trace = tmp_path / "gantt.png", tmp_path / "trace.json"
    assert cli.main(["timeline", str(tmp_path), "--steps", "2:", "--out", str(picture), "--perfetto", str(trace)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert {one["args"]["step"] for one in json.loads(trace.read_text())["traceEvents"] if "ts" in one} == {2}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN: missing; wanted a run's folder: rlvla timeline runs/my-run"),
        (["{}", "--steps", "7:9"], "--steps: no spans of steps 7 to 9; there are steps 1 to 2"),
        (["{}", "--steps", "a"], "--steps: got 'a', wanted training steps, as in 3:6, 3: or 3"),
        (["{}/nowhere"], "no such folder"),
        (["{}", "--picture", "x"], "--picture: not an option of rlvla timeline"),
    ],
)
def test_what_the_command_cannot_do_is_said(tmp_path, capsys, words, said):
    written(tmp_path)
    assert cli.main(["timeline", *(word.format(tmp_path) for word in words)]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_spans_is_told_apart(tmp_path):
    with pytest.raises(ConfigError, match=r"no spans; was the run made with run\.timeline_mb 0"):
        timeline.load(tmp_path)


@pytest.mark.parametrize("scheduler", ["sync", "full-async"])
def test_a_run_leaves_the_spans_of_every_actor(tmp_path, scheduler):
    """Real actors: what each worked lies within the run, does not overlap, and says what it was for."""
    began = time.time_ns()
    with rlvla.build(
        sim={"use": "fake", "num_envs": 6},
        model="fake",
        algo={"use": "ppo", "window": 3, "minibatch_size": None},
        scheduler=scheduler,
        run={
            "directory": str(tmp_path),
            "name": "run",
            "slots": 3,
            "steps": 3,
            "device": "cpu",
            "threads": 1,
            "without": ["display", "tensorboard", "report"],
        },
    ) as run:
        run.train()
    spans = read(tmp_path / "run")
    assert {span.actor for span in spans} == {"controller", "trainer", "generator", "sim-0", "sim-1", "sim-2"}
    assert all(began - 1e6 <= span.began_ns <= span.ended_ns <= time.time_ns() + 1e6 for span in spans)
    for actor in {span.actor for span in spans} - {"controller"}:
        mine = sorted((span.began_ns, span.ended_ns) for span in spans if span.actor == actor)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(mine)), actor
    chunks = [span for span in spans if span.phase == "simulate"]
    assert sum(span.rows for span in chunks) >= 3 * 6 * 3
    assert all(span.actor == f"sim-{span.slot}" and span.rows == 2 and span.version >= 0 for span in chunks)
    assert [(span.step, span.version, span.rows) for span in spans if span.phase == "train"] == [
        (1, 1, 6),
        (2, 2, 6),
        (3, 3, 6),
    ]
