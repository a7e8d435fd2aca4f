"""What benchmarks say of runs under several schedulers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

summary = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks/scheduler_runs.py"))["summary"]


@pytest.fixture
def file(tmp_path):
    """Five steps of 2, 10, 1, 9 and 4 s; the third plays nothing."""
    lines = [
        {
            "step": step,
            "env_steps": 0,
            "env_steps_per_second": played / seconds,
            "env_steps_per_second_device_bound": 2 * played / seconds,
            "env_steps_per_second_schedule_bound": played / seconds / efficiency if played else 0.0,
            "time/step_s": seconds,
            "train/loss": 1.0,
        }
        for step, (played, seconds, efficiency) in enumerate(
            zip((500, 1000, 0, 2000, 100), (2.0, 10.0, 1.0, 9.0, 4.0), (0.9, 0.5, 1.0, 1.0, 0.1), strict=True)
        )
    ]
    place = tmp_path / "metrics.jsonl"
    place.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 5, "env_st')
    return place


def test_rates_are_sums_over_sums(file):
    found = summary("async-rollout", file)
    assert found["steps"] == 5
    assert found["counted_steps"] == [1, 2, 3, 4]
    assert found["env_steps_per_second"] == pytest.approx(3100 / 24)
    assert found["env_steps_per_second_schedule_bound"] == pytest.approx(3100 / (5 + 9 + 0.4))
    assert found["overlap_efficiency"] == pytest.approx((5 + 9 + 0.4) / 24)
    assert found["time/step_s"] == 6
    assert "train/loss" not in found


def test_pipes_that_fill_and_run_dry_do_not_count(file):
    found = summary("full-async", file)
    assert found["counted_steps"] == [2, 3]
    assert found["env_steps_per_second"] == pytest.approx(2000 / 10)


def test_a_run_that_was_ended_too_early_failed(file):
    file.write_text(file.read_text().splitlines()[0] + "\n")
    assert summary("sync", file)["failed"] == "no step to count"
    assert summary("sync", file.parent / "none.jsonl") == {
        "scheduler": "sync",
        "steps": 0,
        "env_steps_per_second_by_step": [],
        "failed": "no step to count",
    }
