"""The table of tasks equals the installed package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlvla_sim_libero import startup
from rlvla_sim_libero.task_file import instruction_of
from rlvla_sim_libero.tasks import STORED_STATES, SUITES

BASE = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


@pytest.mark.parametrize("suite", BASE)
def test_names_instructions_and_files_are_those_of_the_package(suite: str) -> None:
    startup.import_libero()
    with startup.quiet():
        from libero.libero import benchmark, get_libero_path

        published = benchmark.get_benchmark(suite)()
    assert [task.name for task in SUITES[suite]] == [task.name for task in published.tasks]
    assert [task.instruction for task in SUITES[suite]] == [task.language for task in published.tasks]
    for ours, theirs in zip(SUITES[suite], published.tasks, strict=True):
        path = Path(get_libero_path("bddl_files")) / theirs.problem_folder / theirs.bddl_file
        assert startup.task_file(ours).resolve() == path.resolve()


@pytest.mark.parametrize("suite", BASE)
def test_stored_states_are_as_many_as_the_table_says(suite: str) -> None:
    startup.import_libero()
    for task in SUITES[suite]:
        with np.load(startup.states_file(task), allow_pickle=False) as file:
            assert len(file["states"]) == STORED_STATES


def test_all_130_task_files_pass_the_light_reader() -> None:
    startup.import_libero()
    assert len(SUITES["libero_130"]) == len(set(SUITES["libero_130"])) == 130
    assert all(instruction_of(startup.task_file(task)) for task in SUITES["libero_130"])
