"""A simulator that lives in another process, used like one that lives here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlvla import environments
from rlvla.configs import Choice, plain, read_one
from rlvla.errors import SimulatorError, WorkerDied
from rlvla.simulator import ChunkResult, Observation
from rlvla.specs import SimulatorSpec, Start
from rlvla.text import decode_text
from rlvla.worker import protocol

_TAIL = 2000
"""Characters of a worker's output that an error shows."""


class SubprocessSimulator:
    """Starts ``<python> -m rlvla.worker`` and forwards each call; one call at a time, from any thread.

    Args:
        choice: simulator plugin and config.
        rows: environments in this process.
        horizon: actions in a chunk.
        python: interpreter; None: this one, or that of the simulator's own environment.
        log: file for what the worker prints; None: a temporary one.
        name: how errors call it.
    """

    def __init__(
        self,
        choice: Choice,
        rows: int,
        horizon: int,
        *,
        python: str | None = None,
        log: Path | None = None,
        name: str = "simulator",
    ) -> None:
        elsewhere = python or environments.interpreter(choice.plugin, choice.config)
        interpreter = elsewhere or sys.executable
        self.name = name
        self.rows = rows
        self._log: IO[bytes] = open(log, "ab+") if log else tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        variables = environments.variables() if elsewhere else os.environ
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **variables}
        try:
            self._process = subprocess.Popen(
                [interpreter, "-m", "rlvla.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,  # Ctrl-C is the owner's business
            )
        except OSError as error:
            ours.close()
            self._log.close()
            raise SimulatorError(
                f"{name}: cannot start the interpreter {interpreter!r}: {error}; see run.sim_python"
            ) from error
        finally:
            theirs.close()
        self._link = ours
        self._choice = choice
        target = choice.plugin.target
        kind = type(choice.config)
        hello = {
            "op": "hello",
            "protocol": protocol.VERSION,
            "plugin": choice.name if choice.plugin.distribution else None,
            "target": target,
            "config_type": f"{kind.__module__}:{kind.__qualname__}",
            "config": plain(choice.config),
            "rows": rows,
            "horizon": horizon,
        }
        self._send(hello)
        self._ready = False
        self._called = False
        """A call after the start was answered."""
        self.spec: SimulatorSpec
        self._versions: dict[str, str] = {}
        self.seconds = 0.0
        """Of the last call, inside the worker."""
        self.cpu_seconds = 0.0
        """Processor time of the last call, of the worker process."""
        self.peak_bytes = 0
        """Most memory that the worker process has had."""
        self.videos: list[str] = []
        """Completed by the last step."""

    def wait_ready(self) -> SubprocessSimulator:
        """Wait until the simulator stands. Starting several and then waiting for each starts them side by side.

        Raises:
            SimulatorError: it could not start; the worker's own error comes first.
            WorkerDied: it ended on the way, or had to be ended: it took longer than the first call may.
        """
        if not self._ready:
            message, _, fd = self._receive_within(self._choice.describe().first_call_timeout_s, "start")
            assert fd is not None, "ready came without the shared file"
            self.spec = read_one(SimulatorSpec, message["spec"])
            self._versions = message["versions"]
            self._shared = protocol.map_shared(fd, message["layout"], message["size"])
            os.close(fd)
            self._ready = True
        return self

    def reset(self, rows: Sequence[int], seeds: Sequence[int], starts: Sequence[Start]) -> Observation:
        self.wait_ready()
        rows = [int(row) for row in rows]
        self._call(
            {
                "op": "reset",
                "rows": rows,
                "seeds": [int(s) for s in seeds],
                "starts": [[s.task, s.state] for s in starts],
            }
        )
        return self._observation(rows)

    def prepare(self, tasks: Sequence[int]) -> None:
        """Let the worker build tasks while nobody waits for it; returns at once."""
        self._send({"op": "prepare", "tasks": list(tasks)})

    def step(self, chunk_NHA: Any, active_N: Any) -> ChunkResult:
        if np.shape(chunk_NHA) != self._shared["chunk"].shape:
            parts = ", ".join(f"{part.name}: {part.size}" for part in self.spec.action)
            raise ValueError(
                f"{self.name}: got a chunk of shape {np.shape(chunk_NHA)}, wanted {self._shared['chunk'].shape}: rows, "
                f"actions in a chunk, dimensions of an action ({parts})"
            )
        self._shared["chunk"][:] = chunk_NHA
        self._shared["active"][:] = active_N
        answer, _ = self._call({"op": "step"})
        self.videos = answer["videos"]
        shared = self._shared
        return ChunkResult(
            observation=self._observation(slice(None)),
            reward=shared["reward"],
            terminated=shared["terminated"],
            truncated=shared["truncated"],
            valid=shared["valid"],
            success=shared["success"],
            success_at_end=shared["success_at_end"],
            counts=answer["counts"],
        )

    def video(self, row: int, path: str) -> None:
        """Record the episode that starts next in ``row``."""
        self._call({"op": "video", "row": row, "path": path})

    def get_state(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        answer, arrays = self._call({"op": "get_state", "rows": list(rows)})
        left = iter(arrays)
        return [{name: next(left) for name in names} for names in answer["names"]]

    def set_state(self, rows: Sequence[int], states: Sequence[Mapping[str, Any]]) -> Observation:
        self.wait_ready()
        arrays = [np.asarray(array) for one in states for array in one.values()]
        self._call({"op": "set_state", "rows": list(rows), "names": [list(one) for one in states]}, arrays)
        return self._observation(list(rows))

    def expert(self, rows: Sequence[int], horizon: int) -> np.ndarray:
        _, arrays = self._call({"op": "expert", "rows": [int(row) for row in rows], "horizon": horizon})
        return arrays[0]

    def versions(self) -> dict[str, str]:
        return self._versions

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ask the process to end, and end it after five seconds."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                self._link.settimeout(5.0)
                protocol.send(self._link, {"op": "close"})
                self._link.shutdown(socket.SHUT_WR)
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.kill()
        self._link.close()
        self._log.close()

    def kill(self) -> None:
        """End the process at once; a call that waits for it fails with :class:`WorkerDied`."""
        self._process.kill()
        self._process.wait()

    def _observation(self, rows: Any) -> Observation:
        shared = self._shared
        return Observation(
            images={one.name: shared[f"image/{one.name}"][rows] for one in self.spec.cameras},
            state=shared["state"][rows],
            instruction=decode_text(shared["instruction"][rows]),
        )

    def _call(
        self, message: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        self._send(message, arrays)
        limit = self.spec.call_timeout_s if self._called else self.spec.first_call_timeout_s
        answer, out, _ = self._receive_within(limit, message["op"])
        self._called = True
        self.seconds, self.cpu_seconds = answer["seconds"], answer["cpu_seconds"]
        self.peak_bytes = answer["peak_bytes"]
        return answer, out

    def _send(self, message: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        try:
            protocol.send(self._link, message, arrays)
        except OSError as error:
            raise self._died() from error

    def _receive_within(self, limit: float | None, call: str) -> tuple[dict[str, Any], list[np.ndarray], int | None]:
        self._link.settimeout(limit)
        try:
            return self._receive()
        except TimeoutError:
            raise self._late(call, limit) from None
        finally:
            self._link.settimeout(None)

    def _receive(self) -> tuple[dict[str, Any], list[np.ndarray], int | None]:
        try:
            message, arrays, fd = protocol.receive(self._link)
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            raise self._died() from error
        if message["op"] == "error":
            meant = message["on_purpose"]  # made for people: neither type nor traceback would add anything
            said = message["message"] if meant else f"{message['type']}: {message['message']}"
            failure = SimulatorError(f"{self.name}: {said}", worker=self.name, output=message["traceback"])
            if not meant:
                failure.add_note(f"in the worker process:\n{message['traceback']}")
            raise failure
        return message, arrays, fd

    def _late(self, call: str, limit: float | None) -> WorkerDied:
        """End a process that does not answer, after it has written where it is."""
        self._process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self.kill()
        which, option = ("call", "call_timeout_s") if self._called else ("first call", "first_call_timeout_s")
        what = f"its {which} {call!r}" if self._ready else "its start"
        return self._died(f"was ended: {what} took longer than {limit:g} s (the simulator's {option})")

    def _died(self, how: str = "") -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        status = self._process.poll()
        how = how or _ending(status)
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL))
        output = self._log.read().decode(errors="replace").strip()
        return WorkerDied(
            f"{self.name}: its worker process {how}"
            + (f"; its last words:\n{output}" if output else " without a word"),
            worker=self.name,
            output=output,
        )


def _ending(status: int | None) -> str:
    """Say how a process ended, by its status."""
    if status is None:
        return "stopped answering"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


@contextlib.contextmanager
def open_simulator(
    choice: Choice, rows: int = 1, horizon: int = 1, python: str | None = None
) -> Iterator[SubprocessSimulator]:
    """Run a simulator in a worker process for the length of a ``with`` block."""
    simulator = SubprocessSimulator(choice, rows, horizon, python=python, name=choice.name)
    try:
        yield simulator.wait_ready()
    finally:
        simulator.close()
