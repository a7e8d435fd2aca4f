"""The tables as one batch, by MuJoCo Warp: the same scene, starts, success and reward as one by one on the CPU.

Physics and positions are float32, so episodes part from the CPU's in the last digits, and by more once blocks are touched.
Letters: N rows, n chosen rows, H actions in a chunk, A action dimensions, B blocks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

os.environ.setdefault(
    "MUJOCO_GL", "egl"
)  # MuJoCo looks when it is imported; the CPU backend may draw in this process too

import numpy as np
import torch
from torch import Tensor

from rlvla.arrays import on_host
from rlvla.errors import SimulatorError
from rlvla.mujoco_warp.pictures import Pictures
from rlvla.mujoco_warp.rows import check_shapes, checked_rows
from rlvla.mujoco_warp.worlds import Limits, Worlds
from rlvla.simulator import ChunkResult, Observation, Simulator
from rlvla.specs import Start
from rlvla_sim_tabletop import COLOURS, TEMPLATES, TabletopConfig, describe, scene
from rlvla_sim_tabletop.expert import STEP_M, pushes

log = logging.getLogger(__name__)
LIMITS = Limits(contacts=32, constraints=128)
"""Three pairs of boxes touch at eight points each and the hand at three; a contact takes four rows, the hand's limits three."""


class BatchedTabletop(Simulator):
    """N tables that are stepped at once; what they show stays on their device."""

    def __init__(self, config: TabletopConfig, rows: int, capture: bool = True) -> None:
        self.config = config
        self.spec = describe(config)
        self._rows = rows
        model, size = scene.compiled(), config.image_size
        self._worlds = Worlds(
            model,
            rows,
            limits=LIMITS,
            device=config.device,
            deterministic=config.deterministic,
            capture=capture,
            pixels=size * size,
            remedy="tabletop has no option for them; please report what was played",
        )
        self._pictures = Pictures(self._worlds, {"front": (size, size)})
        self._step = self._worlds.env_step(scene.SUBSTEPS)
        self._hand = int(model.body("hand").id)
        self._blocks = [int(model.body(colour).id) for colour in COLOURS]
        self._instruction = [TEMPLATES[0].format(COLOURS[0])] * rows
        self._template = np.zeros(rows, np.int64)
        self._over = np.ones(rows, bool)
        """On the host: rows that wait for a reset."""
        self._counted = np.zeros(rows, bool)
        """Episodes whose contacts were left out and that are counted already."""
        self._unstable = False
        """It was said that worlds diverge."""
        self._recorded: list[int] = []
        with self._worlds.turn():
            self._fill(model.jnt_range[:3].copy())
            self._begin([0], [0], [scene.drawn(0, Start(), config.spacing)])  # what resets and restores run is made now
            self._worlds.show()
            self._ended.fill_(True)

    def _fill(self, range_A2: np.ndarray) -> None:
        rows, size = self._rows, self.config.image_size
        place = self._on_device
        self._low, self._high = place(range_A2[:, 0]), place(range_A2[:, 1])
        self._centre, self._scale = place(scene.STATE_CENTRE), place(scene.STATE_SCALE)
        self._goal = place(np.zeros(rows, np.int64))
        self._steps = torch.zeros_like(self._goal)
        self._ended = place(np.ones(rows, bool))
        self._origin = place(np.zeros((rows, len(COLOURS), 2)))
        self._potential = place(np.zeros(rows))
        self._images = place(np.zeros((rows, size, size, 3), np.uint8))
        self._block_B, self._row_N = place(self._blocks), place(np.arange(rows))

    def _on_device(self, array: Any) -> Tensor:
        tensor = torch.as_tensor(array)
        return tensor.to(self._worlds.device, torch.float32 if tensor.is_floating_point() else tensor.dtype)

    # ---- the contract -----------------------------------------------------------------------------------------------

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        rows = checked_rows(rows, self._rows)
        if not len(rows) == len(seeds) == len(starts):
            raise ValueError(
                f"got {len(rows)} rows, {len(seeds)} seeds and {len(starts)} starts, wanted one of each a row"
            )
        if not rows:
            return self._observation(rows)
        scenes = [
            scene.drawn(seed, start, self.config.spacing) for seed, start in zip(seeds, starts, strict=True)
        ]  # all of them, before a row is touched
        for row, start, one in zip(rows, starts, scenes, strict=True):
            self._tell(row, start.task, one.template)
        self._over[rows] = self._counted[rows] = False
        with self._worlds.turn():
            self._begin(rows, [start.task for start in starts], scenes)
        return self._observation(rows)

    def _tell(self, row: int, goal: int, template: int) -> None:
        self._template[row] = template
        self._instruction[row] = TEMPLATES[template].format(COLOURS[goal])

    def _begin(self, rows: list[int], goals: list[int], scenes: Sequence[scene.Scene]) -> None:
        worlds, chosen = self._worlds, self._on_device(rows)
        mask_N = self._mask(rows)
        worlds.restart(mask_N)
        qpos_nQ = self._on_device(np.stack([one.qpos_Q for one in scenes]))
        worlds["qpos"][chosen] = qpos_nQ
        worlds["ctrl"][chosen] = qpos_nQ[:, :3]
        worlds.settle(mask_N)
        self._goal[chosen] = self._on_device(goals)
        self._steps[chosen] = 0
        self._ended[chosen] = False
        self._origin[chosen] = self._on_device(np.stack([one.blocks_B2 for one in scenes]))
        self._potential[chosen] = self._potentials()[chosen]
        self._look(mask_N)

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        active_N = np.asarray(on_host(active_N), bool)
        chunk = torch.as_tensor(chunk_NHA).to(self._worlds.device, torch.float32)
        self._check_step(chunk, active_N)
        with self._worlds.turn():
            result, diverged_N = self._play(chunk, self._on_device(active_N))
        over_N = (result.terminated | result.truncated).any(1)
        over, diverged, left_out = on_host(torch.stack([over_N, diverged_N, self._worlds.overflowed()]))
        self._over |= over
        result.counts = {
            "contacts_left_out": self._left_out(left_out & active_N),
            "worlds_diverged": self._diverged(diverged),
        }
        result.observation = self._observation()
        return result

    def _left_out(self, left_out_N: np.ndarray) -> float:
        """Return in how many of these episodes contacts were left out for the first time."""
        newly_N = left_out_N & ~self._counted
        self._counted |= left_out_N
        if newly_N.any():
            self._worlds.warn()
        return float(newly_N.sum())

    def _diverged(self, diverged_N: np.ndarray) -> float:
        """Return how many of these worlds diverged, and say it once."""
        if diverged_N.any() and not self._unstable:
            self._unstable = True
            row = int(np.flatnonzero(diverged_N)[0])
            log.warning(
                "the physics of a world diverged (positions or velocities that are no numbers, or beyond 1e10), asked to %r; its "
                "episode ended as a failure. Metric sim/worlds_diverged counts them; this is said once",
                self._instruction[row],
            )
        return float(diverged_N.sum())

    def _check_step(self, chunk: Tensor, active_N: np.ndarray) -> None:
        check_shapes(chunk, active_N, self._rows, "displacement of the hand", 3)
        if over := np.flatnonzero(active_N & self._over).tolist():
            raise SimulatorError(f"rows {over} were stepped after their episode ended: reset them first")
        finite_N = on_host(torch.isfinite(chunk).flatten(1).all(1))
        if broken := np.flatnonzero(active_N & ~finite_N).tolist():
            raise SimulatorError(f"rows {broken} got actions that are not finite: {chunk[broken].tolist()}")

    def _play(self, chunk: Tensor, active_N: Tensor) -> tuple[ChunkResult, Tensor]:
        """Execute a chunk; returns what happened, and bool ``[N]``: which worlds diverged in it."""
        rows, horizon = chunk.shape[:2]
        reward = torch.zeros(rows, horizon, device=chunk.device)
        valid, terminated, truncated = (torch.zeros_like(reward, dtype=torch.bool) for _ in range(3))
        success_N, broken_N = torch.zeros_like(active_N), torch.zeros_like(active_N)
        frames: list[list[Tensor]] | None = [[] for _ in range(rows)] if self._recorded else None
        for action in range(horizon):
            live_N = active_N & ~self._ended
            self._act(chunk[:, action], live_N)
            diverged_N = self._worlds.diverged & live_N
            sound_N = live_N & ~diverged_N
            outcome_N = self._outcomes() * sound_N
            valid[:, action] = live_N
            reward[:, action] = torch.where(sound_N, self._rewards(outcome_N, sound_N), 0.0)
            terminated[:, action] = (outcome_N != 0) | diverged_N
            truncated[:, action] = sound_N & (outcome_N == 0) & (self._steps >= self.config.max_episode_steps)
            self._ended |= terminated[:, action] | truncated[:, action]
            success_N |= outcome_N == 1
            broken_N |= diverged_N
            if frames is not None:
                self._film(frames, live_N)
        self._look(active_N)
        result = ChunkResult(Observation({}, reward, []), reward, terminated, truncated, valid, success_N, frames)
        return result, broken_N

    def _act(self, move_NA: Tensor, live_N: Tensor) -> None:
        worlds, ctrl_NA = self._worlds, self._worlds["ctrl"]
        target_NA = torch.clamp(ctrl_NA + move_NA.clamp(-1.0, 1.0) * STEP_M, self._low, self._high)
        ctrl_NA.copy_(torch.where(live_N[:, None], target_NA, ctrl_NA))
        torch.logical_not(live_N, out=worlds.frozen)
        self._step()
        self._steps += live_N

    def _outcomes(self) -> Tensor:
        """Return 1 for each row whose named block alone has moved, -1 where another one has, else 0."""
        way_NB2 = self._worlds["xpos"][:, self._block_B, :2] - self._origin
        moved_NB = (way_NB2 * way_NB2).sum(-1) > scene.MOVED_M**2
        named_N = moved_NB.gather(1, self._goal[:, None])[:, 0]
        count_N = moved_NB.sum(1)
        return torch.where(named_N & (count_N == 1), 1, torch.where(count_N > 0, -1, 0))

    def _rewards(self, outcome_N: Tensor, live_N: Tensor) -> Tensor:
        if not self.config.shaped_reward:
            return (outcome_N == 1).float()
        potential_N = self._potentials()
        progress_N = potential_N - self._potential
        self._potential.copy_(torch.where(live_N, potential_N, self._potential))
        return scene.PROGRESS * progress_N + scene.SOLVED * (outcome_N == 1) + scene.WRONG * (outcome_N == -1)

    def _potentials(self) -> Tensor:
        """Return -distance(hand, named block) + 2 x its displacement for each row, in metres."""
        xpos = self._worlds["xpos"]
        block_N3 = xpos[self._row_N, self._block_B[self._goal]]
        displacement_N = (block_N3[:, :2] - self._origin[self._row_N, self._goal]).norm(dim=1)
        return 2 * displacement_N.clamp(max=scene.MOVED_M) - (xpos[:, self._hand] - block_N3).norm(dim=1)

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def _look(self, mask_N: Tensor) -> None:
        """Take new pictures of the rows of a mask."""
        shown = self._pictures.draw()["front"]
        torch.where(mask_N[:, None, None, None], shown, self._images, out=self._images)

    def _film(self, frames: list[list[Tensor]], live_N: Tensor) -> None:
        self._look(live_N)
        live = live_N.tolist()
        for row in self._recorded:
            if live[row]:
                frames[row].append(self._images[row].clone())

    def _observation(self, rows: list[int] | None = None) -> Observation:
        """Return what some rows show; None: all."""
        state_NA = (self._worlds["qpos"][:, :3] - self._centre) / self._scale
        if rows is None:
            return Observation({"front": self._images}, state_NA, list(self._instruction))
        chosen = self._on_device(np.asarray(rows, np.int64))
        return Observation({"front": self._images[chosen]}, state_NA[chosen], [self._instruction[row] for row in rows])

    def record_video(self, rows: Sequence[int]) -> None:
        self._recorded = list(rows)

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        if not (rows := checked_rows(rows, self._rows)):
            return []
        chosen = self._on_device(rows)
        with self._worlds.turn():
            told = {
                "physics": self._worlds.state(chosen),
                "origin": self._origin[chosen],
                "potential": self._potential[chosen],
            }
            episode = torch.stack([self._goal, self._steps, self._ended.long()], 1)[chosen]
        host = {name: on_host(tensor) for name, tensor in told.items()}
        goal_n, steps_n, ended_n = on_host(episode).T
        episode_n4 = np.stack([goal_n, self._template[rows], steps_n, ended_n], 1)
        return [
            {**{name: np.array(array[place]) for name, array in host.items()}, "episode": episode_n4[place]}
            for place in range(len(episode_n4))
        ]

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        if not (rows := checked_rows(rows, self._rows)):
            return self._observation(rows)
        saved = {
            name: np.stack([one[name] for one in states]) for name in ("physics", "origin", "potential", "episode")
        }
        goal_n, template_n, steps_n, ended_n = saved["episode"].T
        for row, goal, template in zip(rows, goal_n.tolist(), template_n.tolist(), strict=True):
            self._tell(row, goal, template)
        self._over[rows] = ended_n.astype(bool)
        self._counted[rows] = False
        with self._worlds.turn():
            chosen = self._on_device(rows)
            self._worlds.set_state(chosen, self._on_device(saved["physics"]))
            self._goal[chosen], self._steps[chosen] = self._on_device(goal_n.copy()), self._on_device(steps_n.copy())
            self._ended[chosen] = self._on_device(ended_n.astype(bool))
            self._origin[chosen] = self._on_device(saved["origin"])
            self._potential[chosen] = self._on_device(saved["potential"])
            self._worlds.show()
            self._look(self._mask(rows))
        return self._observation(rows)

    def _mask(self, rows: list[int]) -> Tensor:
        mask_N = np.zeros(self._rows, bool)
        mask_N[rows] = True
        return self._on_device(mask_N)

    def expert(self, rows: Sequence[int], horizon: int) -> np.ndarray:
        picked = list(rows)
        qpos, ctrl, xpos = (on_host(self._worlds[name])[picked].astype(np.float64) for name in ("qpos", "ctrl", "xpos"))
        goal_n = on_host(self._goal)[picked]
        chunk_nHA = np.empty((len(picked), horizon, 3), np.float32)
        for place, goal in enumerate(goal_n.tolist()):
            chunk_nHA[place] = pushes(qpos[place, :3], ctrl[place, :3], xpos[place][self._blocks, :2], goal, horizon)
        return chunk_nHA

    def versions(self) -> dict[str, str]:
        told = {name: metadata.version(name) for name in ("mujoco", "mujoco-warp", "warp-lang")}
        device = self._worlds.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        return {**told, "physics": f"mujoco-warp on {name}", "deterministic": str(self.config.deterministic)}

    def close(self) -> None:
        """Give the memory of worlds, pictures and programs back."""
        if "_worlds" in vars(self):
            self._worlds.close()
        for name in ("_worlds", "_pictures", "_step", "_images"):
            vars(self).pop(name, None)
