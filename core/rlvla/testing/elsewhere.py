"""A suite's checks in the interpreter of a simulator's own environment, where its packages are.

``python -m rlvla.testing.elsewhere NAME CONFIG ATTRIBUTES FILE`` runs there; :func:`outcomes_elsewhere` starts it from here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvla import environments
from rlvla.configs import read_one
from rlvla.plugin import find
from rlvla.testing.simulator import SimulatorConformance
from rlvla.testing.suite import outcomes


def outcomes_elsewhere(
    name: str, config: Mapping[str, Any], *, timeout_s: float = 600.0, **attributes: Any
) -> dict[str, str]:
    """Run the simulator suite's checks in the environment of a plugin; returns what :func:`rlvla.testing.suite.outcomes` does.

    Args:
        name: the plugin's.
        config: options to run it with.
        timeout_s: seconds for all of them.
        attributes: further class attributes of the suite, as plain data.

    Raises:
        SimulatorError: the environment is not installed.
        RuntimeError: the process ended before it was done; with what it said.
    """
    plugin = find("sim", name)
    python = environments.interpreter(plugin, read_one(plugin.config, config)) or sys.executable
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "outcomes.json")
        command = [python, "-m", "rlvla.testing.elsewhere", name, json.dumps(config), json.dumps(attributes), str(file)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=environments.variables(),
        )
        if not file.exists():
            raise RuntimeError(f"the checks ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        found: dict[str, str] = json.loads(file.read_text())
        return found


def main() -> None:
    name, config, told, file = sys.argv[1:]
    attributes = json.loads(told)
    attributes["variations"] = tuple(_options(name, one) for one in attributes.get("variations", ()))
    found = outcomes(SimulatorConformance, name, _options(name, json.loads(config)), **attributes)
    Path(file).write_text(json.dumps(found))
    os._exit(0)  # renderers print harmless errors when the interpreter tears them down


def _options(name: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as a config has them: JSON knows no tuples."""
    made = read_one(find("sim", name).config, plain)
    return {option: getattr(made, option) for option in plain}


if __name__ == "__main__":
    main()
