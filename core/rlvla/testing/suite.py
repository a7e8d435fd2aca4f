"""What conformance suites of all four kinds share. Light: neither torch nor pytest is imported here.

A check is a method whose name starts with ``test_`` and that takes nothing but ``self``, so pytest runs it in a subclass
and :func:`check` runs it in a notebook. Messages name the likely cause, since assertions here are not rewritten.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from rlvla import configs, specs
from rlvla.errors import ConfigError
from rlvla.plugin import Kind, Plugin, find

HEAVY = ("torch", "ray", "transformers", "tensordict", "mujoco", "sapien", "robosuite", "gymnasium")
_SPECS: dict[Kind, type[Any]] = {
    "sim": specs.SimulatorSpec,
    "model": specs.ModelSpec,
    "algo": specs.AlgorithmSpec,
    "scheduler": specs.SchedulerSpec,
}


PASSED, SKIPPED = "passed", "skipped"
_FIRST = "test_every_option_is_read"


class Skipped(Exception):
    """A check that does not apply, outside pytest."""


def skip(reason: str) -> None:
    """Skip the running check: through pytest where pytest runs it."""
    if "pytest" in sys.modules:
        import pytest

        pytest.skip(reason)
    raise Skipped(reason)


class Conformance:
    """Checks that every plugin passes. A suite for a kind adds its own; a plugin's test subclasses that suite::

        class TestMine(AlgorithmConformance):
            name = "mine"                           # its entry point
            config = {"clip_low": 0.1}              # what to run it with; defaults otherwise
            variations = ({"clip_low": 0.3},)       # further configs, where an option matters only beside another

            test_levels_agree = pytest.mark.xfail(reason="has one level")(AlgorithmConformance.test_levels_agree)

    A check may be expected to fail, with a reason; replacing one in any other way is a ``TypeError`` when the class is
    made, so that what a suite promises is what was run.
    """

    kind: ClassVar[Kind]
    name: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    variations: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    """Top-level packages, besides the plugin's and rlvla's, whose reads of an option count."""
    _plugin: ClassVar[Plugin[Any, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in {name for base in cls.__mro__[1:] for name in vars(base) if name.startswith("test_")}:
            there = inspect.getattr_static(cls, name)
            owner = next(base for base in cls.__mro__ if name in vars(base))
            replaced = any(name in vars(base) for base in cls.__mro__[cls.__mro__.index(owner) + 1 :])
            if replaced and not _has_reason(there):
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a check of {_first_owner(cls, name).__name__}; a check that a plugin "
                    f"cannot pass is marked pytest.mark.xfail(reason=...), nothing else"
                )

    # --- what the checks use ---

    def plugin(self) -> Plugin[Any, Any]:
        """Return the plugin, found by its entry point, once for each suite."""
        cls = type(self)
        if "_plugin" not in vars(cls):
            cls._plugin = find(self.kind, self.name)
        return cls._plugin

    def made(self, **options: Any) -> Any:
        """Return the plugin's config: ``config`` with ``options`` on top."""
        return self.plugin().config(**{**self.config, **options})

    def all_configs(self) -> list[Any]:
        """Return the main config and its variations."""
        return [self.made(), *(self.made(**dict(one)) for one in self.variations)]

    def exercise(self, config: Any) -> None:
        """Drive the plugin through its normal loop once, reading whatever it reads. Suites of a kind define it."""
        self.plugin().describe(config)

    # --- checks ---

    def test_finding_imports_nothing_heavy(self) -> None:
        """A laptop checks a cluster run: the descriptor's module imports no torch, Ray or simulator."""
        code = (
            f"import json, sys; from rlvla.plugin import find; find({self.kind!r}, {self.name!r}).config();"
            f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
        )
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **path}
        )
        assert done.returncode == 0, f"find({self.kind!r}, {self.name!r}) failed in a fresh process:\n{done.stderr}"
        found = json.loads(done.stdout)
        assert not found, (
            f"finding {self.name!r} imports {found}: import them in the target module, not in the descriptor"
        )

    def test_defaults_construct(self) -> None:
        """Every option has a default that its own bounds allow."""
        plugin = self.plugin()
        problems = refusals(plugin.config, configs.plain(plugin.config()))
        assert not problems, "defaults that the config's own types refuse: " + "; ".join(problems)

    def test_describe_gives_the_spec(self) -> None:
        """``describe`` of the suite's configs returns the spec of the plugin's kind, and twice the same."""
        for config in self.all_configs():
            spec = self.plugin().describe(config)
            wanted = _SPECS[self.kind]
            assert isinstance(spec, wanted), f"describe() returned a {type(spec).__name__}, wanted {wanted.__name__}"
            assert spec == self.plugin().describe(config), "describe() of one config gave two different specs"

    def test_config_survives_pickle(self) -> None:
        """Configs go to other processes."""
        for config in self.all_configs():
            assert pickle.loads(pickle.dumps(config)) == config, f"{config} is not itself after pickle"

    def test_config_survives_dict_and_yaml(self) -> None:
        """What is written beside a checkpoint makes the same config again."""
        import yaml

        for config in self.all_configs():
            plain = configs.plain(config)
            try:
                text = yaml.safe_dump(plain)
            except yaml.YAMLError as error:
                raise AssertionError(f"{config} holds more than plain data: {error}") from error
            for way, data in (("a dict", plain), ("YAML", yaml.safe_load(text))):
                problems = refusals(type(config), data)
                assert not problems, f"{way} of a config is refused: " + "; ".join(problems)
                assert configs.read_one(type(config), data) == config, f"{config} is not itself after {way}: {data}"

    def test_unknown_options_are_refused(self) -> None:
        """A misspelt option is an error, never ignored."""
        problems: list[str] = []
        configs._validate(
            {self.kind: self.plugin().config}, {self.kind: {**self.config, "no_such_option": 1}}, problems
        )
        assert any("no_such_option" in one for one in problems), "an unknown option passes: decorate with @rlvla.config"

    def test_every_option_is_documented(self) -> None:
        """The command line shows the string below each option."""
        missing = undocumented(self.plugin().config)
        assert not missing, f"options without a string below them: {', '.join(missing)}"

    def test_every_option_is_read(self) -> None:
        """An option that no code reads changes nothing, silently; reads are recorded while the plugin runs."""
        plugin = self.plugin()
        counted = ("rlvla", plugin.config.__module__.partition(".")[0], *self.packages)
        with recorded_reads(plugin.config, counted) as reads:
            for config in self.all_configs():
                self.exercise(config)
        unread = sorted({field.name for field in dataclasses.fields(plugin.config)} - reads)
        assert not unread, (
            f"nothing reads {', '.join(unread)}: remove them, or add to `variations` a config in which they matter"
        )


def refusals(config: type[Any], data: Mapping[str, Any]) -> list[str]:
    """Return why a config class refuses plain data; empty where it does not."""
    try:
        configs.read_one(config, data)
    except ConfigError as error:
        return error.problems
    return []


def _has_reason(check: Any) -> bool:
    marks = getattr(getattr(check, "__func__", check), "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)


def _first_owner(cls: type, name: str) -> type:
    return next(base for base in reversed(cls.__mro__) if name in vars(base))


def check(suite: type[Conformance], name: str, config: Mapping[str, Any] | None = None, **attributes: Any) -> None:
    """Run every check of a suite without pytest.

    Args:
        suite: of the plugin's kind.
        name: the plugin's entry point.
        config: options to run it with.
        attributes: further class attributes of the suite (``variations``, capabilities).

    Raises:
        AssertionError: with every check that failed, and why.
    """
    found = outcomes(suite, name, config, **attributes)
    failed = [f"{one.removeprefix('test_')}: {told}" for one, told in found.items() if told not in (PASSED, SKIPPED)]
    if failed:
        raise AssertionError(f"{len(failed)} checks of {name!r} failed:\n" + textwrap.indent("\n".join(failed), "  "))


def outcomes(
    suite: type[Conformance], name: str, config: Mapping[str, Any] | None = None, **attributes: Any
) -> dict[str, str]:
    """Run every check of a suite without pytest; returns, for each, ``passed``, ``skipped`` or what failed."""
    made = type("Check", (suite,), {"name": name, "config": dict(config or {}), **attributes})()
    found = {}
    # what options are read is seen where a plugin is made, so before it is made and kept
    methods = sorted((one for one in dir(made) if one.startswith("test_")), key=lambda one: (one != _FIRST, one))
    for method in methods:
        try:
            getattr(made, method)()
        except _skips():
            found[method] = SKIPPED
        except (AssertionError, ConfigError) as error:
            found[method] = str(error)
        except Exception as error:
            found[method] = f"{type(error).__name__}: {error}"
        else:
            found[method] = PASSED
    return found


def _skips() -> tuple[type[BaseException], ...]:
    return (Skipped, sys.modules["pytest"].skip.Exception) if "pytest" in sys.modules else (Skipped,)


def undocumented(config: type[Any]) -> list[str]:
    """Return the options of a config class that have no string below them, in it or in the class they come from."""
    documented: set[str] = set()
    for cls in config.__mro__:
        if not dataclasses.is_dataclass(cls):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for this, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(this, ast.AnnAssign) and isinstance(this.target, ast.Name) and _is_text(following):
                documented.add(this.target.id)
    return sorted({field.name for field in dataclasses.fields(config)} - documented)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class _Recorder:
    """A slot that notes who reads it."""

    def __init__(self, slot: Any, name: str, reads: set[str], counted: tuple[str, ...]) -> None:
        self.slot, self.name, self.reads, self.counted = slot, name, reads, counted

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.slot
        caller = sys._getframe(1)
        module = str(caller.f_globals.get("__name__", ""))
        suites = module.startswith("rlvla.testing") and not module.startswith("rlvla.testing.fakes")
        machinery = suites or module.startswith("rlvla.configs") or caller.f_code.co_filename.startswith("<")
        if not machinery and module.partition(".")[0] in self.counted:
            self.reads.add(self.name)
        return self.slot.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        self.slot.__set__(instance, value)

    def __delete__(self, instance: Any) -> None:
        self.slot.__delete__(instance)


@contextmanager
def recorded_reads(config: type[Any], counted: tuple[str, ...]) -> Iterator[set[str]]:
    """Record which options of a ``@rlvla.config`` class are read as attributes, by modules of the ``counted`` top-level
    packages. Reads by what handles any config (validation, comparison, pickle, files, suites) do not count.

    Example:
        >>> with recorded_reads(PpoConfig, ("rlvla", "rlvla_algo_ppo")) as reads:
        ...     describe(PpoConfig())
        >>> "window" in reads
        True
    """
    reads: set[str] = set()
    patched: list[tuple[type, str, Any]] = []
    for field in dataclasses.fields(config):
        owner = next(cls for cls in config.__mro__ if inspect.ismemberdescriptor(vars(cls).get(field.name)))
        slot = vars(owner)[field.name]
        patched.append((owner, field.name, slot))
        setattr(owner, field.name, _Recorder(slot, field.name, reads, counted))
    try:
        yield reads
    finally:
        for owner, name, slot in patched:
            setattr(owner, name, slot)
