"""Warp kernels that every program uses: worlds that stand still, and how near contacts came to their limits.

Letters: N worlds.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from rlvla.mujoco_warp.start import wp


@wp.kernel(enable_backward=False)
def copy_where(mask_N: wp.array[bool], wanted: bool, source: wp.array2d[float], target: wp.array2d[float]):
    """Copy the rows whose mask is as wanted."""
    world, place = wp.tid()
    if mask_N[world] == wanted:
        target[world, place] = source[world, place]


@wp.kernel(enable_backward=False)
def note_peaks(contacts_1: wp.array[int], pairs_1: wp.array[int], rows_N: wp.array[int], peak_2: wp.array[int]):
    """Raise the peaks: contacts (or pairs that may touch) of all worlds together, constraint rows of one."""
    world = wp.tid()
    if world == 0:
        wp.atomic_max(peak_2, 0, wp.max(contacts_1[0], pairs_1[0]))
    wp.atomic_max(peak_2, 1, rows_N[world])
