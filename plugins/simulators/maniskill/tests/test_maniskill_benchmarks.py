"""The benchmarks' tables, and what the committed results say."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_committed_table_is_what_the_results_say(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = BENCHMARKS / "results/maniskill_learning_state.json"
    shutil.copy(results, tmp_path)
    text = module("maniskill_learning").render(tmp_path / results.name)
    assert text == results.with_suffix(".md").read_text()
    assert (tmp_path / results.with_suffix(".png").name).read_bytes().startswith(b"\x89PNG")


def test_ppo_learns_pushcube_from_state_within_ten_minutes() -> None:
    runs = json.loads((BENCHMARKS / "results/maniskill_learning_state.json").read_text())["runs"]
    for one in runs.values():
        assert one["seconds"] <= 600
        assert one["end"]["interval"][0] > one["start"]["interval"][1]


def test_a_chunk_ends_where_maniskills_own_loop_does_and_costs_less_with_pictures() -> None:
    cost = json.loads((BENCHMARKS / "results/maniskill_sim.json").read_text())["cpu_time"]
    assert all(one["same_state"] for one in cost.values())
    assert cost["rgb"]["ratio"] > 3


def test_examples_of_the_learning_benchmark_are_there() -> None:
    for name in module("maniskill_learning").EXAMPLES.values():
        assert (BENCHMARKS.parent / "examples" / name).is_file()
