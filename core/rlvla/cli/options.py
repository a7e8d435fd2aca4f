"""What several commands share: help of typed options, logging."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

from rlvla import configs, flags
from rlvla.errors import ConfigError
from rlvla.plugin import GROUPS, find, loggers, names


def plugin_help(source: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the help of every option of the chosen plugins, and of the sections that every run has."""
    chosen, _, problems = flags.split(words, GROUPS)
    if problems:
        raise ConfigError(problems)
    fields: dict[str, type[Any]] = {}
    lines = []
    for kind in GROUPS:
        value = source.get(kind)
        there = ", ".join(sorted(names(kind))) or "none installed"
        if value is None and kind not in chosen:
            lines.append(f"--{kind} NAME: {there}  (its options are shown once it is named)")
            continue
        plugin = configs.choose(kind, value, chosen.get(kind))[0] if value is not None else find(kind, chosen[kind])
        lines.append(f"--{kind} {plugin.name}  (there is: {there})")
        fields[kind] = plugin.config
    return "\n".join(lines) + "\n\n" + section_help({**fields, **configs.SECTIONS})


def section_help(fields: Mapping[str, type[Any]]) -> str:
    """Return ``--section.option TYPE``, its doc and its default, for each option of the config classes."""
    import tyro

    root = make_dataclass(
        "Options", [(name, kind, field(default_factory=kind)) for name, kind in fields.items()], kw_only=True
    )
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        tyro.cli(root, args=["--help"], prog="", description="")
    lines = [line.rstrip() for line in text.getvalue().replace("``", "").splitlines()]
    first = next(at for at, line in enumerate(lines) if line.strip() == f"{next(iter(fields))} options")
    return "\n".join(lines[first:]).rstrip()  # without tyro's own usage line and its box of --help


def take(words: Sequence[str], option: str, wanted: str) -> tuple[str | None, list[str]]:
    """Take ``--option VALUE`` or ``--option=VALUE`` out of words; returns its value and the other words."""
    rest = list(words)
    for at, word in enumerate(rest):
        head, equals, value = word.partition("=")
        if head == f"--{option}":
            if not equals:
                value = rest[at + 1] if at + 1 < len(rest) else ""
            if not value or value.startswith("--"):
                raise ConfigError(f"--{option}: missing; wanted {wanted}")
            return value, rest[:at] + rest[at + (1 if equals else 2) :]
    return None, rest


def run_folder(words: Sequence[str], command: str) -> Path:
    """Return the one word that is left: a run's folder."""
    if not words or words[0].startswith("-"):
        raise ConfigError(f"RUN: missing; wanted a run's folder: rlvla {command} runs/my-run")
    if len(words) > 1:
        raise ConfigError(f"{words[1]}: not an option of rlvla {command}; see rlvla {command} --help")
    directory = Path(words[0]).expanduser()
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such folder")
    return directory


def read_overrides(words: Sequence[str], sections: Sequence[str]) -> dict[str, Any]:
    """Return flags as nested settings of ``sections``, to go on top of a checkpoint's; its reader checks the values."""
    chosen, rest, problems = flags.split(words, GROUPS)
    overrides: dict[str, Any] = {}
    problems += flags.merge(rest, configs.SECTIONS, overrides)
    for kind, name in chosen.items():
        overrides.setdefault(kind, {})["use"] = name
    for name in overrides:
        if name not in sections:
            problems.append(f"--{name}: not an option here; there is: {', '.join(f'--{one}.*' for one in sections)}")
    if problems:
        raise ConfigError(problems)
    return overrides


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the present ``sys.stderr``, which a live display replaces while it is shown."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        pass


def log_to_stderr() -> None:
    """Show notes of rlvla and its plugins, and everybody's warnings."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    for name in loggers():
        logging.getLogger(name).setLevel(logging.INFO)
