"""Ordinary Gymnasium environments for the tests of the bridges."""

import gymnasium
import numpy as np


class Dot(gymnasium.Env):
    """A white dot on black; the action moves it; solved at the right edge. The observation is the picture."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length: int = 8) -> None:
        self.length = length

    def _picture(self):
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[6:10, int(self.x) : int(self.x) + 2] = 255
        picture[0, 0] = int(10 * self.x)  # finer than pixels
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = float(self.np_random.uniform(2, 6)), 0
        return self._picture(), {}

    def step(self, action):
        self.x = float(np.clip(self.x + 3 * float(action[0]), 0, 14))
        self.steps += 1
        solved = self.x >= 13
        return self._picture(), float(solved), solved, self.steps >= self.length, {"is_success": solved}


def named() -> gymnasium.Env:
    """Return one with a dictionary observation."""
    return gymnasium.wrappers.TransformObservation(
        Dot(),
        lambda picture: {"camera": picture, "joints": np.array([1.0, 2.0], np.float32)},
        gymnasium.spaces.Dict(
            {"camera": Dot.observation_space, "joints": gymnasium.spaces.Box(-9, 9, (2,), np.float32)}
        ),
    )
