"""N worlds of one MuJoCo model, stepped at once; their state is read and written through torch tensors of the same memory.

On a GPU everything runs on a stream of its own, and what is repeated (:class:`Program`) is captured once as a CUDA graph:
launched one by one, the same kernels take 10 to 17 times as long. On warp's CPU device programs are called.
Letters: N worlds, S numbers of a state.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from rlvla import turns
from rlvla.errors import SimulatorError
from rlvla.mujoco_warp.kernels import clear_where, copy_where, note_broken, note_peaks, place_fixed
from rlvla.mujoco_warp.room import Room, room_for
from rlvla.mujoco_warp.start import check_deterministic, checked_device, compiling, mjw, wp

if TYPE_CHECKING:
    from rlvla.mujoco_warp.launches import Ordered

log = logging.getLogger(__name__)

STATE = (
    "time",
    "qpos",
    "qvel",
    "act",
    "history",
    "plastic",
    "qacc_warmstart",
    "ctrl",
    "qfrc_applied",
    "xfrc_applied",
    "eq_active",
    "mocap_pos",
    "mocap_quat",
    "userdata",
)
"""Fields that decide what happens next (mjSTATE_INTEGRATION)."""
_STEPPED = ("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl")
"""Those that a step changes (a controller in it writes ``ctrl``); the others are the owner's."""
_DROPS = (
    mjw.OverflowType.NEFC
    | mjw.OverflowType.NJMAX_NNZ
    | mjw.OverflowType.BROADPHASE
    | mjw.OverflowType.NARROWPHASE
    | mjw.OverflowType.CCD
    | mjw.OverflowType.HFIELD
)
"""Overflows in which contacts or constraints are left out."""
_SPARE = 1.25
"""Limits that are told are so many times what was seen: what was left out might have pushed things into more contacts."""
_BOXES_AS_MUJOCO = int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD)
"""Boxes touch boxes as in MuJoCo's own engine (``mjc_BoxBox``), not by the general search for convex shapes, which found other contacts
and took a third of a step (decision 089). In mujoco_warp 4.0.0 the flag means this alone."""
_WARP = threading.RLock()
"""Warp's current device and stream belong to the process, not to a thread."""


@dataclass(frozen=True)
class Limits:
    """Room for contacts. What does not fit is left out of the physics; :meth:`Worlds.overflowed` says where."""

    contacts: int
    """Of a world on average: all worlds share one list (nconmax)."""
    constraints: int
    """Rows of one world at most (njmax): with a pyramidal cone a contact of condim 3 takes four, of condim 4 six."""


class Worlds:
    """N worlds of one model.

    Example::

        worlds = Worlds(model, 256, limits=Limits(contacts=32, constraints=128))
        step = worlds.env_step(substeps=5)
        with worlds.turn():
            worlds.restart(mask_N)
            worlds["qpos"][mask_N] = start_nq
            worlds.settle(mask_N)
            worlds["ctrl"].copy_(target_NU)
            worlds.frozen.copy_(ended_N)
            step()

    Args:
        model: compiled. Bodies do not sleep, whatever it says: which ones do is no part of a state.
        count: N.
        limits: room for contacts.
        device: ``cuda``, ``cuda:N`` or ``cpu``.
        per_world: fields of the model that differ among worlds (``body_pos``, ``geom_rgba``, ...), see :meth:`field`.
        deterministic: equal bits from equal states and actions on one machine, whoever else is stepped and however many worlds
            there are, while nothing overflows; of sensors only where no force on a body is told. Shown with the order of contacts and
            rows shuffled (decision 090). Needs mujoco-warp 4.0.0, and costs a quarter of the speed on a GPU. Without it the
            solver's sums depend on N, also on the CPU, and on a GPU on chance.
        capture: programs as CUDA graphs, where there is a GPU.
        pixels: of all pictures of a world together, for the estimate of memory.
        free_bytes: memory to reckon with; None: what is free on the device.
        start: where worlds are until they are restarted; None: where the model starts.
        remedy: what to do where contacts do not fit, for the warning.
        savings: what would make worlds smaller, beside smaller pictures, for the error.

    Raises:
        NoRoom: for N worlds; says how many fit.
        SimulatorError: no such device, a model that warp does not take (names its plugins), or another mujoco_warp than
            ``deterministic`` needs.
        ValueError: no world, or no room for contacts.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        count: int,
        *,
        limits: Limits,
        device: str = "cuda",
        per_world: Sequence[str] = (),
        deterministic: bool = False,
        capture: bool = True,
        pixels: int = 0,
        free_bytes: int | None = None,
        start: mujoco.MjData | None = None,
        remedy: str = "raise the limits",
        savings: str = "",
    ) -> None:
        if count < 1:
            raise ValueError(f"worlds: got {count}, wanted 1 or more")
        if min(limits.contacts, limits.constraints) < 1:
            raise ValueError(f"limits: got {limits}, wanted room for at least one contact and one constraint")
        self.device = checked_device(device)
        if deterministic:
            check_deterministic()
        self.count = count
        self.limits = limits
        self.mujoco_model = model = _awake(model)
        on_gpu = self.device.type == "cuda"
        self._captures = capture and on_gpu
        self._moves_fixed = not {"body_pos", "body_quat"}.isdisjoint(per_world)
        self._deterministic, self._remedy = deterministic, remedy
        self._ordered: Ordered | None = None
        self._stream = _stream(self.device) if on_gpu else None
        self._warp_stream = wp.stream_from_torch(self._stream) if self._stream is not None else None
        self._programs: list[Program] = []
        self._warned = False
        self._views: dict[str, Tensor] = {}
        self.room = Room(0, 0)
        """That was reckoned with."""
        # The model's own start as it is: its contacts may not fit, and nobody looks at them.
        data = mujoco.MjData(model) if start is None else start
        with self.turn(), self.warp(), ExitStack() as stack:
            if deterministic and model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC:
                data = stack.enter_context(_sparse(model, data))
            try:
                room = (model, data, count, limits.contacts, limits.constraints, pixels, self.device, free_bytes)
                self.room = room_for(*room, savings)
                self.model = mjw.put_model(model, dict.fromkeys(per_world, count))
                self.data = mjw.put_data(
                    model, data, count, nconmax=limits.contacts, njmax=limits.constraints, nccdmax=limits.contacts
                )
            except (NotImplementedError, ValueError) as error:
                raise SimulatorError(
                    f"MuJoCo Warp does not take this model: {error}{_plugins(model)}: take the CPU backend"
                ) from error
            self.model.opt.disableflags |= _BOXES_AS_MUJOCO
            self.model.block_dim.linesearch_iterative = _search_threads(limits.constraints)
            self.model.opt.warn_overflow = 0
            if deterministic:
                from rlvla.mujoco_warp.launches import Ordered

                self._ordered = Ordered(model, self.model, self.data)
            self._mask = wp.zeros(count, dtype=wp.bool)
            self._frozen = wp.zeros(count, dtype=wp.bool)
            self.still = wp.zeros(count, dtype=wp.bool)
            """Of warp, bool ``[N]``: frozen, or diverged in this env step; what runs within a step leaves these worlds alone."""
            self._diverged = wp.zeros(count, dtype=wp.bool)
            self._peaks = wp.zeros(2, dtype=int)
            self._fixed = _fixed_geoms(model)
            self._live = [self._flat(name) for name in _STEPPED if self[name].numel()]
            self._kept = [wp.zeros_like(one) for one in self._live]
        self.frozen: Tensor = wp.to_torch(self._frozen)
        """bool ``[N]``, yours to write: worlds whose time stands still while others are stepped; not a bit of them changes."""
        self.diverged: Tensor = wp.to_torch(self._diverged)
        """bool ``[N]``: positions or velocities of this world were no numbers, or beyond 1e10, since its last restart. It is where
        it was before that env step."""
        self._chosen: Tensor = wp.to_torch(self._mask)
        self._peak: Tensor = wp.to_torch(self._peaks)
        self._restart: Program | None = None
        self._settle: Program | None = None
        self._show: Program | None = None

    # ---- tensors ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        """Return a field of MuJoCo's data (``qpos``, ``ctrl``, ``xpos``, ...) as ``[N, ...]``, in place."""
        if name not in self._views:
            array = getattr(self.data, name)
            # nothing is at no address, which torch may refuse
            self._views[name] = wp.to_torch(array) if array.size else torch.zeros(array.shape, device=self.device)
        return self._views[name]

    def field(self, name: str) -> Tensor:
        """Return a field of the model as ``[N, ...]``, in place; one that was named in ``per_world``."""
        view: Tensor = wp.to_torch(getattr(self.model, name))
        if len(view) != self.count:
            raise ValueError(f"{name} is one for all {self.count} worlds: name it in per_world")
        return view

    def _flat(self, name: str) -> Any:
        """Return a field as a warp array ``[N, n]`` of the same memory."""
        array = getattr(self.data, name)
        return array.reshape((self.count, 1)) if array.ndim == 1 else array

    # ---- when, and where --------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold while worlds are read or written: on their stream, after what the caller has launched, before what it will."""
        with side_by_side([self]), self.lane():
            yield

    def lane(self) -> AbstractContextManager[Any]:
        """Within :func:`side_by_side`: what is launched goes to the stream of these worlds."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextmanager
    def warp(self) -> Iterator[None]:
        """Hold while warp is called or its arrays are made: this device and stream are its current ones. No programs are made in it."""
        with _WARP, ExitStack() as stack:
            if self._deterministic:
                from rlvla.mujoco_warp.launches import one_order, one_shape

                stack.enter_context(one_shape())
                if self._ordered is not None:
                    stack.enter_context(one_order(self._ordered))
            stack.enter_context(wp.ScopedDevice(wp.device_from_torch(self.device)))
            if self._warp_stream is not None:
                stack.enter_context(wp.ScopedStream(self._warp_stream, sync_enter=False))
            yield

    # ---- programs ---------------------------------------------------------------------------------------------------

    def program(self, play: Callable[[], None]) -> Program:
        """Return launches that are always the same: run once now, with the worlds put back, and captured where there is a GPU.

        Args:
            play: launches warp kernels and calls functions of mujoco_warp on ``worlds.model`` and ``worlds.data``; no torch, no
                arrays that move.
        """
        with self.turn():
            saved = self.state(slice(None))
            noted = [self._chosen, self.frozen, self.diverged, self._peak, self["overflow"]]
            before = [one.clone() for one in noted]
            made = Program(self, play)
            self.set_state(slice(None), saved)
            for one, was in zip(noted, before, strict=True):
                one.copy_(was)
        self._programs.append(made)
        return made

    def env_step(
        self,
        substeps: int,
        between: Callable[[int], None] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Program:
        """Return one env step of all worlds that are not frozen.

        Args:
            substeps: MuJoCo steps in it.
            between: launches your own kernels in each substep, between its first half (positions, velocities) and its second
                (forces, integration): a controller. It gets the number of the substep.
            finish: what is made up to date with where everything is then; None: what pictures show (``xpos``, cameras, ...).
        """

        def play() -> None:
            self._keep()
            for number in range(substeps):
                if between is None:
                    mjw.step(self.model, self.data)
                else:
                    mjw.step1(self.model, self.data)
                    between(number)
                    mjw.step2(self.model, self.data)
                self._note()
            self._put_back()
            (finish or self._positions)()

        return self.program(play)

    def restart(self, mask_N: Tensor) -> None:
        """Put chosen worlds where the model starts; then write where they are to be, and :meth:`settle`."""
        self._chosen.copy_(mask_N)
        if self._restart is None:
            self._restart = self.program(self._reset)
        self._restart()

    def _reset(self) -> None:
        mjw.reset_data(self.model, self.data, self._mask)
        wp.launch(clear_where, dim=self.count, inputs=[self._mask], outputs=[self._diverged])

    def settle(self, mask_N: Tensor) -> None:
        """Make everything that follows from positions and velocities up to date (mj_forward); other worlds keep every bit."""

        def play() -> None:
            self._keep()
            mjw.forward(self.model, self.data)
            self._note()
            self._put_back()

        if self._settle is None:
            self._settle = self.program(play)
        before = self.frozen.clone()
        torch.logical_not(mask_N, out=self.frozen)
        self._settle()
        self.frozen.copy_(before)

    def show(self) -> None:
        """Make what pictures show up to date with ``qpos``; changes no state."""
        if self._show is None:
            self._show = self.program(self._positions)
        self._show()

    def place_fixed(self) -> None:
        """Put geoms of bodies without joints where ``body_pos`` and ``body_quat`` of their worlds say, in a program after kinematics.

        mujoco_warp computes these once, when data is made (``smooth.py``, ``_geom_local_to_global``, 4.0.0).
        """
        wp.launch(
            place_fixed,
            dim=(self.count, len(self._fixed[0])),
            inputs=[*self._fixed, self.data.xpos, self.data.xmat],
            outputs=[self.data.geom_xpos, self.data.geom_xmat],
        )

    def _positions(self) -> None:
        mjw.kinematics(self.model, self.data)
        if self._moves_fixed:
            self.place_fixed()
        mjw.com_pos(self.model, self.data)
        mjw.camlight(self.model, self.data)

    def _keep(self) -> None:
        wp.copy(self.still, self._frozen)
        for live, kept in zip(self._live, self._kept, strict=True):
            wp.copy(kept, live)

    def _put_back(self) -> None:
        for live, kept in zip(self._live, self._kept, strict=True):
            wp.launch(copy_where, dim=live.shape, inputs=[self.still, True, kept], outputs=[live])

    def _note(self) -> None:
        wp.launch(
            note_peaks,
            dim=self.count,
            inputs=[self.data.nacon, self.data.ncollision, self.data.nefc],
            outputs=[self._peaks],
        )
        wp.launch(
            note_broken, dim=self.count, inputs=[self.data.qpos, self.data.qvel], outputs=[self.still, self._diverged]
        )

    # ---- states -----------------------------------------------------------------------------------------------------

    def state(self, worlds: Any) -> Tensor:
        """Return all that decides what happens next in some worlds (an index of tensors), float32 ``[n, S]``."""
        parts = [self[name][worlds] for name in STATE if self[name].numel()]
        return torch.cat([one.reshape(len(one), -1).float() for one in parts], 1)

    def set_state(self, worlds: Any, state_nS: Tensor) -> None:
        """Write what :meth:`state` returned; then :meth:`show` before looking."""
        at = 0
        for name in STATE:
            field = self[name]
            if width := field.numel() // self.count:
                part = state_nS[:, at : at + width].to(field.device)
                field[worlds] = part.reshape(len(part), *field.shape[1:]).to(field.dtype)
                at += width

    # ---- contacts that did not fit ------------------------------------------------------------------------------------

    def overflowed(self) -> Tensor:
        """Return bool ``[N]``: contacts or constraints of this world were left out since its last restart.

        Where the list that all share was full it is true of every world: whose contacts those were is not known.
        """
        return (self["overflow"] & int(_DROPS)) != 0

    def seen(self) -> Limits:
        """Return the most contacts (of a world on average) and constraints (of one world) that there ever were.

        Where some did not fit these are lower bounds, since what is left out takes its constraints with it. Waits.
        """
        contacts, constraints = self._peak.tolist()
        return Limits(-(-contacts // self.count), constraints)

    def warn(self) -> None:
        """Say once that contacts were left out, and which limits would do. Waits for the device."""
        if self._warned or not bool(self.overflowed().any()):
            return
        self._warned = True
        log.warning("%s", self.problem())

    def problem(self) -> str:
        """Say which limits were too small and what would do; empty: none so far. Waits for the device."""
        needed, said = self.seen(), []
        # contacts that were left out would have had rows, too
        left_out = max(1.0, needed.contacts / self.limits.contacts)
        for name, factor in (("contacts", 1.0), ("constraints", left_out)):
            got, least = getattr(self.limits, name), getattr(needed, name)
            if least * factor > got:
                said.append(
                    f"{name}: got {got}, at least {least} were needed, set {math.ceil(_SPARE * least * factor)}"
                )
        if not said and not bool(self.overflowed().any()):
            return ""
        said = said or [f"room of another kind ran out (overflow bits {sorted(set(self['overflow'].tolist()))})"]
        return f"contacts of a world were left out of the physics: {'; '.join(said)}: {self._remedy}"

    # ---- the end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all programs, which hold what they launch, and so these worlds: memory goes back when their owner drops them."""
        if self._stream is not None:
            self._stream.synchronize()
        for program in self._programs:
            program.drop()
        self._programs.clear()
        self._restart = self._settle = self._show = None


@contextmanager
def side_by_side(batches: Iterable[Worlds]) -> Iterator[None]:
    """Hold while several batches are read or written, each within its :meth:`Worlds.lane`: at the same time where there is a
    GPU, after what the caller has launched, before what it will. What they write in common must be rows of their own."""
    streams = [one._stream for one in batches if one._stream is not None]
    callers = [torch.cuda.current_stream(stream.device) for stream in streams]
    for stream, caller in zip(streams, callers, strict=True):
        stream.wait_stream(caller)
    yield
    for stream, caller in zip(streams, callers, strict=True):
        caller.wait_stream(stream)


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which graphs of a device are captured, one at a time, and on which nothing runs."""
    return torch.cuda.Stream(device)


def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream for worlds: torch hands out 32 in turn, so batches may share one, but none the one for captures."""
    stream = torch.cuda.Stream(device)
    return torch.cuda.Stream(device) if stream == _capture_stream(device) else stream


def _fixed_geoms(model: mujoco.MjModel) -> list[Any]:
    """Return the number, body, position and rotation in it of each geom of a body without joints (none that mocap moves)."""
    moved = model.body_mocapid[model.body_rootid[model.geom_bodyid]] >= 0
    fixed = np.flatnonzero((model.body_weldid[model.geom_bodyid] == 0) & ~moved)
    mat_F9 = np.empty((len(fixed), 9))
    for mat_9, geom in zip(mat_F9, fixed, strict=True):
        mujoco.mju_quat2Mat(mat_9, model.geom_quat[geom])
    columns = (fixed, int), (model.geom_bodyid[fixed], int), (model.geom_pos[fixed], wp.vec3)
    arrays = [wp.array(np.ascontiguousarray(column), dtype=kind) for column, kind in columns]
    return [*arrays, wp.array(mat_F9.reshape(-1, 3, 3), dtype=wp.mat33)]


@contextmanager
def _sparse(model: Any, data: Any) -> Iterator[Any]:
    """Let a model's Jacobian be sparse meanwhile; returns its state with one.

    mujoco_warp adds up the Hessian of elliptic cones over contacts, whose places are chance, where the Jacobian is dense; over rows,
    which are in order, where it is sparse (4.0.0).
    """
    before = model.opt.jacobian
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
    try:
        data = copy.copy(data)
        mujoco.mj_forward(model, data)
        yield data
    finally:
        model.opt.jacobian = before


def _search_threads(constraints: int) -> int:
    """Return how many threads search a world's step along a line: one for two to four rows.

    With mujoco_warp's 32, at up to 600 rows a world, that search was the longest part of a step (decision 089).
    """
    return min(256, 1 << max(5, math.ceil(math.log2(constraints / 4))))


def _awake(model: mujoco.MjModel) -> mujoco.MjModel:
    sleeps = int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    if model.opt.enableflags & sleeps:
        model = copy.copy(model)
        model.opt.enableflags &= ~sleeps
    return model


def _plugins(model: mujoco.MjModel) -> str:
    """Say which plugins a model has."""
    named = sorted({_plugin_name(int(slot)) for slot in model.plugin})
    return f" (the model's plugins: {', '.join(named)})" if named else ""


def _plugin_name(slot: int) -> str:
    """Return the name of a registered plugin; Python bindings of 3.17 do not tell it (``mjp_getPluginAtSlot``, mjplugin.h)."""
    (path,) = Path(mujoco.__file__).parent.glob("libmujoco.so*")
    ask = ctypes.CDLL(str(path)).mjp_getPluginAtSlot
    ask.restype = ctypes.POINTER(ctypes.c_char_p)  # a structure that begins with its name
    return (ask(slot)[0] or b"").decode()


class Program:
    """Launches that are always the same. Made by :meth:`Worlds.program`; call it within :meth:`Worlds.turn`."""

    def __init__(self, worlds: Worlds, play: Callable[[], None]) -> None:
        self._worlds, self._graph = worlds, None
        self._play: Callable[[], None] | None = play
        with compiling(), turns.computing(), turns.alone(), worlds.warp():
            play()
            if worlds._captures:
                stream = wp.stream_from_torch(_capture_stream(worlds.device))
                with wp.ScopedStream(stream, sync_enter=False), wp.ScopedCapture(stream=stream) as captured:
                    play()
                self._graph = captured.graph

    def drop(self) -> None:
        """Forget what is launched; this cannot be called any more."""
        self._play = self._graph = None

    def __call__(self) -> None:
        assert self._play is not None, "a program of worlds that were closed"
        if self._graph is not None:
            wp.capture_launch(self._graph, stream=self._worlds._warp_stream)
            return
        with self._worlds.warp():
            self._play()
