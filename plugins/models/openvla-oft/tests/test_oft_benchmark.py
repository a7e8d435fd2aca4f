"""The benchmark counts what it says, and runs at a small size."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rlvla_model_openvla_oft.header import DINO, SIGLIP, Header, LlamaShape

FILE = Path(__file__).parents[4] / "benchmarks/openvla_oft.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("openvla_oft_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FILE.parent)  # for what benchmarks share
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("cameras", "prompt", "vision", "projector", "llama"),
    [(1, 35, 0.37, 0.04, 4.56), (1, 128, 0.37, 0.04, 5.80), (2, 35, 0.74, 0.07, 8.00)],
)
def test_floating_point_operations_are_those_counted_by_hand(benchmark, cameras, prompt, vision, projector, llama):
    header = Header(
        folder=Path(), config={}, llama=LlamaShape(vocab_size=32064), dino=DINO, siglip=SIGLIP, image_size=224
    )
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
