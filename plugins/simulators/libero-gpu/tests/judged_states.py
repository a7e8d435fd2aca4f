"""States of a task on the CPU, some of them made to fulfil its goal, and what LIBERO and the GPU's judge say of each.

Used by a test for a few tasks and by ``benchmarks/libero_gpu_predicates.py`` for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np

from rlvla.mujoco_warp.start import wp
from rlvla_sim_libero import startup
from rlvla_sim_libero.scene import OPEN_AND_WAIT, Scene
from rlvla_sim_libero.tasks import Task
from rlvla_sim_libero_gpu.goals import ALL, ANY, INSIDE, OVER, STACKED, Test, goal_of
from rlvla_sim_libero_gpu.judge import Judge

_FIELDS = {"qpos": float, "xpos": wp.vec3, "site_xpos": wp.vec3, "site_xmat": wp.mat33}


@dataclass
class Recorded:
    """States, and what LIBERO says of each."""

    fields: dict[str, list[np.ndarray]] = field(default_factory=lambda: {name: [] for name in _FIELDS})
    contacts: list[np.ndarray] = field(default_factory=list)
    """Of each state, the two geoms of each contact."""
    predicates: list[list[bool]] = field(default_factory=list)
    solved: list[bool] = field(default_factory=list)

    def take(self, scene: Scene) -> None:
        """Add the present state."""
        for name, values in self.fields.items():
            values.append(np.array(getattr(scene.data, name), np.float32))
        self.contacts.append(np.array(scene.data.contact.geom[: scene.data.ncon], np.int32).reshape(-1, 2))
        self.predicates.append([bool(scene.env._eval_predicate(one)) for one in scene.env.parsed_problem["goal_state"]])
        self.solved.append(scene.is_solved())

    def arrays(self, device: str) -> Any:
        """Return them as what the judge reads of N worlds, contacts of all in one list."""
        worlds = np.repeat(np.arange(len(self.contacts)), [len(one) for one in self.contacts])
        geom = np.concatenate(self.contacts)
        order = np.random.default_rng(0).permutation(len(worlds))  # worlds are mixed, as they are on a GPU
        contact = SimpleNamespace(
            geom=wp.array(geom[order], dtype=wp.vec2i, device=device),
            worldid=wp.array(worlds[order], dtype=int, device=device),
        )
        put = {
            name: wp.array(np.stack(values).reshape(len(values), -1, *_shape(name)), dtype=_FIELDS[name], device=device)
            for name, values in self.fields.items()
        }
        return SimpleNamespace(nacon=wp.array([len(worlds)], dtype=int, device=device), contact=contact, **put)


def _shape(name: str) -> tuple[int, ...]:
    return {"qpos": (), "xpos": (3,), "site_xpos": (3,), "site_xmat": (3, 3)}[name]


def recorded(scene: Scene, task: Task, tries: int, seed: int = 0) -> Recorded:
    """Return states of random actions, and of ``tries`` attempts to fulfil the goal by moving objects and joints."""
    rng, record = np.random.default_rng(seed), Recorded()
    with np.load(startup.states_file(task), allow_pickle=False) as file:
        states = file["states"]
    tests = tuple(chain.from_iterable(goal_of(scene).tests))
    scene.reset(seed, states[0], 0)
    record.take(scene)
    for _ in range(4):
        for _ in range(5):
            scene.step(rng.uniform(-1, 1, 7))
        record.take(scene)
    for attempt in range(tries):
        scene.reset(seed + attempt, states[attempt % len(states)], 0)
        # What something is put on, or into, is named after it, or before; so both orders.
        for test in tests if attempt % 2 else reversed(tests):
            _fulfil(scene, test, rng, spread=0.0 if attempt == 0 else 1.3)
        mujoco.mj_forward(scene.model, scene.data)
        record.take(scene)
        for _ in range(3):
            for _ in range(2):
                scene.step(OPEN_AND_WAIT)
            record.take(scene)
    return record


def _fulfil(scene: Scene, test: Test, rng: np.random.Generator, spread: float) -> None:
    """Move what a test is about to where it may hold; ``spread`` 1 reaches the borders of what is allowed."""
    model, data = scene.model, scene.data
    mujoco.mj_forward(model, data)  # an earlier test may have moved what this one is relative to
    if test.kind in (ANY, ALL):
        for one in test.thresholds:
            data.qpos[one.joint] = one.limit + one.sign * (0.02 + spread * rng.uniform(-0.03, 0.01))
        return
    size, way = np.array(test.size), spread * rng.uniform(-1, 1, 3)
    if test.kind == INSIDE:
        place = data.site_xpos[test.site] + data.site_xmat[test.site].reshape(3, 3) @ (way * size)
    elif test.kind == OVER:
        height = size[2] + 0.03 + 0.05 * way[2]
        inverse = np.linalg.inv(data.site_xmat[test.site].reshape(3, 3))
        place = data.site_xpos[test.site] + inverse @ np.array([way[0] * size[0], way[1] * size[1], height])
    elif test.kind == STACKED:
        place = data.xpos[test.lower] + np.array([0.03 * way[0], 0.03 * way[1], 0.03 + 0.03 * way[2]])
    else:
        return  # it touches where it falls
    joint = model.body_jntadr[test.upper]
    at, dof = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
    data.qpos[at : at + 3] = place
    data.qvel[dof : dof + 6] = 0.0


def judged(scene: Scene, record: Recorded, device: str = "cpu") -> tuple[np.ndarray, np.ndarray]:
    """Return what the judge says: bool ``[N, P]`` of predicates, and bool ``[N]`` of the goal."""
    judge = Judge(goal_of(scene), scene.model.ngeom, len(record.solved), device)
    judge.launch(record.arrays(device))
    return judge.predicates().cpu().numpy(), judge.solved.cpu().numpy()
