"""How many iterations the contact solver needs, and what it costs to allow it fewer: why a batch is as slow as its worst world.

    python benchmarks/libero_gpu_iterations.py           # five minutes on one core; needs no GPU, and mujoco 3.13 or later

MuJoCo Warp runs Newton's iterations of all worlds until the last one has converged, so the slowest of 256 worlds decides how
long each of the 25 substeps of an env step takes. Counted with MuJoCo's own solver, which is the same method, without islands
and with Warp's tolerance (1e-6): random actions from stored initial states, and one scripted pick. ``slowest of N`` is what
the worst of N worlds needs on average, if they are drawn from the counts found.

Then the same episodes with fewer iterations allowed: how far hand and objects are from the episode with as many as are needed,
after all actions. Beside it stands how far it parts when the start is rounded to float32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from libero_gpu_agreement import EPISODES, apart, hand, poses, scripted

from rlvla_sim_libero import startup
from rlvla_sim_libero.scene import Scene
from rlvla_sim_libero.tasks import SUITES, Task

TASKS = [SUITES["libero_spatial"][0], SUITES["libero_spatial"][5], SUITES["libero_object"][0], SUITES["libero_10"][2]]
WORLDS = (64, 256, 1024)
CAPS = (12, 8, 6, 4)
AS_MANY_AS_NEEDED = 100
TOLERANCE = 1e-6
RESULT = Path(__file__).parent / "results" / "libero_gpu_iterations.json"


class Player:
    """Plays one task's episodes and counts the solver's iterations."""

    def __init__(self, task: Task) -> None:
        self.scene = Scene(startup.task_file(task))
        with np.load(startup.states_file(task), allow_pickle=False) as file:
            self._states = np.asarray(file["states"], np.float64)
        self._counts: list[int] = []
        self._step2 = mujoco.mj_step2
        mujoco.mj_step2 = self._counted

    def _counted(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._step2(model, data)
        self._counts.append(int(data.solver_niter[0]))

    def play(self, seed: int, actions: np.ndarray, most: int = AS_MANY_AS_NEEDED, rounded: bool = False) -> Any:
        """Return the episode, and the iterations of each substep."""
        options = self.scene.model.opt
        options.iterations = AS_MANY_AS_NEEDED
        self.scene.reset(seed, self._states[seed % len(self._states)], 10)
        options = self.scene.model.opt
        options.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
        options.tolerance, options.iterations = TOLERANCE, most
        if rounded:
            self.scene.data.qpos[:] = self.scene.data.qpos.astype(np.float32)
        self._counts.clear()
        seen = []
        for action in actions:
            self.scene.step(action)
            seen.append((self.scene.data.qpos.copy(), hand(self.scene)))
        qpos, hands = map(np.array, zip(*seen, strict=True))
        return {**poses(self.scene.model, qpos), "hand": hands}, np.array(self._counts)

    def close(self) -> None:
        mujoco.mj_step2 = self._step2
        self.scene.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16, help="episodes of random actions of each task")
    parser.add_argument("--steps", type=int, default=40, help="actions of each")
    parser.add_argument("--capped", type=int, default=3, help="of these episodes that are played with fewer iterations")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    startup.import_libero()
    result: dict[str, Any] = {"mujoco": mujoco.__version__, "steps": args.steps, "seeds": args.seeds}
    for task in TASKS:
        result[f"{task.suite} {task.name}"] = found = of_task(task, args)
        print(json.dumps({task.name: found}), flush=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n")


def of_task(task: Task, args: argparse.Namespace) -> dict[str, Any]:
    player = Player(task)
    episodes = [
        (f"random {seed}", seed, np.random.default_rng(seed).uniform(-1, 1, (args.steps, 7)))
        for seed in range(args.seeds)
    ]
    if task in EPISODES:
        episodes.append(("scripted", 0, scripted(player.scene, task, 100)))
    played = {name: player.play(seed, actions) for name, seed, actions in episodes}
    told = counted(np.concatenate([counts for name, (_, counts) in played.items() if name != "scripted"]))
    few = [one for one in episodes if one[0] == "scripted"] + episodes[: args.capped]
    told["parted_m"] = {
        name: {
            label: farthest(played[name][0], player.play(seed, actions, **how)[0])
            for label, how in (
                ("rounded start", {"rounded": True}),
                *((f"{most} at most", {"most": most}) for most in CAPS),
            )
        }
        for name, seed, actions in few
    }
    player.close()
    return told


def counted(counts: np.ndarray) -> dict[str, Any]:
    share = np.bincount(counts, minlength=AS_MANY_AS_NEEDED + 1).cumsum() / len(counts)
    return {
        "substeps": len(counts),
        "mean": round(float(counts.mean()), 2),
        "most": int(counts.max()),
        **{f"slowest of {worlds}": round(expected_most(share, worlds), 1) for worlds in WORLDS},
    }


def expected_most(share: Sequence[float] | np.ndarray, worlds: int) -> float:
    """Return the mean of the largest of so many independent counts, given each count's cumulative share."""
    return float((1.0 - np.asarray(share) ** worlds).sum())


def farthest(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, str]:
    distances = apart(one, other, "x")
    return {what: f"{distances[f'{what}_m_x'].max():.1e}" for what in ("hand", "objects")}


if __name__ == "__main__":
    main()
