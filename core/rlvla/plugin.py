"""Plugins: what an entry point names, and how one is found.

Drivers act: stevedore finds exactly one simulator, model, algorithm and scheduler by name, and only that entry point is
imported. Listeners (hooks) are pluggy's business: :mod:`rlvla.hooks`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, Generic, Literal, TypeVar

from packaging.requirements import Requirement
from stevedore.driver import DriverManager

from rlvla.environments import Environment
from rlvla.errors import ConfigError, IncompatiblePlugin, UnknownPlugin

Kind = Literal["sim", "model", "algo", "scheduler"]
GROUPS: dict[Kind, str] = {
    "sim": "rlvla.simulators",
    "model": "rlvla.models",
    "algo": "rlvla.algorithms",
    "scheduler": "rlvla.schedulers",
}
_DISTRIBUTION = {"sim": "rlvla-sim", "model": "rlvla-model", "algo": "rlvla-algo", "scheduler": "rlvla-sched"}

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True)
class Plugin(Generic[C, T]):
    """What an entry point names: a light descriptor of a heavy class.

    Example:
        >>> plugin = Plugin(config=LiberoConfig, target="rlvla_sim_libero.simulator:LiberoSimulator", describe=describe)

    The module that holds it imports neither torch nor a simulator, so that a laptop can check a cluster run.
    """

    config: type[C]
    """A ``@rlvla.config`` class whose defaults construct."""
    target: str
    """``"module:Class"``, imported only in the process that runs it; or a function that takes the same and returns one."""
    describe: Callable[[C], Any]
    """Config to spec (:mod:`rlvla.specs`), from light code and JSON headers. Raises ``ConfigError`` for settings that
    cannot work."""
    assume: Callable[[C], Any] | None = None
    """Models only: config to the spec of a checkpoint as it is published, for plans where the one that it names is not here; the
    function returns None where it is. None: there is nothing to assume."""
    listener: str | None = None
    """Module of hook implementations that listen when this plugin is chosen."""
    doctor: str | None = None
    """``"module:function"``, config to ``Check``s: what ``rlvla doctor`` looks at, run in a worker process."""
    preflight: str | None = None
    """Simulators only: ``"module:function"``, config to a list of what this machine lacks, by files and settings alone; asked
    in the workers' interpreter before a run loads a model, on each machine that will have workers, so it takes a second at most.
    :mod:`rlvla.preflight`."""
    measured_by: str = ""
    """Simulators only: the name of the one that the success of a policy trained on this one is measured on; empty: this one.
    Options of a config class that both are made of are taken along."""
    when_measuring: Mapping[str, Any] = field(default_factory=dict)
    """Simulators only: options of evaluations on this one, where nobody gives them: what makes episodes those of another."""
    drawing: str = ""
    """Simulators only: what chooses or mends what draws its pictures, where ``rlvla doctor`` sees none."""
    environment: Environment | None = None
    """Simulators only: what the interpreter of its own consists of that its workers run in; None: they run in this one."""
    apart: Callable[[C], bool] | None = None
    """Whether these settings need that interpreter, from light code; None: all do."""
    judges: tuple[str, ...] = ()
    """Requirements whose other releases run too, with other numbers: the manifest's is what pip installs, and where another
    one is found, the plugin itself warns of it or refuses it when it starts."""
    name: str = ""
    """Filled in by :func:`find`: the entry point's name."""
    distribution: str = ""
    """Filled in by :func:`find`: the distribution that registers it."""

    def load(self) -> type[T]:
        """Import and return the class, after checking what its distribution requires.

        Raises:
            IncompatiblePlugin: a requirement is missing or of a wrong version.
        """
        if unmet := self.unmet():
            raise IncompatiblePlugin(
                f"{self.distribution} needs {'; '.join(unmet)}: pip install -U {self.distribution}"
            )
        return load_object(self.target)  # type: ignore[no-any-return]

    def unmet(self) -> list[str]:
        """Return each requirement that is missing, or found in a release that the plugin does not judge itself."""
        return unmet_requirements(self.distribution, but=self.judges) if self.distribution else []


def load_object(target: str) -> Any:
    """Return what ``"module:name"`` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


class _Driver(DriverManager[Any]):
    """Takes the entry points that :func:`find` has read from installed metadata: 6 ms where 200 distributions are installed.

    stevedore's disk cache rounds mtimes to float32 (steps of 128 s) and drops ``EntryPoint.dist``, so a re-installed
    plugin can stay invisible and has no version to check.
    """

    def __init__(self, kind: Kind, entry: metadata.EntryPoint) -> None:
        self._entry = entry
        super().__init__(GROUPS[kind], entry.name, invoke_on_load=False)

    def list_entry_points(self) -> list[metadata.EntryPoint]:
        return [self._entry]


def find(kind: Kind, name: str) -> Plugin[Any, Any]:
    """Return the plugin that an installed distribution registers under ``name``; imports only its descriptor.

    Raises:
        UnknownPlugin: no such name; the close one, or the package to install, is named.
        IncompatiblePlugin: the plugin wants another rlvla, or its descriptor cannot be imported.
    """
    entries = [entry for entry in metadata.entry_points(group=GROUPS[kind]) if entry.name == name]
    if not entries:
        raise UnknownPlugin(_unknown(kind, name, sorted(names(kind))))
    owners = [f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value for entry in entries]
    if len(entries) > 1:  # stevedore sees this too, but cannot name objects that are not classes
        raise IncompatiblePlugin(
            f"{len(entries)} distributions register {kind} {name!r}, uninstall all but one: {', '.join(owners)}"
        )
    label = entries[0].dist.name if entries[0].dist else ""
    if label and (unmet := unmet_requirements(label, only="rlvla")):
        raise IncompatiblePlugin(f"{owners[0]} needs {unmet[0]}")
    try:
        plugin = _Driver(kind, entries[0]).driver
    except Exception as error:
        raise IncompatiblePlugin(
            f"{kind} plugin {name!r} ({owners[0]}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(plugin, Plugin):
        raise IncompatiblePlugin(
            f"entry point {entries[0].value!r} names a {type(plugin).__name__}, wanted an rlvla.Plugin"
        )
    return replace(plugin, name=name, distribution=label)


def find_by_config(kind: Kind, config: object) -> Plugin[Any, Any]:
    """Return the plugin whose config class made ``config`` (for ``build(sim=LiberoConfig(...))``)."""
    package = type(config).__module__.partition(".")[0]
    for entry in metadata.entry_points(group=GROUPS[kind]):
        if entry.module.partition(".")[0] == package:
            plugin = find(kind, entry.name)
            if plugin.config is type(config):
                return plugin
    raise UnknownPlugin(
        f"{kind}: no installed plugin has the config class {type(config).__module__}.{type(config).__qualname__}; "
        f"give a name, a dictionary with 'use', or a plugin's config (installed: {', '.join(sorted(names(kind))) or 'none'})"
    )


def names(kind: Kind) -> set[str]:
    """Return the names that installed distributions register; nothing is imported."""
    return {entry.name for entry in metadata.entry_points(group=GROUPS[kind])}


def loggers() -> set[str]:
    """Return the names of rlvla's logger and of each plugin's package."""
    entries = (entry for group in GROUPS.values() for entry in metadata.entry_points(group=group))
    return {"rlvla", *(entry.module.partition(".")[0] for entry in entries)}


@dataclass(frozen=True)
class Installed:
    """A line of ``rlvla plugins``."""

    kind: Kind
    name: str
    distribution: str
    version: str
    state: str
    """``ok``, or what is wrong."""
    summary: str = ""
    listener: str | None = None


def installed() -> Iterator[Installed]:
    """Yield every registered plugin with its state; imports descriptors only."""
    for kind, group in GROUPS.items():
        for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
            summary, state, listener = "", "ok", None
            try:
                plugin = find(kind, entry.name)
                summary = (plugin.config.__doc__ or "").strip().partition("\n")[0]
                listener = plugin.listener
                if unmet := plugin.unmet():
                    state = f"needs {'; '.join(unmet)}"
            except ConfigError as error:
                state = str(error)
            name, version = (entry.dist.name, entry.dist.version) if entry.dist else ("?", "?")
            yield Installed(kind, entry.name, name, version, state, summary, listener)


def unmet_requirements(
    distribution: str, only: str | None = None, extra: str = "", but: Collection[str] = ()
) -> list[str]:
    """Return ``"numpy>=2 (found 1.26.4)"`` for each requirement that the installed versions do not meet.

    Args:
        distribution: its name.
        only: look at the requirement on this distribution alone.
        extra: count those of this extra too.
        but: distributions of which any release does.
    """
    unmet = []
    for text in metadata.requires(distribution) or []:
        requirement = Requirement(text)
        if only is not None and requirement.name.lower().replace("_", "-") != only:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            unmet.append(f"{wanted} (not installed)")
            continue
        if requirement.name not in but and not requirement.specifier.contains(version, prereleases=True):
            unmet.append(f"{wanted} (found {version})")
    return unmet


def _unknown(kind: Kind, name: str, there: list[str]) -> str:
    text = f"no {kind} plugin {name!r} is installed; installed: {', '.join(there) or 'none'}."
    if close := difflib.get_close_matches(name, there, n=1):
        return f"{text} Did you mean {close[0]!r}?"
    return f"{text} Try: pip install {_DISTRIBUTION[kind]}-{name}"
