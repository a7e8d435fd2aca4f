"""The first pictures of one task of each suite are those that were looked at once and stored."""

from __future__ import annotations

import numpy as np
import pytest
from golden import FOLDER, SUITES, first_pictures
from PIL import Image

MEAN_GREY_LEVELS = {"llvmpipe": 0.5, "softpipe": 0.5, "": 4.0}
"""Largest mean difference by renderer. They were drawn by llvmpipe; two of its releases may round differently. Any other
renderer (last entry) smooths edges in its own way: that bound is a guess that catches a wrong scene, camera or light."""


@pytest.mark.parametrize("suite", SUITES)
def test_first_pictures_are_the_golden_ones(suite: str) -> None:
    pictures, renderer = first_pictures(suite)
    bound = next(bound for name, bound in MEAN_GREY_LEVELS.items() if name in renderer.lower())
    for name, picture in pictures.items():
        golden = np.asarray(Image.open(FOLDER / f"{suite}_{name}.png"))
        difference = np.abs(picture.astype(int) - golden).mean()
        assert difference <= bound, f"{name} on {renderer}: {difference:.2f} grey levels, wanted {bound} at most"


def test_the_bound_tells_scenes_apart() -> None:
    """Pictures of different suites differ by more than any bound, so a wrong scene cannot pass."""
    golden = [np.asarray(Image.open(FOLDER / f"{suite}_agentview.png")).astype(int) for suite in SUITES]
    apart = [np.abs(a - b).mean() for place, a in enumerate(golden) for b in golden[:place]]
    assert min(apart) > max(MEAN_GREY_LEVELS.values())
