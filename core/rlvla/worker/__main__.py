"""The process that runs one simulator: ``python -m rlvla.worker FD``. Started by :class:`rlvla.worker.SubprocessSimulator`."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import sys
import threading
import time
import traceback
from dataclasses import asdict
from typing import Any

import numpy as np

from rlvla.arrays import on_host
from rlvla.configs import read_one
from rlvla.errors import RlvlaError
from rlvla.memory import resident_peak
from rlvla.plugin import find, load_object, loggers
from rlvla.simulator import Observation
from rlvla.specs import Start
from rlvla.text import encode_text
from rlvla.worker import protocol
from rlvla.worker.host import Host


def main() -> None:
    """Serve the simulator that the first message names, until the owner says close or is gone."""
    faulthandler.enable()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name in loggers():
        logging.getLogger(name).setLevel(logging.INFO)
    link = socket.socket(fileno=int(sys.argv[1]))
    _end_with_owner()
    status = 0
    try:
        hello, _, _ = protocol.receive(link)
        try:
            server = _Server(link, hello)
        except Exception as error:
            protocol.send(link, _failure(error))
            status = 1
        else:
            server.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 1  # the owner is gone
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # renderers print harmless errors when the interpreter tears them down


class _Server:
    def __init__(self, link: socket.socket, hello: dict[str, Any]) -> None:
        if hello["protocol"] != protocol.VERSION:
            raise RuntimeError(
                f"the owner speaks worker protocol {hello['protocol']}, this interpreter's rlvla speaks {protocol.VERSION}: "
                f"install the same rlvla in {sys.executable}"
            )
        self.link = link
        self.rows: int = hello["rows"]
        if hello["plugin"] is not None:
            plugin = find("sim", hello["plugin"])
            kind, config_type = plugin.load(), plugin.config
        else:
            kind, config_type = load_object(hello["target"]), load_object(hello["config_type"])
        simulator = kind(read_one(config_type, hello["config"]), self.rows)
        self.host = Host(simulator, self.rows)
        self.spec = simulator.spec
        places, size = protocol.layout(self.spec, self.rows, hello["horizon"])
        fd = protocol.make_shared(size)
        self.shared = protocol.map_shared(fd, places, size)
        ready = {
            "op": "ready",
            "spec": asdict(self.spec),
            "versions": simulator.versions(),
            "layout": places,
            "size": size,
        }
        protocol.send(link, ready, fd=fd)
        os.close(fd)

    def serve(self) -> None:
        while True:
            message, arrays, _ = protocol.receive(self.link)
            if message["op"] == "prepare":  # nobody waits for an answer
                self.host.prepare(message["tasks"])
                continue
            began, cpu = time.perf_counter(), time.process_time()
            try:
                answer, out = self._answer(message, arrays)
            except Exception as error:
                answer, out = _failure(error), []
            took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
            took["peak_bytes"] = resident_peak()
            protocol.send(self.link, {"op": "ok", **took, **answer}, out)
            if message["op"] == "close":
                return

    def _answer(self, message: dict[str, Any], arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
        match message["op"]:
            case "step":
                result = self.host.step(self.shared["chunk"], self.shared["active"])
                self._put(result.observation, range(self.rows))
                for name in ("reward", "terminated", "truncated", "valid", "success"):
                    self.shared[name][:] = on_host(getattr(result, name))
                at_end = result.success if result.success_at_end is None else result.success_at_end
                self.shared["success_at_end"][:] = on_host(at_end)
                return {"videos": self.host.videos, "counts": dict(result.counts)}, []
            case "reset":
                starts = [Start(task, state) for task, state in message["starts"]]
                self._put(self.host.reset(message["rows"], message["seeds"], starts), message["rows"])
            case "video":
                self.host.video(message["row"], message["path"])
            case "get_state":
                states = self.host.get_state(message["rows"])
                names = [list(one) for one in states]
                return {"names": names}, [on_host(array) for one in states for array in one.values()]
            case "set_state":
                left = iter(arrays)
                states = [{name: next(left) for name in names} for names in message["names"]]
                self._put(self.host.set_state(message["rows"], states), message["rows"])
            case "expert":
                return {}, [on_host(self.host.expert(message["rows"], message["horizon"]))]
            case "close":
                self.host.close()
            case other:
                raise RuntimeError(f"unknown request {other!r}")
        return {}, []

    def _put(self, observation: Observation, rows: Any) -> None:
        rows = list(rows)
        for name, pictures in observation.images.items():
            self.shared[f"image/{name}"][rows] = on_host(pictures)
        self.shared["state"][rows] = on_host(observation.state)
        self.shared["instruction"][rows] = encode_text(observation.instruction, self.spec.max_instruction_bytes)


def _failure(error: Exception) -> dict[str, Any]:
    return {
        "op": "error",
        "type": type(error).__name__,
        "message": str(error),
        "on_purpose": isinstance(error, RlvlaError),
        "traceback": traceback.format_exc(),
    }


def _end_with_owner() -> None:
    """End this process when its parent ends, even in the middle of a simulator call."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
