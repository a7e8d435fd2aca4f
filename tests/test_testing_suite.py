"""The machinery that conformance suites of all kinds are built on."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import pytest
from annotated_types import Ge

import rlvla
from rlvla.testing import Conformance, check, recorded_reads
from rlvla.testing.suite import skip, undocumented

PLUGIN = '''
"""A scheduler without anything behind it."""
import rlvla
from rlvla.specs import SchedulerSpec

@rlvla.config
class Config:
    """For tests."""

    lag: int = 1
    """Versions."""
    {extra}

def describe(config):
    return SchedulerSpec(on_policy=config.lag == 0, max_staleness=config.lag)

plugin = rlvla.Plugin(config=Config, target="nowhere:Nothing", describe=describe)
'''


class SchedulerSuite(Conformance):
    kind = "scheduler"

    def test_lag_is_not_negative(self) -> None:
        assert self.made().lag >= 0

    def test_only_some_pass(self) -> None:
        skip("has no such thing")


def install(make_distribution: Any, name: str, extra: str = "", head: str = "") -> None:
    module = f"rlvla_{name.replace('-', '_')}"
    entry_points = {"rlvla.schedulers": {name: f"{module}:plugin"}}
    make_distribution(f"rlvla-sched-{name}", entry_points, module, head + PLUGIN.replace("{extra}", extra))


# --- replacing a check ---


def test_replacing_a_check_is_a_type_error() -> None:
    with pytest.raises(
        TypeError, match=r"Mine.test_lag_is_not_negative replaces a check of SchedulerSuite.*xfail\(reason"
    ):

        class Mine(SchedulerSuite):
            def test_lag_is_not_negative(self) -> None:
                pass


def test_taking_a_check_away_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="test_defaults_construct replaces a check of Conformance"):

        class Mine(SchedulerSuite):
            test_defaults_construct = None


def test_a_mixin_cannot_replace_a_check() -> None:
    class Mixin:
        def test_lag_is_not_negative(self) -> None:
            pass

    with pytest.raises(TypeError, match="test_lag_is_not_negative"):

        class Mine(Mixin, SchedulerSuite):
            pass


def test_an_xfail_needs_a_reason() -> None:
    with pytest.raises(TypeError):

        class Mine(SchedulerSuite):
            @pytest.mark.xfail
            def test_lag_is_not_negative(self) -> None:
                pass

    class Fine(SchedulerSuite):
        @pytest.mark.xfail(reason="runs ahead")
        def test_lag_is_not_negative(self) -> None:
            pass

        def test_of_its_own(self) -> None:
            pass

    class Finer(Fine):
        """What was expected to fail stays so."""

    assert Finer.test_lag_is_not_negative is Fine.test_lag_is_not_negative


# --- the common checks ---


def test_a_good_plugin_passes(make_distribution: Any) -> None:
    install(make_distribution, "good")
    check(SchedulerSuite, "good", {"lag": 0})


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("other: int = 3\n    '''Read by nothing.'''", "every_option_is_read: nothing reads other"),
        ("other: int = 3", "every_option_is_documented: options without a string below them: other"),
        ("other: int = 'three'\n    '''Of a wrong type.'''", "defaults_construct: .*other"),
        ("other: object = object()\n    '''Not plain data.'''", "config_survives"),
    ],
)
def test_a_fault_in_a_config_is_named(make_distribution: Any, extra: str, words: str) -> None:
    name = f"bad{abs(hash(extra))}"
    install(make_distribution, name, extra)
    with pytest.raises(AssertionError, match=words):
        check(SchedulerSuite, name)


def test_a_heavy_descriptor_is_found(make_distribution: Any) -> None:
    install(make_distribution, "heavy", head="import torch\n")

    class Mine(SchedulerSuite):
        name = "heavy"

    with pytest.raises(AssertionError, match=r"cannot be imported|imports \['torch'"):
        Mine().test_finding_imports_nothing_heavy()


def test_a_failing_check_of_the_kind_is_listed(make_distribution: Any) -> None:
    install(make_distribution, "negative")
    with pytest.raises(AssertionError, match=r"1 checks of 'negative' failed:\n  lag_is_not_negative"):
        check(SchedulerSuite, "negative", {"lag": -1})


# --- recorded reads ---


@rlvla.config
class Parent:
    """Has an option."""

    first: Annotated[int, Ge(0)] = 1
    """First."""


@rlvla.config
class Child(Parent):
    """Has another."""

    second: int = 2
    """Second."""
    third: int = 3


def test_reads_are_recorded_through_inheritance() -> None:
    here = __name__.partition(".")[0]
    slots = (vars(Parent)["first"], vars(Child)["second"])
    with recorded_reads(Child, (here,)) as reads:
        child = Child(first=5)
        assert reads == set()  # making one is no read
        assert child == Child(first=5)
        assert "first=5" in repr(child)
        assert reads == set()  # nor are comparison and text
        assert child.first == 5
        assert reads == {"first"}
    with recorded_reads(Child, ("somewhere_else",)) as reads:
        assert child.second == 2
        assert reads == set()
    assert (vars(Parent)["first"], vars(Child)["second"]) == slots
    assert child.first == 5


def test_slots_come_back_after_an_error() -> None:
    slot = vars(Child)["second"]
    with pytest.raises(RuntimeError), recorded_reads(Child, ("rlvla",)):
        raise RuntimeError
    assert vars(Child)["second"] is slot


def test_undocumented_options_are_named() -> None:
    assert undocumented(Child) == ["third"]


def test_the_kit_imports_neither_pytest_nor_torch_until_asked() -> None:
    code = """
import sys, rlvla.testing.suite
print([name for name in ("pytest", "torch", "ray") if name in sys.modules])
from rlvla.testing import AlgorithmConformance
print([name for name in ("pytest", "ray") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_every_export_exists() -> None:
    import rlvla.testing

    for name in rlvla.testing.__all__:
        assert getattr(rlvla.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rlvla.testing.nothing
