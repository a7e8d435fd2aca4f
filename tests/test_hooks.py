"""The hook manager: who listens, and what happens when a listener fails."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from rlvla import Plugin, hookimpl
from rlvla.configs import RunOptions, TrainConfig
from rlvla.errors import ConfigError, IncompatiblePlugin
from rlvla.hooks import BUILT_IN, Hooks

QUIET = tuple(BUILT_IN)


class Steps:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def on_step(self, step: int) -> None:
        self.seen.append(step)


class Failing:
    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def on_step(self, step: int) -> None:
        self.calls += 1
        raise RuntimeError("no disk")


def hooks(*extra: object, **options: Any) -> Hooks:
    return Hooks(RunOptions(**{"without": QUIET, **options}), extra=extra)


def test_a_listener_may_take_some_of_the_arguments() -> None:
    listener = Steps()
    hooks(listener).call("on_step", step=3, metrics={"train/loss": 1.0}, histograms={})
    assert listener.seen == [3]


def test_a_class_makes_a_listener_for_each_run() -> None:
    hooks(Steps).call("on_step", step=1, metrics={}, histograms={})
    hooks(Steps).call("on_step", step=1, metrics={}, histograms={})


def test_a_raising_listener_is_named_counted_and_switched_off_after_three_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing, steps = Failing(), Steps()
    run = hooks(failing, steps)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            run.call("on_step", step=step, metrics={}, histograms={})
    assert failing.calls == 3
    assert steps.seen == [0, 1, 2, 3, 4], "others go on"
    assert list(run.failures.values()) == [3]
    assert "Failing" in caplog.text and "in on_step: RuntimeError: no disk" in caplog.text
    assert "switched off" in caplog.text
    assert caplog.text.count("Traceback") == 1


def test_strict_listeners_raise_with_a_note_that_names_listener_and_hook() -> None:
    with pytest.raises(RuntimeError, match="no disk") as caught:
        hooks(Failing(), strict_listeners=True).call("on_step", step=1, metrics={}, histograms={})
    assert "Failing" in caught.value.__notes__[0] and "on_step" in caught.value.__notes__[0]


def test_keyboard_interrupt_is_not_a_listener_failure() -> None:
    class Interrupting:
        @hookimpl
        def on_step(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hooks(Interrupting()).call("on_step", step=1, metrics={}, histograms={})


def test_a_misspelt_hook_names_the_close_one() -> None:
    class Misspelt:
        @hookimpl
        def on_stepp(self, step: int) -> None: ...

    with pytest.raises(IncompatiblePlugin, match="Did you mean on_step?"):
        hooks(Misspelt())


def test_an_unknown_argument_is_an_error_before_the_run() -> None:
    class Wrong:
        @hookimpl
        def on_step(self, stepp: int) -> None: ...

    with pytest.raises(IncompatiblePlugin, match="stepp"):
        hooks(Wrong())


def test_wrappers_are_refused() -> None:
    class Wrapper:
        @hookimpl(wrapper=True)
        def on_step(self) -> Any:
            return (yield)

    with pytest.raises(IncompatiblePlugin, match="only listen"):
        hooks(Wrapper())


def test_installed_listeners_listen(make_distribution: Any) -> None:
    code = """
        import rlvla
        seen = []
        @rlvla.hookimpl
        def on_step(step):
            seen.append(step)
    """
    make_distribution("notify", {"rlvla.hooks": {"notify": "notify_module"}}, "notify_module", code)
    run = hooks()
    run.call("on_step", step=7, metrics={}, histograms={})
    assert sys.modules["notify_module"].seen == [7]
    assert run.names == ["notify"]


def test_a_blocked_listener_is_not_even_imported(make_distribution: Any) -> None:
    make_distribution("noisy", {"rlvla.hooks": {"noisy": "noisy_module"}}, "noisy_module", "raise ImportError")
    hooks(without=(*QUIET, "noisy"))
    with pytest.raises(IncompatiblePlugin, match=r"'noisy' \(noisy\) cannot be imported.*--run.without noisy"):
        hooks()


def test_two_listeners_of_one_name_are_an_error(make_distribution: Any) -> None:
    for owner in ("one", "two"):
        make_distribution(owner, {"rlvla.hooks": {"same": f"{owner}_module"}}, f"{owner}_module", "")
    with pytest.raises(IncompatiblePlugin, match="another listener has this name"):
        hooks()


def test_without_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no listener 'displya' is installed. Did you mean 'display'?"):
        hooks(without=("displya",))


def test_a_chosen_plugin_listens(make_distribution: Any) -> None:
    code = "import rlvla\nseen = []\n@rlvla.hookimpl\ndef on_weights_published(policy_version):\n    seen.append(policy_version)\n"
    make_distribution("chosen", {}, "chosen_listener", code)
    plugin: Plugin[Any, Any] = Plugin(
        config=TrainConfig, target="x:Y", describe=lambda _: None, listener="chosen_listener", name="chosen"
    )
    run = Hooks(RunOptions(without=QUIET), plugins=[plugin])
    run.call("on_weights_published", policy_version=4, seconds=0.1)
    assert sys.modules["chosen_listener"].seen == [4]


def test_built_in_listeners_are_there_and_can_be_left_out() -> None:
    assert Hooks(RunOptions()).names == ["jsonl", "tensorboard", "report", "display"]
    assert Hooks(RunOptions(without=("display", "report"))).names == ["jsonl", "tensorboard"]
