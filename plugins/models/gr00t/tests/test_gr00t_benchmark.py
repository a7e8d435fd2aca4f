"""The benchmark counts what it says, and runs at a small size."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rlvla_model_gr00t.header import Header, HeadShape, QwenShape, SiglipShape

FILE = Path(__file__).parents[4] / "benchmarks/gr00t.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("gr00t_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FILE.parent)  # for what benchmarks share
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("cameras", "tokens", "vision", "language", "context", "crossing", "step"),
    [
        (1, 306, 0.22, 0.38, 0.13, 0.031, 0.042),
        (2, 570, 0.44, 0.72, 0.24, 0.057, 0.043),
        (3, 818, 0.66, 1.05, 0.35, 0.082, 0.044),
    ],
)
def test_floating_point_operations_are_those_counted_by_hand(
    benchmark, cameras, tokens, vision, language, context, crossing, step
):
    header = Header(
        folder=Path(), config={}, siglip=SiglipShape(), qwen=QwenShape(), head=HeadShape(), image_token=151669
    )
    parts = {name: one / 1e12 for name, one in benchmark.flops(header, tokens, cameras, 4).items()}
    assert parts["vision"] == pytest.approx(vision, abs=0.006)
    assert parts["language"] == pytest.approx(language, rel=0.03)  # by hand, attention was not causal
    assert parts["context"] == pytest.approx(context, abs=0.006)
    assert parts["keys_and_values"] == pytest.approx(crossing, abs=0.0006)
    assert parts["one_step"] == pytest.approx(step, abs=0.0015)
    assert parts["denoising"] == 4 * parts["one_step"]


def test_the_small_size_runs_and_its_numbers_hold(benchmark, tmp_path, monkeypatch):
    parts = "numerics,graphs"
    monkeypatch.setattr(
        sys, "argv", ["benchmark", "--tiny", "--out", str(tmp_path), "--parts", parts, "--repeats", "1"]
    )
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda number: None)
    benchmark.main()
    found = json.loads((tmp_path / "gr00t.json").read_text())
    for what in ("features", "head_actions"):
        assert found["numerics"][f"{what}_plain_rms"] < 1e-5
        assert found["numerics"][f"{what}_fast_rms"] == 0.0
    assert found["numerics"]["head_logp_fast_rms"] < 1e-4
    assert found["graphs"]["largest_difference"] == [0.0] * 4
    assert all(one > 0.001 for one in found["graphs"]["change_by_publication"][1:])
    assert set(found["commits"]) == {"floors", "numerics", "graphs"}
    assert f"## numerics\n\nMeasured on commit {found['commits']['numerics']}." in (tmp_path / "gr00t.md").read_text()


@pytest.mark.parametrize("name", ["gr00t", "openvla_oft"])
def test_results_say_the_whole_call_first_and_their_commits(benchmark, name):
    results = FILE.parent / "results"
    found, report = (json.loads((results / f"{name}.json").read_text()), (results / f"{name}.md").read_text())
    assert report == benchmark.model_parts.markdown(found)
    assert "| batch | act, ms | network, graph, ms | " in report
    assert f"| {found['inference'][-1]['act_ms']:.4g} | {found['inference'][-1]['graph_ms']:.4g} | " in report
    assert {*found["commits"]} >= {"floors", "inference", "training", "numerics", "graphs", "kernels"}
