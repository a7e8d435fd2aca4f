"""``rlvla record``: demonstrations of a simulator's scripted expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge

from rlvla import configs, flags
from rlvla.cli import options
from rlvla.errors import ConfigError
from rlvla.plugin import find, names

USAGE = """usage: rlvla record --sim NAME --path FOLDER [options] [--sim.option VALUE ...]

Runs the simulator's scripted expert and writes what it shows and does to FOLDER, which imitation learns from:
--algo bc --algo.path FOLDER, or --train.demonstrations FOLDER beside any algorithm.

  --path FOLDER     folder to make
  --episodes N      episodes to keep (64)
  --seed N          of episodes and noise; training and evaluation never see them (0)
  --noise X         standard deviation added to executed, not to recorded, actions, in half-ranges of the action (0)
  --keep failures   keep episodes that the expert did not solve, too (solved)
"""


@configs.config
class RecordOptions:
    """What is recorded."""

    path: str
    """Folder to make."""
    episodes: Annotated[int, Ge(1)] = 64
    """Episodes to keep."""
    seed: Annotated[int, Ge(0)] = 0
    """Of episodes and noise."""
    noise: Annotated[float, Ge(0)] = 0.0
    """Standard deviation added to executed actions, in half-ranges."""
    keep: Literal["solved", "failures"] = "solved"
    """Keep solved episodes alone, or failures too."""


def main(words: Sequence[str]) -> int:
    if "-h" in words or "--help" in words:
        chosen, _, _ = flags.split([word for word in words if word not in ("-h", "--help")], ("sim",))
        print(USAGE)
        if "sim" in chosen:
            print(options.section_help({"sim": find("sim", chosen["sim"]).config}))
        else:
            print(f"--sim NAME: {', '.join(sorted(names('sim')))}  (its options are shown once it is named)")
        return 0
    given, rest = {}, list(words)
    for name in ("path", "episodes", "seed", "noise", "keep"):
        value, rest = options.take(rest, name, "a folder to make" if name == "path" else "a value")
        if value is not None:
            given[name] = value
    chosen, rest, problems = flags.split(rest, ("sim",))
    settings: dict[str, Any] = {}
    problems += flags.merge(rest, {"sim": find("sim", chosen["sim"]).config} if "sim" in chosen else {}, settings)
    problems += [f"--{name}: not an option here; there is: --sim.*" for name in settings if name != "sim"]
    if "sim" not in chosen:
        problems.append(f"--sim: missing; wanted a simulator: {', '.join(sorted(names('sim')))}")
    if "path" not in given:
        problems.append("--path: missing; wanted a folder to make")
    if problems:
        raise ConfigError(problems)
    wanted = configs.read_one(RecordOptions, given)
    configs.read_choice("sim", {"use": chosen["sim"], **settings.get("sim", {})})

    from rlvla.demonstrations import record

    options.log_to_stderr()
    header = record(
        sim={"use": chosen["sim"], **settings.get("sim", {})},
        path=wanted.path,
        episodes=wanted.episodes,
        seed=wanted.seed,
        noise=wanted.noise,
        keep_failures=wanted.keep == "failures",
    )
    solved = sum(one.success for one in header.episodes)
    print(f"{wanted.path}: {len(header.episodes)} episodes ({solved} solved), {header.steps} env steps")
    return 0
