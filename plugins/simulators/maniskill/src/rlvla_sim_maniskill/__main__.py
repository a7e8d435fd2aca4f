"""``python -m rlvla_sim_maniskill TASK --output FILE``: write the header of a task that the package's table does not have.

For tasks of your own (``--module`` names the module that registers them) and for ManiSkill's tasks whose assets you have
downloaded. The file is what ``sim.task_file`` takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvla.errors import RlvlaError
from rlvla_sim_maniskill import survey


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rlvla_sim_maniskill", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="names that the tasks are registered by")
    parser.add_argument("--all", action="store_true", help="all that ManiSkill registers: the package's own table")
    parser.add_argument("--module", default="", help="module that registers them")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    if bool(options.tasks) == options.all:
        parser.error("give tasks, or --all")
    if not options.output.expanduser().parent.is_dir():
        parser.error(f"--output: no folder {options.output.parent}")
    try:
        found = survey.survey_all() if options.all else survey.survey(options.tasks, options.module)
    except RlvlaError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    options.output.expanduser().write_text(_by_lines(found))
    sys.stdout.write(f"{len(found['tasks'])} tasks in {options.output}\n")
    return 0


def _by_lines(found: Mapping[str, Any]) -> str:
    """Return JSON with a line for each task and each control mode."""

    def entry(name: str, value: Any) -> str:
        if name not in ("tasks", "actions"):
            return f"{json.dumps(name)}: {json.dumps(value)}"
        lines = [f"  {json.dumps(key)}: {json.dumps(one, separators=(',', ':'))}" for key, one in value.items()]
        return f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }"

    return "{\n" + ",\n".join(f" {entry(name, value)}" for name, value in found.items()) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
