"""What several core tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path (importlib), their helpers by name

MakeDistribution = Callable[..., Path]

SIM = '''
"""A descriptor without a simulator behind it."""
from dataclasses import field
from typing import Annotated, Literal
from annotated_types import Ge
import rlvla

@rlvla.config
class Camera:
    """A nested config."""

    width: Annotated[int, Ge(1)] = 64
    """Pixels."""

@rlvla.config
class Config:
    """A world for tests."""

    num_envs: Annotated[int, Ge(1)] = 8
    """Environments in all workers together."""
    suite: Literal["easy", "hard"] = "easy"
    """Task suite."""
    friction: float = 1.0
    """Of the table."""
    tasks: tuple[int, ...] = ()
    """Task numbers."""
    seed: int | None = None
    """Fixed seed."""
    video: bool = False
    """Record."""
    label: str = ""
    """Free text."""
    camera: Camera = Camera()
    """Of the picture."""

plugin = rlvla.Plugin(config=Config, target="nowhere:Nothing", describe=lambda config: config)
'''


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDistribution:
    """Put an installed distribution on the path: metadata, entry points and one module."""

    def make(
        name: str,
        entry_points: Mapping[str, Mapping[str, str]],
        module: str = "",
        code: str = "",
        version: str = "0.1.0",
        requires: tuple[str, ...] = (),
    ) -> Path:
        place = tmp_path / "site" / name
        info = place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(
            "\n".join(
                f"[{group}]\n" + "\n".join(f"{one} = {value}" for one, value in entries.items())
                for group, entries in entry_points.items()
            )
        )
        if module:
            (place / f"{module}.py").write_text(dedent(code))
        monkeypatch.syspath_prepend(str(place))
        return place

    return make


@pytest.fixture
def four_plugins(make_distribution: MakeDistribution) -> dict[str, str]:
    """Install one light plugin of each kind, and return the mapping that chooses them."""
    groups = {"sim": "simulators", "model": "models", "algo": "algorithms", "scheduler": "schedulers"}
    for kind, group in groups.items():
        name = f"test{kind}"
        make_distribution(f"rlvla-{name}", {f"rlvla.{group}": {name: f"rlvla_{name}:plugin"}}, f"rlvla_{name}", SIM)
    return {kind: f"test{kind}" for kind in groups}


class SharedRay:
    """One Ray for all tests that take any: each would start its own."""

    def __init__(self) -> None:
        self._runtime: Any = None

    def start(self) -> Any:
        """Start it, where none runs; returns the runtime."""
        from rlvla.runtimes.ray import RayRuntime

        self._runtime = self._runtime or RayRuntime()
        return self._runtime

    def end(self) -> None:
        """End it, for a test that wants another one."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[SharedRay]:
    """Return who starts and ends the Ray that tests share."""
    yield (shared := SharedRay())
    shared.end()


@pytest.fixture
def ray(shared_ray: SharedRay) -> Any:
    """Have Ray run; returns the runtime."""
    return shared_ray.start()
