"""Threads of one process compute side by side, but compile kernels and capture graphs alone.

Generator and trainer of one GPU are threads of one process. While torch traces a function to compile it, the module calls
of *every* thread run through its tracer, and compiled functions refuse to run (seen under full-async on an H200: "Detected
that you are using FX to symbolically trace a dynamo-optimized function").
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changed = threading.Condition()
_computing: set[int] = set()
"""Threads that compute now, without those that wait for their turn."""
_waiting = 0
_alone: int | None = None


@contextmanager
def computing() -> Iterator[None]:
    """Hold while a model is called or its gradients computed: shorter is better, others may wait for the end."""
    me = threading.get_ident()
    if me in _computing or me == _alone:
        yield
        return
    with _changed:
        _changed.wait_for(lambda: _alone is None and not _waiting)
        _computing.add(me)
    try:
        yield
    finally:
        with _changed:
            _computing.discard(me)
            _changed.notify_all()


@contextmanager
def alone() -> Iterator[None]:
    """Within :func:`computing`: wait until no other thread computes, and keep them from it.

    Two that compute and both want to be alone take turns. A thread outside of :func:`computing` (autograd's, or a program
    of one thread) does not wait.
    """
    global _waiting, _alone
    me = threading.get_ident()
    if me not in _computing:
        yield
        return
    with _changed:
        _computing.discard(me)
        _waiting += 1
        _changed.notify_all()
        try:
            _changed.wait_for(lambda: _alone is None and not _computing)
            _alone = me
        finally:
            _waiting -= 1
            _computing.update({me} - {_alone})  # interrupted: it computes on, and gives that up by itself
            _changed.notify_all()
    try:
        yield
    finally:
        with _changed:
            _alone = None
            _computing.add(me)
            _changed.notify_all()
