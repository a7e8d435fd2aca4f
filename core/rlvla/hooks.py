"""The listeners of one run: who they are, how they are called, what happens when one fails.

Listeners are classes or modules of ``@rlvla.hookimpl`` functions: the built-in ones, those that installed distributions
register as entry points ``rlvla.hooks``, those of chosen plugins (``Plugin.listener``) and those passed to the run. A
class is called without arguments, so that each run has a listener of its own; a module is shared.
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy

from rlvla import hookspecs
from rlvla.errors import ConfigError, IncompatiblePlugin
from rlvla.plugin import Plugin, load_object

if TYPE_CHECKING:
    from rlvla.configs import RunOptions

log = logging.getLogger(__name__)

GROUP = "rlvla.hooks"
BUILT_IN = {
    "jsonl": "rlvla.listeners.jsonl:JsonlListener",
    "tensorboard": "rlvla.listeners.tensorboard:TensorBoardListener",
    "report": "rlvla.listeners.report:ReportListener",
    "display": "rlvla.listeners.display:DisplayListener",
}
MAX_FAILURES = 3


class Hooks:
    """One pluggy manager; made when a run is built, so that a listener that cannot work is known before it starts.

    Example:
        >>> hooks = Hooks(config.run, extra=[my_listener], plugins=[choice.plugin for choice in choices])
        >>> hooks.call("on_step", step=1, metrics={"train/loss": 0.3}, histograms={})
    """

    def __init__(
        self, options: RunOptions, extra: Iterable[object] = (), plugins: Iterable[Plugin[Any, Any]] = ()
    ) -> None:
        """Import and register all listeners.

        Args:
            options: ``without`` names listeners that are not even imported; ``strict_listeners`` lets their errors pass.
            extra: listeners of this run alone: modules, objects, or classes.
            plugins: the chosen drivers; those with a ``listener`` listen under the plugin's name.

        Raises:
            ConfigError: ``without`` names what is not there.
            IncompatiblePlugin: a listener cannot be imported, or has a hook or an argument that does not exist.
        """
        self.failures: Counter[str] = Counter()
        """Listener's name to how often it raised."""
        self._strict = options.strict_listeners
        self._manager = pluggy.PluginManager("rlvla")
        self._manager.add_hookspecs(hookspecs)
        entries = list(metadata.entry_points(group=GROUP))
        drivers = [plugin for plugin in plugins if plugin.listener]
        known = [*BUILT_IN, *(entry.name for entry in entries), *(plugin.name for plugin in drivers)]
        for name in options.without:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"There is: {', '.join(known)}"
                raise ConfigError(f"run.without: no listener {name!r} is installed. {hint}")
            self._manager.set_blocked(name)
        for name, target in BUILT_IN.items():
            self._load(name, target, "rlvla")
        for entry in entries:
            self._load(entry.name, entry.value, entry.dist.name if entry.dist else entry.value)
        for plugin in drivers:
            self._load(plugin.name, plugin.listener or "", plugin.distribution or plugin.target)
        for one in extra:
            self.add(one)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise IncompatiblePlugin(_unknown_hook(error)) from error

    @property
    def names(self) -> list[str]:
        """Listeners that still listen, in the order in which they are called."""
        return [name for name, listener in self._manager.list_name_plugin() if listener is not None]

    def add(self, listener: object) -> None:
        """Let a module, object, or class (it is called) listen from now on."""
        made = listener() if inspect.isclass(listener) else listener
        self._register(made, name_of(listener), repr(listener))

    def wants(self, hook: str) -> bool:
        """Say whether anybody listens to a hook, where its arguments cost something to make."""
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    def call(self, hook: str, /, **arguments: Any) -> None:
        """Call one hook of every listener; one that raises is warned about, and switched off after three times.

        Args:
            hook: a name of :mod:`rlvla.hookspecs`.
            arguments: all arguments of that hook.
        """
        implementations = getattr(self._manager.hook, hook).get_hookimpls()
        for implementation in sorted(implementations, key=lambda one: (one.trylast, not one.tryfirst)):
            try:
                implementation.function(*(arguments[name] for name in implementation.argnames))
            except (Exception, SystemExit) as error:
                name = implementation.plugin_name
                if self._strict:
                    error.add_note(f"raised by the listener {name!r} in {hook}; strict_listeners is on")
                    raise
                self._failed(name, implementation.plugin, hook, error)

    def _failed(self, name: str, listener: object, hook: str, error: BaseException) -> None:
        self.failures[name] += 1
        first = self.failures[name] == 1  # its traceback once, not three times
        log.warning("listener %r failed in %s: %s: %s", name, hook, type(error).__name__, error, exc_info=first)
        if self.failures[name] == MAX_FAILURES and self._manager.is_registered(listener):
            self._manager.unregister(listener)
            log.warning("listener %r failed %d times and is switched off for this run", name, MAX_FAILURES)

    def _load(self, name: str, target: str, owner: str) -> None:
        if self._manager.is_blocked(name):
            return
        try:
            listener = load(target)
        except Exception as error:
            raise IncompatiblePlugin(
                f"listener {name!r} ({owner}) cannot be imported: {type(error).__name__}: {error}; "
                f"repair it, or run without it: --run.without {name}"
            ) from error
        self._register(listener, name, owner)

    def _register(self, listener: object, name: str, owner: str) -> None:
        try:
            self._manager.register(listener, name=name)
        except pluggy.PluginValidationError as error:
            raise IncompatiblePlugin(f"listener {name!r} ({owner}): {error}") from error
        except ValueError as error:
            raise IncompatiblePlugin(f"listener {name!r} ({owner}): another listener has this name") from error
        for caller in self._manager.get_hookcallers(listener) or []:
            if any(one.plugin is listener and (one.wrapper or one.hookwrapper) for one in caller.get_hookimpls()):
                raise IncompatiblePlugin(
                    f"listener {name!r} ({owner}): {caller.name} is a wrapper; listeners only listen"
                )


def load(target: str) -> object:
    """Import ``"module"`` or ``"module:attribute"``; a class is called, anything else is the listener itself."""
    if ":" not in target:
        return __import__(target, fromlist=["_"])
    listener = load_object(target)
    return listener() if inspect.isclass(listener) else listener


def implemented(listener: object) -> list[str]:
    """Return the names of hooks that a listener (module, class or object) implements."""
    return sorted(
        name for name in dir(listener) if getattr(getattr(listener, name, None), "rlvla_impl", None) is not None
    )


def name_of(listener: object) -> str:
    """Return a name that is unique within a run."""
    name = getattr(listener, "__name__", None)
    return name if isinstance(name, str) else f"{type(listener).__name__}-{id(listener):x}"


def _unknown_hook(error: pluggy.PluginValidationError) -> str:
    known = [name for name in vars(hookspecs) if name.startswith("on_")]
    unknown = next((word.strip("'") for word in str(error).split() if word.strip("'").startswith("on_")), "")
    close = difflib.get_close_matches(unknown, known, n=1)
    return f"{error}. {f'Did you mean {close[0]}?' if close else 'Hooks: ' + ', '.join(known)}"
