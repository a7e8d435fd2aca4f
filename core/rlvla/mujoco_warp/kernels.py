"""Warp kernels that every program uses: worlds that stand still or diverge, and how near contacts came to their limits.

Letters: N worlds.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-def"
from rlvla.mujoco_warp.start import wp

_BROKEN = wp.constant(1e10)
"""Beyond it MuJoCo calls a position or a velocity bad, too (mjMAXVAL)."""


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


@wp.kernel(enable_backward=False)
def note_broken(qpos: wp.array2d[float], qvel: wp.array2d[float], still_N: wp.array[bool], diverged_N: wp.array[bool]):
    """Note worlds, of those that do not stand still, whose positions or velocities are no numbers or beyond all bounds."""
    world = wp.tid()
    if still_N[world]:
        return
    good = True
    for place in range(qpos.shape[1]):
        good = good and wp.abs(qpos[world, place]) <= _BROKEN
    for place in range(qvel.shape[1]):
        good = good and wp.abs(qvel[world, place]) <= _BROKEN
    if not good:
        still_N[world] = True
        diverged_N[world] = True


@wp.kernel(enable_backward=False)
def clear_where(mask_N: wp.array[bool], flag_N: wp.array[bool]):
    """Clear the flag of chosen worlds."""
    world = wp.tid()
    if mask_N[world]:
        flag_N[world] = False
