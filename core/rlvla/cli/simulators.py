"""``rlvla simulators``: environments of their own, for simulators whose packages exclude everybody else's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlvla import environments, plugin
from rlvla.devices import visible_gpus
from rlvla.errors import ConfigError


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rlvla simulators",
        description="Make and list the environments of simulators that run in interpreters of their own.",
        epilog=f"They lie in {environments.home()} ({environments.VARIABLE} names another folder).",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="where the workers of each simulator run, and what is missing")
    listing.add_argument("--json", action="store_true", help="print JSON")
    install = commands.add_parser("install", help="make a simulator's environment, or complete it")
    install.add_argument("name", metavar="SIM", help="simulator plugin")
    install.add_argument("--dir", type=Path, help="folder to make it in, of your choice")
    install.add_argument("--variant", help="cpu or gpu; default: gpu where there is one")
    install.add_argument("--python", metavar="PATH", help="interpreter to make it from")
    options = parser.parse_args(words)
    if options.command == "list":
        return show(list(lines()), as_json=options.json)
    environments.install(
        plugin.find("sim", options.name),
        variant=options.variant or ("gpu" if visible_gpus() else "cpu"),
        directory=options.dir,
        python=options.python,
        say=_say,
    )
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


def lines() -> Iterator[dict[str, Any]]:
    """Yield, for each simulator, its name, interpreter and state."""
    for name in sorted(plugin.names("sim")):
        try:
            one = plugin.find("sim", name)
        except ConfigError as error:
            yield {"name": name, "interpreter": "", "state": str(error)}
            continue
        yield _line(one)


def _line(one: plugin.Plugin[Any, Any]) -> dict[str, Any]:
    here = {"name": one.name, "interpreter": sys.executable, "state": "runs in this interpreter"}
    if one.environment is None:
        return here
    apart = _apart(one)
    if environments.runs_apart(one, one.config()):
        return apart
    return {**here, "state": f"{here['state']}; some settings may need an environment of its own ({apart['state']})"}


def _apart(one: plugin.Plugin[Any, Any]) -> dict[str, Any]:
    place = environments.folder(one.name)
    found = environments.read(place)
    install = f"rlvla simulators install {one.name}"
    if found is None:
        return {"name": one.name, "interpreter": "", "state": f"not installed: {install}"}
    changed = environments.differences(one, found)
    state = f"{'; '.join(changed)}: {install}" if changed else f"ok, {found.variant}, Python {found.python}"
    return {"name": one.name, "interpreter": str(place / "bin" / "python"), "state": state, "packages": found.packages}


def show(found: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    """Print the lines, as a table or as JSON."""
    if as_json:
        print(json.dumps(found, indent=1))
        return 0
    rows = [("name", "interpreter", "state")]
    rows += [(one["name"], one["interpreter"] or "-", one["state"]) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
