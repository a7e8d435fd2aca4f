"""``python -m rlvla.cli.doctor_worker SIM CONFIG FILE``: a simulator's own checks as JSON, in the interpreter of its workers."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from rlvla.configs import read_one
from rlvla.plugin import find, load_object


def main() -> None:
    name, config, answer = sys.argv[1:]
    plugin = find("sim", name)
    assert plugin.doctor is not None
    checks = [
        dataclasses.asdict(check) for check in load_object(plugin.doctor)(read_one(plugin.config, json.loads(config)))
    ]
    Path(answer).write_text(json.dumps(checks))


if __name__ == "__main__":
    main()
