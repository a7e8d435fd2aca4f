"""Warp kernels that every program uses: worlds that stand still or diverge, and how near contacts came to their limits.

Letters: N worlds, F geoms of bodies without joints.
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
    bad = wp.int32(0)
    for place in range(qpos.shape[1]):
        if not wp.abs(qpos[world, place]) <= _BROKEN:
            bad += 1
    for place in range(qvel.shape[1]):
        if not wp.abs(qvel[world, place]) <= _BROKEN:
            bad += 1
    if bad > 0:
        still_N[world] = True
        diverged_N[world] = True


@wp.kernel(enable_backward=False)
def clear_where(mask_N: wp.array[bool], flag_N: wp.array[bool]):
    """Clear the flag of chosen worlds."""
    world = wp.tid()
    if mask_N[world]:
        flag_N[world] = False


@wp.kernel(enable_backward=False)
def place_fixed(
    geom_F: wp.array[int],
    body_F: wp.array[int],
    pos_F: wp.array[wp.vec3],
    mat_F: wp.array[wp.mat33],
    xpos: wp.array2d[wp.vec3],
    xmat: wp.array2d[wp.mat33],
    geom_xpos: wp.array2d[wp.vec3],
    geom_xmat: wp.array2d[wp.mat33],
):
    """Put geoms where their bodies are."""
    world, fixed = wp.tid()
    turn = xmat[world, body_F[fixed]]
    geom_xpos[world, geom_F[fixed]] = xpos[world, body_F[fixed]] + turn * pos_F[fixed]
    geom_xmat[world, geom_F[fixed]] = turn * mat_F[fixed]
