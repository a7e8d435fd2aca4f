"""What a task's goal asks for, read from LIBERO's own objects: a list of tests on positions, joints and contacts.

LIBERO judges a goal with Python objects over one environment (``envs/object_states/base_object_states.py``,
``envs/predicates/base_predicates.py``, ``envs/objects/site_object.py``). Here each of its predicates becomes tests that a kernel
makes for all worlds at once (:mod:`rlvla_sim_libero_gpu.judge`); all must hold:

===================  ======================================================================================================
``in`` a region      ``INSIDE``: the object's body in the region's box, |R size| around it, 10 mm lower at the bottom
``on`` a region      ``OVER``: within its rectangle, -5 to 100 mm above it; ``TOUCH``: it touches what the region is part of
``on`` an object     ``STACKED``: not lower than it, less than 30 mm beside it; ``TOUCH``: they touch
``open``, ``turnon``  ``ANY``: a joint beyond a threshold
``close``, ``turnoff`` ``ALL``: all joints beyond a threshold
===================  ======================================================================================================

Thresholds are found by asking LIBERO's objects, so that those of any of its articulated objects are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlvla.errors import SimulatorError
from rlvla_sim_libero.scene import Scene

INSIDE, OVER, STACKED, TOUCH, ANY, ALL = range(6)
PREDICATES = ("in", "on", "open", "close", "turnon", "turnoff")
"""All that the five suites use; LIBERO has ``up``, ``true``, ``false`` and ``printjointstate`` beside."""
_FAR = 1e3


@dataclass(frozen=True)
class Threshold:
    """A joint's position that is beyond a limit."""

    joint: int
    """Address in ``qpos``."""
    limit: float
    sign: int
    """1: above it, -1: below it."""
    inclusive: bool
    """The limit itself counts."""


@dataclass(frozen=True)
class Test:
    """One test of a goal."""

    kind: int
    site: int = -1
    """``INSIDE``, ``OVER``: of the region."""
    size: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """``INSIDE``, ``OVER``: half lengths of the region, m."""
    upper: int = -1
    """``INSIDE``, ``OVER``, ``STACKED``: body of the object that is somewhere."""
    lower: int = -1
    """``STACKED``: body of the object below it."""
    one: tuple[int, ...] = ()
    """``TOUCH``: geoms of one side."""
    other: tuple[int, ...] = ()
    """``TOUCH``: geoms of the other side."""
    thresholds: tuple[Threshold, ...] = field(default=())
    """``ANY``, ``ALL``."""


@dataclass(frozen=True)
class Goal:
    """What a task asks for: all tests hold."""

    predicates: tuple[tuple[str, ...], ...]
    """As the task file has them, with the names of their objects."""
    tests: tuple[tuple[Test, ...], ...]
    """Of each predicate."""


def goal_of(scene: Scene) -> Goal:
    """Return the goal of a compiled task.

    Raises:
        SimulatorError: a predicate, or an object in it, that cannot be judged here; names it and offers the CPU backend.
    """
    env = scene.env
    predicates = tuple(tuple(map(str, state)) for state in env.parsed_problem["goal_state"])
    return Goal(predicates, tuple(_tests(env, predicate) for predicate in predicates))


def turned_on(env: Any, name: str) -> tuple[Threshold, ...]:
    """Return where the joints of an object turn it on, one of them is enough.

    Raises:
        SimulatorError: it has none.
    """
    return _beyond(env, ("turnon", name), "turnon", env.object_states_dict[name]).thresholds


def _tests(env: Any, predicate: Sequence[str]) -> tuple[Test, ...]:
    name, objects = predicate[0].lower(), [env.object_states_dict.get(one) for one in predicate[1:]]
    if name not in PREDICATES:
        raise _unsupported(predicate, f"predicate {name!r}", f"there is: {', '.join(PREDICATES)}")
    if None in objects or len(objects) != (2 if name in ("in", "on") else 1):
        raise _unsupported(predicate, "its objects", f"LIBERO knows {', '.join(sorted(env.object_states_dict))}")
    if name == "in":
        return _inside(env, predicate, *objects)
    if name == "on":
        return _on(env, predicate, *objects)
    return (_beyond(env, predicate, name, objects[0]),)


def _inside(env: Any, predicate: Sequence[str], what: Any, region: Any) -> tuple[Test, ...]:
    if region.object_state_type != "site":
        raise _unsupported(predicate, f"'in' of {region.object_name}, which is no region", "take a region of it")
    site = env.object_sites_dict[region.object_name]
    return (Test(INSIDE, site=_site(env, region), size=_size(site), upper=_body(env, what.object_name)),)


def _on(env: Any, predicate: Sequence[str], what: Any, below: Any) -> tuple[Test, ...]:
    if what.object_state_type == "site":
        raise _unsupported(predicate, f"'on' with the region {what.object_name} as what lies there", "name an object")
    upper = _body(env, what.object_name)
    if below.object_state_type != "site":
        lower = _body(env, below.object_name)
        return (Test(STACKED, upper=upper, lower=lower), _touch(env, below.object_name, what.object_name))
    site = env.object_sites_dict[below.object_name]
    if not hasattr(site, "under"):
        raise _unsupported(
            predicate, f"'on' of {below.object_name}, which has no surface", "take a region of an object"
        )
    over = Test(OVER, site=_site(env, below), size=_size(site), upper=upper)
    if env.get_object(below.parent_name) is None:
        return (over,)
    return (over, _touch(env, below.parent_name, what.object_name))


def _touch(env: Any, one: str, other: str) -> Test:
    return Test(TOUCH, one=_geoms(env, one), other=_geoms(env, other))


def _beyond(env: Any, predicate: Sequence[str], name: str, state: Any) -> Test:
    if state.object_state_type == "site":
        if name not in ("open", "close"):
            raise _unsupported(predicate, f"{name!r} of a region", "name the object")
        owner, joints = env.get_object(state.parent_name), env.object_sites_dict[state.object_name].joints
    else:
        owner = env.get_object(state.object_name)
        joints = owner.joints
    method = {"open": "is_open", "close": "is_close", "turnon": "turn_on", "turnoff": "turn_off"}[name]
    asked = getattr(owner, method, None)
    if asked is None or not joints:
        raise _unsupported(
            predicate, f"{name!r} of {state.object_name}, which has no joints for it", "name another object"
        )
    model = env.sim.model
    limits = [value for some in owner.object_properties["articulation"].values() for value in some]
    try:
        limit, sign, inclusive = _flip(asked, limits)
    except (ValueError, NotImplementedError, TypeError) as error:
        raise _unsupported(predicate, f"{method} of {type(owner).__name__}", str(error)) from error
    return Test(
        ANY if name in ("open", "turnon") else ALL,
        thresholds=tuple(Threshold(int(model.get_joint_qpos_addr(joint)), limit, sign, inclusive) for joint in joints),
    )


def _flip(asked: Callable[[float], bool], limits: Sequence[float]) -> tuple[float, int, bool]:
    """Return where an object's answer changes as its joint moves: the limit, on which side it is yes, and whether at it.

    Raises:
        ValueError: it changes not exactly once, at one of the limits that the object names.
    """
    places = sorted(set(map(float, limits)))
    lows = [math.nextafter(place, -math.inf) for place in places]
    highs = [math.nextafter(place, math.inf) for place in places]
    found = [
        (place, 1 if asked(high) else -1, bool(asked(place)))
        for place, low, high in zip(places, lows, highs, strict=True)
        if bool(asked(low)) != bool(asked(high))
    ]
    far = [bool(asked(sign * _FAR)) for sign in (-1, 1)]
    if len(found) != 1 or far[0] == far[1] or far[1] != (found[0][1] == 1):
        raise ValueError(f"its answer changes {len(found)} times at {places}, wanted once")
    return found[0]


def _site(env: Any, region: Any) -> int:
    return int(env.sim.model.site_name2id(region.object_name))


def _size(site: Any) -> tuple[float, float, float]:
    x, y, z = (float(one) for one in np.asarray(site.size))
    return (x, y, z)


def _body(env: Any, name: str) -> int:
    return int(env.obj_body_id[name])


def _geoms(env: Any, name: str) -> tuple[int, ...]:
    """Return the geoms that count as touching an object; those without a name do not, as in LIBERO."""
    return tuple(int(env.sim.model.geom_name2id(geom)) for geom in env.get_object(name).contact_geoms)


def _unsupported(predicate: Sequence[str], what: str, hint: str) -> SimulatorError:
    return SimulatorError(
        f"goal ({' '.join(predicate)}): {what} cannot be judged on the GPU; {hint}, or take the CPU backend: sim 'libero'"
    )
