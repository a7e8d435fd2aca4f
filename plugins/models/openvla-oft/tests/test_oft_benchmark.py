"""The benchmark counts what it says, and runs at a small size."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rlvla_model_openvla_oft.header import DINO, SIGLIP, Header, LlamaShape

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


def loaded(name: str):
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def benchmark():
    return loaded("openvla_oft")


@pytest.mark.parametrize(
    ("cameras", "prompt", "vision", "projector", "llama"),
    [(1, 35, 0.37, 0.04, 4.56), (1, 128, 0.37, 0.04, 5.80), (2, 35, 0.74, 0.07, 8.00)],
)
def test_floating_point_operations_are_those_counted_by_hand(benchmark, cameras, prompt, vision, projector, llama):
    header = Header(Path(), {}, LlamaShape(vocab_size=32064), DINO, SIGLIP, 224)
    parts = benchmark.flops(header, prompt, cameras, 56)
    assert {name: round(one / 1e12, 2) for name, one in parts.items()} == pytest.approx(
        {"vision": vision, "projector": projector, "llama": llama}, abs=0.011
    )


def test_the_small_size_runs_and_its_numbers_hold(benchmark, tmp_path, monkeypatch):
    parts = "numerics,graphs"
    monkeypatch.setattr(
        sys, "argv", ["benchmark", "--tiny", "--out", str(tmp_path), "--parts", parts, "--repeats", "1"]
    )
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda number: None)
    benchmark.main()
    found = json.loads((tmp_path / "openvla_oft.json").read_text())
    assert 0 < found["numerics"]["fast_over_plain"] < 1.5
    assert found["numerics"]["clear_that_agree"] == found["numerics"]["clear"] > 0
    assert found["graphs"]["largest_difference"] == [0.0] * 4
    assert all(one > 0.01 for one in found["graphs"]["change_by_publication"][1:])
    assert "## numerics" in (tmp_path / "openvla_oft.md").read_text()


def test_rates_of_a_run_are_sums_over_sums_and_its_bounds_its_own():
    """Steps of 2, 10, 1 and 9 s; the third ends without env steps, and the run's own metrics begin there."""
    env_steps, seconds = (500, 1500, 1500, 3500), (2.0, 10.0, 1.0, 9.0)
    lines = [
        {"step": step, "env_steps": done, "env_steps_per_second": 7.0, "time/step_s": s, "time/overlap_efficiency": 0.1}
        for step, (done, s) in enumerate(zip(env_steps, seconds, strict=True))
    ]
    for line, efficiency in zip(lines[2:], (0.2, 0.9), strict=True):
        line |= {"env_steps_per_second_run_device_bound": 1000 * efficiency, "time/run_overlap_efficiency": efficiency}
    found = loaded("openvla_oft_grpo").summary(lines)
    assert found["env_steps_per_second"] == 3000 / 20
    assert found["env_steps_of_each_step"] == [1000, 0, 2000]
    assert found["env_steps_per_second_run_device_bound"] == 900
    assert found["time/run_overlap_efficiency"] == 0.9
    assert found["time/step_s"] == 20 / 3
    assert "time/overlap_efficiency" not in found
