"""``load``: a trained policy without simulator, Ray or trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlvla import checkpoint, configs
from rlvla.actors.making import device_of, make_model
from rlvla.batch import ObservationBatch
from rlvla.checks import check
from rlvla.model import Model
from rlvla.noise import Noise
from rlvla.seeds import derive
from rlvla.simulator import Observation
from rlvla.specs import SimulatorSpec


def load(path: str | Path, device: str = "auto") -> Policy:
    """Return the policy of a run (its last checkpoint) or of one checkpoint.

    Example:
        >>> policy = rlvla.load("runs/my-run")
        >>> chunk = policy.act({"images": {"front": picture}, "state": state, "instruction": "push the red block"})

    Raises:
        CheckpointError: no complete checkpoint there, or of another model.
    """
    place = checkpoint.find(path)
    config = configs.read(configs.read_file(place / "config.yaml"))
    specs = check(config)
    choice, start = config.model, specs.model.start
    if start is not None:
        choice = replace(choice, config=replace(choice.config, **{start: None}))
    model = make_model(choice, specs, config.run.seed, device_of(device))
    with checkpoint.readable(place):
        model.load(place / "model")
    return Policy(model, specs.sim, seed=config.run.seed, place=place)


class Policy:
    """A model that acts on observations as its simulator gives them."""

    def __init__(self, model: Model, simulator: SimulatorSpec, *, seed: int = 0, place: Path | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.simulator = simulator
        self._seed = seed
        self._calls = 0
        self._place = place

    def act(self, observation: Observation | Mapping[str, Any], greedy: bool = True) -> np.ndarray:
        """Return the next chunk, float32 ``[H, A]`` (or ``[N, H, A]`` for N rows), in the simulator's action units.

        Args:
            observation: images (uint8 ``[height, width, 3]`` by camera name), state (float ``[S]``) and instruction; each
                with a leading N, and a list of instructions, for N rows.
            greedy: the most likely chunk instead of a sample.

        Raises:
            ValueError: a camera is missing, or a shape differs from what the policy was trained with.
        """
        batch, single = self._batch(observation)
        keys = torch.tensor([derive(self._seed, "policy", self._calls, row) for row in range(len(batch))])
        self._calls += 1
        device = next(self.model.parameters()).device
        with torch.no_grad():
            action = self.model.act(self.model.preprocess(batch), Noise(keys.to(device)), greedy=greedy)
        actions: np.ndarray = action.actions.float().cpu().numpy()
        return actions[0] if single else actions

    def _batch(self, observation: Observation | Mapping[str, Any]) -> tuple[ObservationBatch, bool]:
        if isinstance(observation, Mapping):
            if missing := {"images", "state", "instruction"} - set(observation):
                raise ValueError(
                    f"the observation lacks {', '.join(sorted(missing))}; wanted images, state, instruction"
                )
            observation = Observation(observation["images"], observation["state"], observation["instruction"])
        single = isinstance(observation.instruction, str)
        images = {name: np.asarray(picture) for name, picture in observation.images.items()}
        state = np.asarray(observation.state, np.float32)
        text = [observation.instruction] if isinstance(observation.instruction, str) else list(observation.instruction)
        if single:
            images, state = {name: picture[None] for name, picture in images.items()}, state[None]
        for camera in self.simulator.cameras:
            wanted = (len(text), camera.height, camera.width, 3)
            if camera.name not in images:
                raise ValueError(f"camera {camera.name!r} is missing; got {', '.join(sorted(images)) or 'none'}")
            got = images[camera.name]
            if got.shape != wanted or got.dtype != np.uint8:
                raise ValueError(f"camera {camera.name!r}: got {got.dtype} {got.shape}, wanted uint8 {wanted}")
        if state.shape != (len(text), self.simulator.state_dim):
            parts = ", ".join(f"{part.name}: {part.size}" for part in self.simulator.state)
            raise ValueError(f"state: got {state.shape}, wanted {(len(text), self.simulator.state_dim)} ({parts})")
        width = max(self.simulator.max_instruction_bytes, *(len(one.encode()) for one in text))
        return ObservationBatch.of(Observation(images, state, text), width), single

    def __repr__(self) -> str:
        cameras = ", ".join(f"{one.name} {one.height}x{one.width}" for one in self.simulator.cameras)
        return f"Policy {type(self.model).__name__} from {self._place}: {cameras}; state {self.simulator.state_dim}; chunks of {self.model.spec.horizon} x {self.simulator.action_dim}"
